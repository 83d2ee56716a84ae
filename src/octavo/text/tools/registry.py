"""The tool call parsers by name, and which of them a chat template asks for."""

from __future__ import annotations

from octavo.text.tools.hermes import HermesParser
from octavo.text.tools.llama3_json import Llama3JsonParser
from octavo.text.tools.mistral import MistralParser
from octavo.text.tools.parser import ToolParser
from octavo.text.tools.plain_json import PlainJsonParser

# To add a format, write a ToolParser and name it here.
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


def parser_for_template(template: str) -> str | None:
    """The name of the parser for the only known format of calls that `template` writes; None if it writes none, several or another."""
    found = [
        name
        for name, (signs, others) in _SIGNS.items()
        if all(sign in template for sign in signs) and not any(other in template for other in others)
    ]
    return found[0] if len(found) == 1 else None
