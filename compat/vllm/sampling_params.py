"""How a request wants its tokens chosen."""

from octavo import BeamSearchParams, SamplingParams, StructuredOutputsParams

__all__ = ["BeamSearchParams", "SamplingParams", "StructuredOutputsParams"]
