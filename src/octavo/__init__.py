"""Octavo serves large language models on any machine.

The public surface is this module's `__all__`. Names load on first use, so that `import octavo` costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo._version import __version__
from octavo.utils.lazy import lazy_names

if TYPE_CHECKING:
    from octavo.api.async_llm import AsyncLLM
    from octavo.api.llm import LLM
    from octavo.protocol.beam_search import BeamSearchParams
    from octavo.protocol.outputs import (
        BeamSearchOutput,
        BeamSearchSequence,
        CompletionOutput,
        EmbeddingRequestOutput,
        Logprob,
        PoolingRequestOutput,
        RequestOutput,
    )
    from octavo.protocol.pooling import PoolingParams
    from octavo.protocol.sampling import SamplingParams
    from octavo.protocol.structured_outputs import StructuredOutputsParams

_HOMES = {
    "LLM": "octavo.api.llm",
    "AsyncLLM": "octavo.api.async_llm",
    "SamplingParams": "octavo.protocol.sampling",
    "RequestOutput": "octavo.protocol.outputs",
    "CompletionOutput": "octavo.protocol.outputs",
    "Logprob": "octavo.protocol.outputs",
    "BeamSearchParams": "octavo.protocol.beam_search",
    "PoolingParams": "octavo.protocol.pooling",
    "EmbeddingRequestOutput": "octavo.protocol.outputs",
    "PoolingRequestOutput": "octavo.protocol.outputs",
    "BeamSearchOutput": "octavo.protocol.outputs",
    "BeamSearchSequence": "octavo.protocol.outputs",
    "StructuredOutputsParams": "octavo.protocol.structured_outputs",
}

__all__ = [
    "LLM",
    "AsyncLLM",
    "BeamSearchOutput",
    "BeamSearchParams",
    "BeamSearchSequence",
    "CompletionOutput",
    "EmbeddingRequestOutput",
    "Logprob",
    "PoolingParams",
    "PoolingRequestOutput",
    "RequestOutput",
    "SamplingParams",
    "StructuredOutputsParams",
    "__version__",
]


__getattr__, __dir__ = lazy_names(__name__, _HOMES, "__version__")
