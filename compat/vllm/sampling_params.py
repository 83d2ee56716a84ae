"""How a request wants its tokens chosen."""

from octavo import BeamSearchParams, SamplingParams

__all__ = ["BeamSearchParams", "SamplingParams"]
