"""Chat templates: Jinja in a sandbox, with what Hugging Face's templates expect of their surroundings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.meta
import jinja2.nodes
import jinja2.parser

from octavo.protocol.errors import ConfigError, InvalidRequestError
from octavo.text.messages import normalize_messages
from octavo.text.template_sandbox import TemplateSandbox, time_limit
from octavo.text.template_sizes import MAX_RENDERED_CHARS

RESERVED = frozenset({"messages", "add_generation_prompt"})
# Stands for the end of a message that is to be continued, while the template writes it: of no case and no meaning.
_END_MARK = "\ue0f0\ue0f1\ue0f0"


class _RefusalError(Exception):
    """What a template says through `raise_exception`."""


class _GenerationTag(jinja2.ext.Extension):
    """`{% generation %}…{% endgeneration %}` marks the assistant's text for training; for a prompt it is its content."""

    tags = {"generation"}  # noqa: RUF012 - jinja2's way to declare them

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        """Leaves the tags out."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def choose_template(default: str | None, named: Mapping[str, str], variables: Mapping[str, Any]) -> str:
    """The template for a request: `tool_use` where there are tools and the model has one, else the default.

    Raises InvalidRequestError for a model without a template.
    """
    if variables.get("tools") and "tool_use" in named:
        return named["tool_use"]
    if default is None:
        hint = f" (it has templates only for {', '.join(sorted(named))})" if named else ""
        raise InvalidRequestError(f"the model has no chat template{hint}; give one with --chat-template", param="messages")
    return default


def render_chat(
    template: str,
    messages: Sequence[Mapping[str, Any]],
    *,
    add_generation_prompt: bool,
    continue_final_message: bool = False,
    variables: Mapping[str, Any],
) -> str:
    """The prompt that `template` makes of `messages`. `variables` are further names that it may use. With `continue_final_message` it ends
    with the text of the last message, whatever the template writes behind it.

    Raises InvalidRequestError for messages that are not well-formed, a template that refuses them or fails, and one that does not come
    to an end.
    """
    if continue_final_message and add_generation_prompt:
        raise InvalidRequestError(
            "continue_final_message continues the last message, and add_generation_prompt begins a new one", param="continue_final_message"
        )
    if clash := sorted(RESERVED & variables.keys()):
        raise InvalidRequestError(f"chat_template_kwargs can't set {clash[0]}", param="chat_template_kwargs")
    compiled = compile_template(template)
    prepared = normalize_messages(messages, wants_parts=wants_parts(template), wants_strings=_tests_for_string(template))
    if continue_final_message:
        _mark_end(prepared[-1])
    context = {"tools": None, "documents": None, **variables, "messages": prepared, "add_generation_prompt": add_generation_prompt}
    try:
        with time_limit():
            text = _rendered(compiled, context)
    except _RefusalError as error:
        raise InvalidRequestError(f"the chat template refuses these messages: {error}", param="messages") from error
    except Exception as error:  # a template is foreign code and may fail in any way
        problem = str(error) or type(error).__name__
        raise InvalidRequestError(f"the chat template fails on these messages: {problem}", param="messages") from error
    return _up_to_mark(text) if continue_final_message else text


def _mark_end(message: dict[str, Any]) -> None:
    """Marks the end of the text of `message`. Raises InvalidRequestError if it has none."""
    content = message["content"]
    if not content:
        raise InvalidRequestError("continue_final_message: the last message has no content to continue", param="continue_final_message")
    if isinstance(content, str):
        message["content"] = content + _END_MARK
    else:
        content[-1]["text"] += _END_MARK


def _up_to_mark(text: str) -> str:
    before, found, _ = text.rpartition(_END_MARK)
    if not found:
        raise InvalidRequestError(
            "continue_final_message: the chat template does not write the content of the last message", param="continue_final_message"
        )
    return before


def _rendered(template: jinja2.Template, context: Mapping[str, Any]) -> str:
    written: list[str] = []
    size = 0
    for chunk in template.generate(context):
        size += len(chunk)
        if size > MAX_RENDERED_CHARS:
            raise OverflowError(f"it writes more than {MAX_RENDERED_CHARS:,} characters")
        written.append(chunk)
    return "".join(written)


def load_chat_template(path_or_text: str) -> str:
    """The template that `--chat-template` names: a file, or the Jinja text itself.

    Raises ConfigError for a file that can't be read or a template that does not parse.
    """
    path = Path(path_or_text)
    try:
        text = path.read_text("utf-8")
    except (OSError, ValueError) as error:
        if not set("{}\n") & set(path_or_text):
            raise ConfigError(
                f"chat_template: {path_or_text} is no readable file and no Jinja text: {error}", param="chat_template"
            ) from error
        text = path_or_text
    try:
        compile_template(text)
    except InvalidRequestError as error:
        raise ConfigError(f"chat_template: {error.message}", param="chat_template") from error
    return text


@lru_cache(maxsize=1)
def _environment() -> TemplateSandbox:
    environment = TemplateSandbox(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, jinja2.ext.loopcontrols])
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


@lru_cache(maxsize=32)
def compile_template(template: str) -> jinja2.Template:
    """The template ready to render. Raises InvalidRequestError for one that does not parse."""
    try:
        return _environment().from_string(template)
    except (jinja2.TemplateError, RecursionError) as error:
        raise InvalidRequestError(f"the chat template does not parse: {error}", param="chat_template") from error


@lru_cache(maxsize=32)
def variables_of(template: str) -> frozenset[str]:
    """The names that the template takes from outside. Raises InvalidRequestError for one that does not parse."""
    compile_template(template)
    return frozenset(jinja2.meta.find_undeclared_variables(_environment().parse(template)))


@lru_cache(maxsize=32)
def wants_parts(template: str) -> bool:
    """Whether the template loops over a message's content, and so takes it as a list of parts rather than as text."""
    tree = _environment().parse(template)
    contents = {
        assign.target.name
        for assign in tree.find_all(jinja2.nodes.Assign)
        if isinstance(assign.target, jinja2.nodes.Name) and _is_content(assign.node)
    }
    return any(
        _is_content(loop.iter) or (isinstance(loop.iter, jinja2.nodes.Name) and loop.iter.name in contents)
        for loop in tree.find_all(jinja2.nodes.For)
    )


@lru_cache(maxsize=32)
def _tests_for_string(template: str) -> bool:
    return any(test.name == "string" for test in _environment().parse(template).find_all(jinja2.nodes.Test))


def _is_content(node: jinja2.nodes.Node) -> bool:
    match node:
        case jinja2.nodes.Getattr(attr="content"):
            return True
        case jinja2.nodes.Getitem(arg=jinja2.nodes.Const(value="content")):
            return True
        case jinja2.nodes.Filter(node=jinja2.nodes.Node() as inner):
            return _is_content(inner)
        case _:
            return False


def _raise_exception(message: str) -> NoReturn:
    raise _RefusalError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)
