"""One candidate token at one position."""

from octavo import Logprob

__all__ = ["Logprob"]
