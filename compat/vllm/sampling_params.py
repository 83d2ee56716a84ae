"""How a request wants its tokens chosen."""

from octavo import BeamSearchParams, SamplingParams, StructuredOutputsParams
from octavo.protocol.sampling import RequestOutputKind
from octavo.utils.lazy import lazy_names

__all__ = ["BeamSearchParams", "RequestOutputKind", "SamplingParams", "StructuredOutputsParams"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {},
    *__all__,
    refused={
        "GuidedDecodingParams": "it is StructuredOutputsParams now, which SamplingParams takes as structured_outputs",
        "RepetitionDetectionParams": "repetition_penalty, frequency_penalty and stop keep a text from going round",
    },
)
