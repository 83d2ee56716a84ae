"""The format of Llama 3.1 to 3.3: JSON without marks, or after `<|python_tag|>`; several calls are parted by semicolons."""

from __future__ import annotations

from octavo.text.tools.parser import CallForm
from octavo.text.tools.plain_json import PlainJsonParser


class Llama3JsonParser(PlainJsonParser):
    """As plain JSON, after a tag if the model writes one."""

    markers = ("<|python_tag|>",)
    prefix = "<|python_tag|>"

    @staticmethod
    def form(template: str) -> CallForm:
        """As these models were trained to write calls."""
        return CallForm('{"name": ', ', "parameters": ', "}", separator="; ", tag="<|python_tag|>")
