"""The grammar of calls of functions, in whatever form a model writes them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from octavo.structured_output.grammar import json_rule, quoted


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
    if not patterns:
        raise ValueError("there must be at least one pattern")
    special = special_tokens or {}
    lines = []
    for index, pattern in enumerate(patterns):
        parts = (_literal(pattern.begin, special), json_rule(pattern.schema), _literal(pattern.end, special))
        lines.append(f"call_{index}: {_joined(parts)}")
    lines.append("call: " + " | ".join(f"call_{index}" for index in range(len(patterns))))
    more = "" if separator is None else f"({_joined((_literal(separator, special), 'call'))})*"
    lines.insert(0, f"start: {_joined((_literal(prefix, special), 'call', more, _literal(suffix, special)))}")
    return "\n".join(lines)


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
