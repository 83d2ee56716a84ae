"""Which of a request's schemas is at fault where the grammar that was made of them can't be used."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from octavo.api.grammars import without_grammar
from octavo.protocol.errors import InvalidRequestError

_PLACE = re.compile(r" at (?P<line>\d+)\(\d+\): failed to compile JSON schema: ")
_CALL = re.compile(r"call_(?P<index>\d+): ")


@dataclass(frozen=True, slots=True)
class Schemas:
    """What `grammar` was made of: its rule `call_N` of the tool at the place `tools[N]` of the request's list, the rest of the field
    `param`."""

    grammar: str
    tools: Sequence[int]
    param: str

    def blame(self, error: InvalidRequestError) -> None:
        """Makes `error`, which speaks of the grammar, speak of what it was made of."""
        field, param = error.param or "", self.param
        if place := _PLACE.search(error.message):
            rule = _CALL.match(self.grammar.split("\n")[int(place["line"]) - 1])
            param = f"tools.{self.tools[int(rule['index'])]}.function.parameters" if rule else param
        error.param, error.message = param, without_grammar(error.message.replace(field, param, 1))
