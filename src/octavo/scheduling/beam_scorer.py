"""Which continuations of its beams a search follows, what it has finished, and when it is over: transformers' rules."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from operator import attrgetter

from octavo.protocol.beam_search import BeamSearchParams
from octavo.protocol.wire import BeamHypothesis, TokenLogprobs


class Beam:
    """A token after the beam that was `place`-th of the step before. `score` is the sum of all logprobs up to it; `rank` is its place
    among the likeliest tokens there, which `given` lists. The beam that everything starts from has none of that."""

    __slots__ = ("given", "parent", "place", "rank", "score", "token_id")

    def __init__(
        self, parent: Beam | None = None, place: int = 0, given: TokenLogprobs | None = None, rank: int = 0, score: float = 0.0
    ) -> None:
        self.parent = parent
        self.place = place
        self.given = given
        self.rank = rank
        self.score = score
        self.token_id = -1 if given is None else given.top_ids[rank]

    def continuations(self, place: int, given: TokenLogprobs) -> Iterator[Beam]:
        """The tokens that may follow it, the likeliest first."""
        for rank, logprob in enumerate(given.top_logprobs):
            yield Beam(self, place, given, rank, self.score + logprob)

    def path(self) -> list[Beam]:
        """The beams that led to it, itself the last; without the one that everything starts from."""
        path: list[Beam] = []
        beam = self
        while beam.parent is not None:
            path.append(beam)
            beam = beam.parent
        return path[::-1]


class BeamScorer:
    """The beams of one search, the best first, and the `beam_width` best of those that are finished.

    Of all continuations of all beams the best that end nothing are followed. One that ends is a hypothesis if it is among the `beam_width`
    best of all. A hypothesis counts score / length ** length_penalty, its end token included. At `most_tokens` the best continuations
    become hypotheses as they are. Where two count the same, the one whose beam came first stands before, and so does an older hypothesis.
    """

    __slots__ = ("_eos_token_ids", "_hypotheses", "_length", "_most_tokens", "_params", "beams")

    def __init__(self, params: BeamSearchParams, eos_token_ids: frozenset[int], most_tokens: int) -> None:
        self._params = params
        self._eos_token_ids = eos_token_ids
        self._most_tokens = most_tokens
        self._length = 0
        self._hypotheses: list[tuple[float, str, Beam]] = []
        self.beams = [Beam()]

    def advance(self, results: list[TokenLogprobs]) -> bool:
        """Takes in what may follow each of the beams, and replaces them by the next ones; True if the search is over.

        Each of `results` lists at least as many tokens as beams are wanted and end tokens known. O(beam_width · log beam_width).
        """
        width = self._params.beam_width
        self._length += 1
        last = self._length == self._most_tokens
        streams = (beam.continuations(place, given) for place, (beam, given) in enumerate(zip(self.beams, results, strict=True)))
        followed: list[Beam] = []
        for place, beam in enumerate(heapq.merge(*streams, key=attrgetter("score"), reverse=True)):
            ends = beam.token_id in self._eos_token_ids
            if place < width and (ends or last):
                self._finish(beam, "stop" if ends else "length")
            if not ends:
                followed.append(beam)
                if len(followed) == width:
                    break
        self.beams = followed
        return last or self._is_settled(followed[0])

    def hypotheses(self, logprobs: int | None) -> list[BeamHypothesis]:
        """What has been found, the best first, with the `logprobs` likeliest tokens of each place; None: no logprobs at all."""
        return [_hypothesis(beam, reason, logprobs) for _, reason, beam in self._hypotheses]

    def _finish(self, beam: Beam, reason: str) -> None:
        self._hypotheses.append((self._counts(beam.score, self._length), reason, beam))
        self._hypotheses.sort(key=lambda hypothesis: -hypothesis[0])
        del self._hypotheses[self._params.beam_width :]

    def _counts(self, score: float, length: int) -> float:
        return score / math.pow(length, self._params.length_penalty)

    def _is_settled(self, best: Beam) -> bool:
        """Whether what is finished is taken for the end of it."""
        params = self._params
        if len(self._hypotheses) < params.beam_width:
            return False
        if params.early_stopping is True:
            return True
        could_grow = params.early_stopping == "never" and params.length_penalty > 0
        return self._counts(best.score, self._most_tokens if could_grow else self._length) <= self._hypotheses[-1][0]


def _hypothesis(beam: Beam, reason: str, logprobs: int | None) -> BeamHypothesis:
    path = beam.path()
    given = None if logprobs is None else [_reported(each, logprobs) for each in path]
    return BeamHypothesis([each.token_id for each in path], beam.score, reason, given)


def _reported(beam: Beam, count: int) -> TokenLogprobs:
    given = beam.given
    if given is None:
        raise ValueError("the first beam stands for no token")
    return TokenLogprobs(given.top_logprobs[beam.rank], beam.rank + 1, given.top_ids[:count], given.top_logprobs[:count])
