"""How a request wants its tokens chosen."""

from octavo import BeamSearchParams, SamplingParams, StructuredOutputsParams
from octavo.protocol.sampling import RequestOutputKind

__all__ = ["BeamSearchParams", "RequestOutputKind", "SamplingParams", "StructuredOutputsParams"]
