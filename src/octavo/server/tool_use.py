"""What a request's tools mean: for its prompt, for the form of its answer, and for how that is read."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from octavo.protocol.errors import InvalidRequestError
from octavo.server.context import ServerContext
from octavo.server.requests import ChatRequest
from octavo.server.tool_fields import FunctionDefinition, NamedToolChoice, Tool
from octavo.text.tools.parser import CallForm, ToolParser
from octavo.text.tools.plain_json import PlainJsonParser
from octavo.text.tools.registry import TOOL_PARSERS, parser_for_template


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The tools that the template is told of, who reads the calls, and the form in which they are written; nothing where no tool may be
    called. `forced` are the functions one of which must be called, `several` whether more than one call may follow. `strict` is the first
    field by which arguments must match a schema where the model chooses, empty if there is none."""

    told: list[dict[str, Any]]
    functions: tuple[FunctionDefinition, ...] = ()
    parser: Callable[[], ToolParser] | None = None
    form: CallForm | None = None
    forced: tuple[FunctionDefinition, ...] = ()
    several: bool = True
    strict: str = ""


def tool_use(ctx: ServerContext, body: ChatRequest) -> ToolUse:
    """What the tools of `body` mean. Raises InvalidRequestError that names the field at fault."""
    choice = body.tool_choice
    functions = _usable(body)
    if not functions:
        return ToolUse([])
    template = ctx.templates.choose(tools=True, requested=body.chat_template)
    kind = _parser(ctx, template)
    several = body.parallel_tool_calls is not False
    forced: tuple[FunctionDefinition, ...] = ()
    strict = ""
    if choice in (None, "auto"):
        kind = _auto_parser(ctx, kind)
        strict = next((f"tools.{place}.function.strict" for place, each in enumerate(functions.values()) if each.strict), "")
        if strict and body.use_beam_search:
            raise InvalidRequestError(f"{strict}: can't be held to with use_beam_search.", param=strict)
        if body.chat_template is None:
            check_place(ctx, template, "; use tool_choice required or a function's name, which hold the answer to a call")
    elif body.use_beam_search:
        raise InvalidRequestError("tool_choice: required and named choices can't be given with use_beam_search.", param="tool_choice")
    elif isinstance(choice, NamedToolChoice):
        forced, several = (_chosen(functions, choice),), False
    else:
        forced = tuple(functions.values())
    reader = kind or PlainJsonParser
    return ToolUse(
        told_tools(body.tools), tuple(functions.values()), lambda: reader(functions), reader.form(template), forced, several, strict
    )


def counted_tools(ctx: ServerContext, body: ChatRequest) -> list[dict[str, Any]]:
    """The tools of `body` that the template is told of, whether or not this server could read a call. Raises InvalidRequestError."""
    functions = _usable(body)
    if not functions:
        return []
    if isinstance(body.tool_choice, NamedToolChoice):
        _chosen(functions, body.tool_choice)
    elif body.tool_choice in (None, "auto"):
        check_place(ctx, ctx.templates.choose(tools=True, requested=body.chat_template))
    return told_tools(body.tools)


def _usable(body: ChatRequest) -> dict[str, FunctionDefinition]:
    """The functions that may be called, by name."""
    if not body.tools and body.tool_choice not in (None, "none"):
        raise InvalidRequestError("tool_choice: there are no tools to choose from.", param="tool_choice")
    functions = _functions(body.tools or [])
    return {} if body.tool_choice == "none" else functions


def _functions(tools: list[Tool]) -> dict[str, FunctionDefinition]:
    functions: dict[str, FunctionDefinition] = {}
    for index, tool in enumerate(tools):
        name = tool.function.name
        if name in functions:
            path = f"tools.{index}.function.name"
            raise InvalidRequestError(f"{path}: there is another tool of the name {name!r}.", param=path)
        _check_parameters(tool.function, f"tools.{index}.function.parameters")
        functions[name] = tool.function
    return functions


def _check_parameters(function: FunctionDefinition, path: str) -> None:
    kind = "object" if function.parameters is None else function.parameters.get("type", "object")
    if kind == "object":
        return
    shown = f"{json.dumps(kind, ensure_ascii=False):.60}"
    if not (isinstance(kind, list) and "object" in kind):
        raise InvalidRequestError(f"{path}: must be the schema of an object, not of type {shown}; arguments are objects.", param=path)
    if function.strict and kind != ["object"]:
        raise InvalidRequestError(f'{path}: must be of type "object" alone where strict is true, not {shown}.', param=path)


def _chosen(functions: dict[str, FunctionDefinition], choice: NamedToolChoice) -> FunctionDefinition:
    name = choice.function.name
    if name not in functions:
        path = "tool_choice.function.name"
        raise InvalidRequestError(f"{path}: there is no tool of the name {name!r}.", param=path)
    return functions[name]


def _parser(ctx: ServerContext, template: str) -> type[ToolParser] | None:
    """The parser that the server was started with, or else the one of the chat template, if its format is known."""
    name = ctx.options.tool_call_parser or parser_for_template(template)
    return None if name is None else TOOL_PARSERS[name]


def _auto_parser(ctx: ServerContext, kind: type[ToolParser] | None) -> type[ToolParser]:
    if not ctx.options.enable_auto_tool_choice:
        raise InvalidRequestError(
            "tool_choice: auto is switched off on this server (--no-enable-auto-tool-choice); use none, required or a function's name.",
            param="tool_choice",
        )
    if kind is None:
        raise InvalidRequestError(
            "tool_choice: auto needs to know how this model writes tool calls, and its chat template does not show it; the server must be "
            f"started with --tool-call-parser {'|'.join(TOOL_PARSERS)}. Use none, required or a function's name meanwhile.",
            param="tool_choice",
        )
    return kind


def check_place(ctx: ServerContext, template: str, hint: str = "") -> None:
    """That the model is told of the tools; one without a template is refused where it is written out. Raises InvalidRequestError."""
    if not ctx.templates.reads(template, "tools", unknown=True):
        raise InvalidRequestError(f"tools: the model's chat template has no place for tools{hint}.", param="tools")


def told_tools(tools: list[Tool] | None) -> list[dict[str, Any]]:
    """Tools as templates expect them, without what the client left out. Raises InvalidRequestError that names the tool at fault."""
    functions = [msgspec.structs.asdict(function) for function in _functions(tools or []).values()]
    return [
        {"type": "function", "function": {name: value for name, value in function.items() if value is not None}} for function in functions
    ]
