"""The tool call parsers by name, and which of them a chat template asks for."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from octavo.text.tools.hermes import HermesParser
from octavo.text.tools.llama3_json import Llama3JsonParser
from octavo.text.tools.mistral import MistralParser
from octavo.text.tools.parser import ToolParser
from octavo.text.tools.plain_json import PlainJsonParser

# To add a format, write a ToolParser and name it here, or register it in a file for --tool-parser-plugin.
TOOL_PARSERS: dict[str, type[ToolParser]] = {
    "hermes": HermesParser,
    "qwen": HermesParser,
    "llama3_json": Llama3JsonParser,
    "mistral": MistralParser,
    "json": PlainJsonParser,
}
# What a template writes for the calls of earlier turns, and what it must not write, because that is another format.
_SIGNS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "hermes": (("<tool_call>", "</tool_call>", "tools"), ("<function=", "<arg_key>")),
    "mistral": (("[TOOL_CALLS]", "tools"), ()),
    "llama3_json": (("<|start_header_id|>", '"parameters": ', "tools"), ("<tool_call>",)),
}

_Parser = TypeVar("_Parser", bound=type[ToolParser])


def register_tool_parser(*names: str) -> Callable[[_Parser], _Parser]:
    """A decorator of a ToolParser, which `--tool-call-parser` then knows by these names.

    Raises ValueError for a name that is taken or empty, TypeError for what is no ToolParser, or lacks one of its methods.
    """
    for name in names or ("",):
        if not name or not isinstance(name, str):
            raise ValueError("a tool parser needs a name")
        if name in TOOL_PARSERS:
            raise ValueError(f"there is a tool parser of the name {name!r} already")

    def register(parser: _Parser) -> _Parser:
        if not (isinstance(parser, type) and issubclass(parser, ToolParser)):
            raise TypeError(f"{parser!r} is no subclass of ToolParser")
        if missing := sorted(getattr(parser, "__abstractmethods__", ())):
            raise TypeError(f"{parser.__name__} lacks {', '.join(missing)}")
        TOOL_PARSERS.update(dict.fromkeys(names, parser))
        return parser

    return register


def parser_for_template(template: str) -> str | None:
    """The name of the parser for the only known format of calls that `template` writes; None if it writes none, several or another."""
    found = [
        name
        for name, (signs, others) in _SIGNS.items()
        if all(sign in template for sign in signs) and not any(other in template for other in others)
    ]
    return found[0] if len(found) == 1 else None
