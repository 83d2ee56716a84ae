"""What a request gets."""

from octavo import CompletionOutput, EmbeddingRequestOutput, PoolingRequestOutput, RequestOutput
from octavo.protocol.outputs import EmbeddingOutput, PoolingOutput
from octavo.utils.lazy import lazy_names

__all__ = [
    "CompletionOutput",
    "EmbeddingOutput",
    "EmbeddingRequestOutput",
    "PoolingOutput",
    "PoolingRequestOutput",
    "RequestOutput",
]

_NO_HEADS = "it serves decoders that generate or embed, not models that classify or score"

__getattr__, __dir__ = lazy_names(
    __name__,
    {},
    *__all__,
    refused=dict.fromkeys(("ClassificationOutput", "ClassificationRequestOutput", "ScoringOutput", "ScoringRequestOutput"), _NO_HEADS),
)
