"""The sequences of a beam search: they share the blocks of what they have in common, and part where their tokens do."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from octavo.kvcache.block_table import blocks_for
from octavo.kvcache.manager import KVCacheManager
from octavo.protocol.beam_search import BeamSearchParams
from octavo.protocol.plan import Continuation
from octavo.protocol.wire import BeamHypothesis, EngineRequest, TokenLogprobs
from octavo.scheduling.beam_scorer import BeamScorer
from octavo.scheduling.limits import Limits
from octavo.scheduling.request import Request


class BeamSearch:
    """What a request with beams is besides a request: it stands in the queue and among the running ones for all of them.

    `sequences` are those that run, the request itself being the first; each computes one beam. When all have their logits, the scorer says
    which tokens follow. The first continuation of a beam stays in its sequence, and further ones move to sequences whose beams have none,
    by references to the blocks of the beam that they go on from: whoever writes to a block that others hold gets a copy of it, and that is
    at most the last one of each. A request begins alone, with the beam that is its prompt.

    After a preemption the request comes back alone, too: `park` keeps the others' tokens, and they begin again with what they share with it
    as soon as it is computed. So that it is all there then, beams keep the blocks that a window has passed.
    """

    __slots__ = ("_logprobs", "_make", "_order", "_parked", "_pending", "_request", "_results", "_scorer", "_width", "sequences")

    def __init__(self, request: Request, params: BeamSearchParams, logprobs: int | None, make: Callable[[int], Request]) -> None:
        """`make` gives a new sequence for each number; `logprobs` is how many are to be reported for each token."""
        self._request = request
        self._width = params.beam_width
        self._logprobs = logprobs
        self._make = make
        self._scorer = BeamScorer(params, request.eos_token_ids, request.max_known - request.num_prompt_tokens)
        self._order = [request]
        self._results: dict[Request, TokenLogprobs] = {}
        self._pending: list[Continuation] = []
        # Sequences that are to come back, each with the number of tokens that it has in common with the request.
        self._parked: list[tuple[Request, int]] = []
        self.sequences = [request]

    @property
    def seats(self) -> int:
        """Sequences that may run at once."""
        return self._width

    @property
    def blocks_to_fork(self) -> int:
        """Blocks that sequences take for what is known and that do not run yet; for the first ones, one each."""
        request = self._request
        size = request.table.block_size
        if len(self._order) == 1:
            return (self._width - 1) * (request.num_known < request.max_known - 1)
        return sum(blocks_for(request.num_known, size) - shared // size for _, shared in self._parked)

    def take_pending(self) -> list[Continuation]:
        """What the worker has to be told before it computes the next of these sequences."""
        pending, self._pending = self._pending, []
        if pending:
            for sequence in self.sequences:
                sequence.held_by_worker = True
        return pending

    def take(self, sequence: Request, logprobs: TokenLogprobs) -> list[BeamHypothesis] | None:
        """What may follow one of the sequences. Gives what was found, if that ends the search."""
        self._results[sequence] = logprobs
        if self._parked:
            self._return()
        if len(self._results) < len(self.sequences):
            return None
        results = [self._results[sequence] for sequence in self._order]
        self._results.clear()
        if self._scorer.advance(results):
            return self._scorer.hypotheses(self._logprobs)
        self._continue()
        return None

    def park(self) -> None:
        """The sequences have lost their blocks, and the worker has forgotten them."""
        self._results.clear()
        self._pending.clear()
        if len(self.sequences) > 1:
            tokens = self._request.token_ids
            self._parked = [(sequence, _num_common(tokens, sequence.token_ids)) for sequence in self.sequences[1:]]
            self.sequences = self.sequences[:1]

    def _return(self) -> None:
        """The request is computed: the others begin with what they share with it."""
        for sequence, shared in self._parked:
            self._begin(sequence, self._request, shared, sequence.token_ids)
            sequence.replaced = []
            self.sequences.append(sequence)
        self._parked = []

    def _continue(self) -> None:
        """Puts the scorer's beams in the places of those that they go on from."""
        parents = self._order
        for number in range(len(self.sequences), self._width):
            self.sequences.append(self._make(number))
        staying = {parents[beam.place] for beam in self._scorer.beams}
        free = iter([sequence for sequence in self.sequences if sequence not in staying])
        self._order = []
        for beam in self._scorer.beams:
            parent = parents[beam.place]
            if parent in staying:
                staying.remove(parent)
                self._order.append(parent)
            else:
                self._order.append(next(free))
        # Those that stay where they are grow last: the others begin with their tokens as they were.
        for sequence, beam in zip(self._order, self._scorer.beams, strict=True):
            parent = parents[beam.place]
            if sequence is not parent:
                self._begin(sequence, parent, parent.num_known, [*parent.token_ids, beam.token_id])
                sequence.replaced = parent.replaced.copy()
            self._pending.append(Continuation(sequence.request_id, parent.request_id, beam.token_id))
        for sequence, beam in zip(self._order, self._scorer.beams, strict=True):
            if sequence is parents[beam.place]:
                sequence.token_ids.append(beam.token_id)

    def _begin(self, sequence: Request, parent: Request, shared: int, token_ids: list[int]) -> None:
        """`sequence` holds the first `shared` tokens of `parent`, and nothing else any more."""
        table = parent.table.fork(shared, token_ids, owner=sequence.request_id)
        sequence.table.release()
        sequence.table, sequence.token_ids = table, token_ids
        sequence.num_computed = sequence.num_in_cache = shared


def make_search(request: EngineRequest, params: BeamSearchParams, cache: KVCacheManager, limits: Limits, number: int) -> Request:
    """A request that searches by beams. Raises InvalidRequestError if the engine could never finish it."""
    end_token_ids = () if request.sampling.ignore_eos else frozenset(request.eos_token_ids)
    limits.check_beam_search(len(request.prompt_token_ids), params, len(end_token_ids))
    reported = limits.vocab_size if request.sampling.logprobs == -1 else request.sampling.logprobs
    # So many that each beam alone could give all the next ones, whatever it could end with.
    wanted = max(2 * params.beam_width, params.beam_width + len(end_token_ids), reported or 0)
    sampling = msgspec.structs.replace(request.sampling, logprobs=min(wanted, limits.vocab_size))

    def make(place: int) -> Request:
        name = f"{request.request_id}#{place}" if place else request.request_id
        return Request(
            msgspec.structs.replace(request, request_id=name, sampling=sampling), cache, limits.max_model_len, number, keep_all=True
        )

    def make_beam(place: int) -> Request:
        sequence = make(place)
        sequence.owner = owner
        return sequence

    owner = make(0)
    owner.search = BeamSearch(owner, params, reported, make_beam)
    return owner


def _num_common(first: list[int], second: list[int]) -> int:
    """Tokens that both begin with."""
    return next((place for place, (one, other) in enumerate(zip(first, second, strict=True)) if one != other), len(first))
