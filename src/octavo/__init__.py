"""Octavo serves large language models on any machine.

The public surface is this module's `__all__`. Names load on first use, so that `import octavo` costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from octavo._version import __version__

if TYPE_CHECKING:
    from octavo.api.async_llm import AsyncLLM
    from octavo.api.llm import LLM
    from octavo.protocol.beam_search import BeamSearchParams
    from octavo.protocol.outputs import BeamSearchOutput, BeamSearchSequence, CompletionOutput, Logprob, RequestOutput
    from octavo.protocol.sampling import SamplingParams

_HOMES = {
    "LLM": "octavo.api.llm",
    "AsyncLLM": "octavo.api.async_llm",
    "SamplingParams": "octavo.protocol.sampling",
    "RequestOutput": "octavo.protocol.outputs",
    "CompletionOutput": "octavo.protocol.outputs",
    "Logprob": "octavo.protocol.outputs",
    "BeamSearchParams": "octavo.protocol.beam_search",
    "BeamSearchOutput": "octavo.protocol.outputs",
    "BeamSearchSequence": "octavo.protocol.outputs",
}

__all__ = [
    "LLM",
    "AsyncLLM",
    "BeamSearchOutput",
    "BeamSearchParams",
    "BeamSearchSequence",
    "CompletionOutput",
    "Logprob",
    "RequestOutput",
    "SamplingParams",
    "__version__",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'octavo' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
