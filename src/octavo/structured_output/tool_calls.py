"""The grammar of calls of functions, in whatever form a model writes them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from octavo.structured_output.grammar import json_rule, quoted

_SPACES = r"[ \t\r\n]*"


@dataclass(frozen=True, slots=True)
class CallPattern:
    """How a model writes a call of one function: `begin`, its arguments as JSON that matches `schema`, `end`."""

    begin: str
    schema: Mapping[str, Any]
    end: str


def tool_call_grammar(
    patterns: Sequence[CallPattern],
    *,
    prefix: str = "",
    suffix: str = "",
    separator: str | None = None,
    special_tokens: Mapping[str, int] | None = None,
) -> str:
    """The grammar (for `StructuredOutputsParams.grammar`) of a text that is `prefix`, a call by one of `patterns`, and `suffix`; with a
    `separator` of any number of calls, at least one, with that between them.

    `special_tokens` are spellings of special tokens, as `Tokenizer.special_tokens` has them: where one stands in `begin`, `end` or another
    of these texts the token itself is meant, which no plain text can spell. Raises ValueError if there is no pattern,
    InvalidRequestError for a schema that JSON can't write.
    """
    special = special_tokens or {}
    return "\n".join([f"start: {_group(prefix, separator, suffix, special)}", *_calls(patterns, special)])


def free_answer_grammar(
    patterns: Sequence[CallPattern],
    *,
    trigger: str,
    tag: str = "",
    prefix: str = "",
    suffix: str = "",
    separator: str | None = None,
    special_tokens: Mapping[str, int] | None = None,
    barred: str = "",
) -> str:
    """The grammar of any text whose calls are written by `patterns`, with the arguments of `tool_call_grammar`; without `separator` there
    is one call at most.

    Where the `trigger` comes in the text a call follows; `prefix`, or else each pattern, begins with it. Without a trigger a text that
    begins with the bracket of a JSON object, or of a list of them, is calls as a whole, perhaps after the `tag`. No text begins with
    `barred`. Whoever reads the text does not see which tokens spell it, so a trigger, a tag or `barred` that are special tokens can't be
    spelled by others. Raises as `tool_call_grammar`.
    """
    special = special_tokens or {}
    bars = f" & ~/{_SPACES}{_escaped(barred)}(?s:.*)/" if barred else ""
    if not trigger:
        opening = rf"(\[{_SPACES})?\{{(?s:.*)"
        if tag:
            opening = f"({_escaped(tag)}{_SPACES})?{opening}"
        begin = f"({_literal(tag, special)})?" if tag else ""
        lines = [
            f"start: GAP ({_joined((begin, 'calls'))} | TEXT)",
            f"calls: {_group(prefix, separator, suffix, special)}",
            f"GAP: /{_SPACES}/",
            rf"TEXT: /([^ \t\r\n](?s:.*))?/ & ~/{opening}/{bars}",
        ]
        return "\n".join([*lines, *_calls(patterns, special)])
    if prefix:
        group = _group(prefix.removeprefix(trigger), separator, suffix, special)
    else:
        group, patterns = "call", [replace(pattern, begin=pattern.begin.removeprefix(trigger)) for pattern in patterns]
    rest = "" if separator is None else "+"
    lines = [f"start: tail | (lead {group}){rest} tail", "tail: TAIL", f"TAIL: {text_without(trigger)}{bars}"]
    if trigger in special:
        lines.append(f"lead: TAIL {_literal(trigger, special)}")
    else:
        lines += [f"lead[suffix={quoted(trigger)}]: LEAD", f"LEAD: /(?s:.*)/{bars}"]
    return "\n".join([*lines, *_calls(patterns, special)])


def text_without(spelling: str) -> str:
    """The body of a grammar's terminal: any text that `spelling` does not stand in."""
    return f"/(?s:.*)/ & ~/(?s:.*){_escaped(spelling)}(?s:.*)/"


def _calls(patterns: Sequence[CallPattern], special: Mapping[str, int]) -> list[str]:
    """The rules of a call, by any of `patterns`."""
    if not patterns:
        raise ValueError("there must be at least one pattern")
    lines = []
    for index, pattern in enumerate(patterns):
        parts = (_literal(pattern.begin, special), json_rule(pattern.schema), _literal(pattern.end, special))
        lines.append(f"call_{index}: {_joined(parts)}")
    return [*lines, "call: " + " | ".join(f"call_{index}" for index in range(len(patterns)))]


def _group(prefix: str, separator: str | None, suffix: str, special: Mapping[str, int]) -> str:
    """A call, or with a separator any number of them, between `prefix` and `suffix`."""
    more = "" if separator is None else f"({_joined((_literal(separator, special), 'call'))})*"
    return _joined((_literal(prefix, special), "call", more, _literal(suffix, special)))


def _escaped(text: str) -> str:
    """The text in a regular expression of a grammar."""
    return re.escape(text).replace("/", r"\/")


def _joined(parts: Sequence[str]) -> str:
    return " ".join(filter(None, parts))


def _literal(text: str, special: Mapping[str, int]) -> str:
    """The text in a rule, with its special tokens by their ids; nothing for no text."""
    if not special:
        return quoted(text) if text else ""
    # The longest first: a spelling may begin with another one.
    spellings = "|".join(map(re.escape, sorted(filter(None, special), key=len, reverse=True)))
    pieces = re.split(f"({spellings})", text)
    return _joined([f"<[{special[piece]}]>" if index % 2 else quoted(piece) if piece else "" for index, piece in enumerate(pieces)])
