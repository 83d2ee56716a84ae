"""The reasoning parsers by name."""

from __future__ import annotations

from octavo.text.reasoning.parser import ReasoningParser
from octavo.text.reasoning.think_tags import DeepSeekR1ReasoningParser, Qwen3ReasoningParser

# To add a format, write a ReasoningParser and name it here.
REASONING_PARSERS: dict[str, type[ReasoningParser]] = {
    "deepseek_r1": DeepSeekR1ReasoningParser,
    "qwen3": Qwen3ReasoningParser,
}
