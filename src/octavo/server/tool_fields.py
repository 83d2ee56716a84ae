"""The fields of a chat request that speak of tools."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

# `$` would let a newline follow.
ToolName = Annotated[str, Meta(min_length=1, max_length=128, pattern=r"^[a-zA-Z0-9_.:-]+(?![\s\S])")]
MAX_TOOLS = 1024


class FunctionDefinition(Struct, forbid_unknown_fields=True):
    """A function that the model may call. `parameters` is the JSON schema of its arguments, an object; without one there are none.
    `strict` holds the arguments to it where the model may choose to call; those of a required or named choice always match."""

    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Struct, forbid_unknown_fields=True):
    """One tool; functions are the only kind."""

    type: Literal["function"]
    function: FunctionDefinition


class ChosenFunction(Struct, forbid_unknown_fields=True):
    """The function that must be called."""

    name: ToolName


class NamedToolChoice(Struct, forbid_unknown_fields=True):
    """The choice of one function."""

    type: Literal["function"]
    function: ChosenFunction


Tools = Annotated[list[Tool], Meta(max_length=MAX_TOOLS)]
ToolChoice = Literal["none", "auto", "required"] | NamedToolChoice
