"""The grammar that an answer is held to, where its request forces calls of tools, asks for a form of the text, or both may come."""

from __future__ import annotations

import re

from octavo.protocol.errors import InvalidRequestError
from octavo.protocol.structured_outputs import StructuredOutputsParams
from octavo.server.context import ServerContext
from octavo.server.tool_fields import FunctionDefinition
from octavo.server.tool_use import ToolUse
from octavo.structured_output.grammar import grammar_of, quoted
from octavo.structured_output.tool_calls import CallPattern, free_answer_grammar, text_without, tool_call_grammar
from octavo.text.reasoning.parser import ReasoningParser
from octavo.text.tools.plain_json import PlainJsonParser

_START = re.compile(r"^start:", re.MULTILINE)
# As models write JSON, and no room for a small one to lose itself in spaces.
_SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


def answer_grammar(
    ctx: ServerContext, asked: StructuredOutputsParams | None, tools: ToolUse, thinking: ReasoningParser | None
) -> StructuredOutputsParams | None:
    """What an answer is held to whose text is to be as `asked`, or else calls of `tools`, or must be calls, or may hold calls of which some
    are strict. What the model thinks before, by the parser `thinking`, is free. None: nothing.

    Raises InvalidRequestError that names the field at fault.
    """
    if asked is None and not tools.forced and not tools.strict:
        return None
    if asked is not None and tools.forced:
        raise InvalidRequestError(
            "tool_choice: required and named choices leave no room for response_format or structured_outputs.", param="tool_choice"
        )
    if asked is not None and asked.kind == "grammar":
        # Whoever writes a grammar means all of the text.
        if tools.strict:
            raise InvalidRequestError(
                f"{tools.strict}: can't be held to beside structured_outputs.grammar, which is that of the whole text.", param=tools.strict
            )
        return asked
    if asked is not None and not tools.told and thinking is None:
        return asked
    if asked is None and not tools.forced:
        return StructuredOutputsParams(grammar=_free(ctx, tools, thinking))
    parts = [] if asked is None else [grammar_of(asked)]
    if tools.told:
        parts.append(_calls(ctx, tools))
    grammar = _either(parts)
    return StructuredOutputsParams(grammar=grammar if thinking is None else _after_thinking(ctx, grammar, thinking))


def _calls(ctx: ServerContext, tools: ToolUse) -> str:
    form = tools.form or PlainJsonParser.form("")
    patterns = [CallPattern(form.begin(each.name), _schema(each), form.after) for each in tools.forced or tools.functions]
    separator = form.separator if tools.several else None
    return tool_call_grammar(
        patterns, prefix=form.prefix, suffix=form.suffix, separator=separator, special_tokens=ctx.llm.tokenizer.special_tokens
    )


def _free(ctx: ServerContext, tools: ToolUse, thinking: ReasoningParser | None) -> str:
    """Any text, whose calls are of `tools`, with arguments that match the schemas of those that are strict."""
    form = tools.form or PlainJsonParser.form("")
    patterns = [
        CallPattern(form.begin(each.name), _schema(each) if each.strict else {"type": "object"}, form.after) for each in tools.functions
    ]
    grammar = free_answer_grammar(
        patterns,
        trigger=form.trigger,
        tag=form.tag,
        prefix=form.prefix,
        suffix=form.suffix,
        separator=form.separator if tools.several else None,
        special_tokens=ctx.llm.tokenizer.special_tokens,
        barred="" if thinking is None or thinking.thinks_first else thinking.markers[0],
    )
    return grammar if thinking is None else _after_thinking(ctx, grammar, thinking)


def _schema(function: FunctionDefinition) -> dict[str, object]:
    """The schema of a function's arguments, which are an object; without parameters an empty one."""
    parameters = function.parameters if function.parameters is not None else {"properties": {}, "additionalProperties": False}
    # Of a type that allows more than objects, none but these.
    return {"x-guidance": _SPACING, **parameters, "type": "object"}


def _either(grammars: list[str]) -> str:
    """A grammar of the texts of any of `grammars`."""
    if len(grammars) == 1:
        return grammars[0]
    names = [f"answer_{index}" for index in range(len(grammars))]
    rules = [_START.sub(f"{name}:", grammar, count=1) for name, grammar in zip(names, grammars, strict=True)]
    return "\n".join([f"start: {' | '.join(names)}", *rules])


def _after_thinking(ctx: ServerContext, grammar: str, thinking: ReasoningParser) -> str:
    """`grammar` after any text up to the end of the thinking, where the answer begins with it or may do so. An end that is a special token
    can't be spelled by others: that would end the thinking for its parser."""
    opening, end = thinking.markers[0], thinking.markers[-1]
    special = ctx.llm.tokenizer.special_tokens
    rules = [_START.sub("answer:", grammar, count=1), r"SPACES: /[ \t\r\n]*/"]
    if end in special:
        rules.append(f"thought: THOUGHT <[{special[end]}]>\nTHOUGHT: {text_without(end)}")
    else:
        rules.append(f"thought[suffix={quoted(end)}]: /(?s:.*)/")
    if thinking.thinks_first:
        return "\n".join(["start: thought SPACES answer", *rules])
    begin = f"<[{special[opening]}]>" if opening in special else quoted(opening)
    return "\n".join([f"start: ({begin} thought SPACES)? answer", *rules])
