"""What the scheduler knows of one request."""

from __future__ import annotations

from enum import Enum
from typing import Protocol

from msgspec.structs import replace

from octavo.kvcache.manager import KVCacheManager
from octavo.kvcache.swap_space import Swapped
from octavo.protocol.plan import Continuation, NewRequest, SampledToken
from octavo.protocol.wire import BeamHypothesis, EngineOutput, EngineRequest, TokenLogprobs


class RequestStatus(Enum):
    """WAITING holds no blocks, RUNNING does, FINISHED (ended, failed or aborted) never changes again."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class Search(Protocol):
    """What a request with several sequences does besides (`beam_search.BeamSearch`). `sequences` are those that run, the request first."""

    sequences: list[Request]

    @property
    def seats(self) -> int:
        """Sequences that may run at once."""
        ...

    @property
    def blocks_to_fork(self) -> int:
        """Blocks that sequences which do not run yet take for the tokens that they know."""
        ...

    def take_pending(self) -> list[Continuation]:
        """What the worker has to be told before it computes the next of the sequences."""
        ...

    def take(self, sequence: Request, logprobs: TokenLogprobs) -> list[BeamHypothesis] | None:
        """What may follow one of the sequences. Gives what was found, if that ends the search."""
        ...

    def park(self) -> None:
        """The sequences have lost their blocks, and the worker has forgotten them."""
        ...


class Request:
    """Tokens known (the prompt, then every token sampled), how many of them have been computed, and in which blocks they are.

    `num_in_cache` tokens have keys and values in the cache: those computed, and those that were found there when the request was admitted.
    At most one of these is still to be computed: the last one known, which gives the next. `num_cached_tokens` is how many prompt tokens
    the first admission found computed already. `replaced` are blocks of the table, as (place, block id), that the worker has not been
    told of. `swapped` is where tokens of a waiting request lie in swap space, if any do. `max_known` is the number of known tokens at which
    generation ends with "length". `arrival_time` (the front end's) and `first_scheduled_time` (the scheduler's clock) are in seconds.
    `held_by_worker` says that a plan has introduced the request and none has removed it since. `number` counts the requests in the order
    in which they came; `favoured` ones have been overtaken often enough. A request that searches by beams has a `search`, whose sequences
    have the request as their `owner`; others own themselves. With `keep_all` no block is given back because a window has passed it.
    Of a prompt whose logprobs are wanted, those of the tokens that follow its first `num_told` ones have been told.
    """

    __slots__ = (
        "arrival_time",
        "bad_words",
        "eos_token_ids",
        "favoured",
        "first_scheduled_time",
        "grammar",
        "group_id",
        "held_by_worker",
        "max_known",
        "min_tokens",
        "num_cached_tokens",
        "num_computed",
        "num_in_cache",
        "num_preemptions",
        "num_prompt_tokens",
        "num_told",
        "number",
        "owner",
        "pooling",
        "priority",
        "replaced",
        "request_id",
        "sampling",
        "search",
        "status",
        "stop_token_ids",
        "swapped",
        "table",
        "token_ids",
        "worker_eos_token_ids",
    )

    def __init__(self, request: EngineRequest, cache: KVCacheManager, context: int, number: int = 0, *, keep_all: bool = False) -> None:
        sampling = request.sampling
        self.request_id = request.request_id
        self.group_id = request.group_id
        self.number = number
        self.priority = request.priority
        self.pooling = request.pooling
        self.favoured = False
        self.sampling = sampling
        self.grammar = request.grammar
        self.bad_words = request.bad_words
        self.worker_eos_token_ids = request.eos_token_ids
        self.eos_token_ids = frozenset(() if sampling.ignore_eos else request.eos_token_ids)
        self.stop_token_ids = frozenset(sampling.stop_token_ids or ())
        self.min_tokens = sampling.min_tokens
        # A copy: the caller's list must not grow with the output.
        self.token_ids = list(request.prompt_token_ids)
        self.num_prompt_tokens = len(self.token_ids)
        self.max_known = context if sampling.max_tokens is None else min(context, self.num_prompt_tokens + sampling.max_tokens)
        self.num_computed = 0
        self.num_in_cache = 0
        self.num_cached_tokens = 0
        self.num_told = 0
        self.table = cache.new_table(self.token_ids, salt=request.cache_salt, owner=request.request_id, keep_all=keep_all)
        self.replaced: list[tuple[int, int]] = []
        self.swapped: Swapped | None = None
        self.status = RequestStatus.WAITING
        self.num_preemptions = 0
        self.arrival_time = request.arrival_time
        self.first_scheduled_time: float | None = None
        self.held_by_worker = False
        self.owner = self
        self.search: Search | None = None

    @property
    def sequences(self) -> list[Request]:
        """What of it runs: itself, or its beams, of which it is the first."""
        return [self] if self.search is None else self.search.sequences

    @property
    def seats(self) -> int:
        """Sequences that it may have running at once."""
        return 1 if self.search is None else self.search.seats

    def next_count(self, budget: int) -> int:
        """How many of its tokens come next: all that are known, within `budget` and what the pool could ever hold of them."""
        return min(self.num_known - self.num_computed, budget, self.table.most_step(self.num_computed))

    def shares(self, budget: int) -> list[tuple[Request, int]]:
        """Tokens that each of its sequences computes next, of `budget` together."""
        shares = []
        for sequence in self.sequences:
            count = sequence.next_count(budget)
            # A beam that is computed waits for the others.
            if count:
                shares.append((sequence, count))
                budget -= count
        return shares

    @property
    def rank(self) -> tuple[bool, int, int]:
        """The lower, the more urgent: steps serve running requests in this order, and preempt them in the opposite one."""
        return (False, 0, self.number) if self.favoured else (True, self.priority, self.number)

    @property
    def num_known(self) -> int:
        """Prompt tokens and output tokens."""
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        """Tokens sampled so far."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def tells_prompt(self) -> bool:
        """Whether there are logprobs of its prompt still to tell: it can't begin with what the cache holds of that, then."""
        return self.sampling.prompt_logprobs is not None and self.num_told < self.num_prompt_tokens - 1

    def rows_to_tell(self, count: int) -> int:
        """How many of its next `count` tokens have a prompt token after them whose logprobs the worker gives."""
        last = min(self.num_computed + count, self.num_prompt_tokens - 1)
        return max(0, last - self.num_computed) if self.tells_prompt else 0

    def tell(self, count: int, logprobs: list[TokenLogprobs]) -> list[TokenLogprobs] | None:
        """Those of `logprobs`, which came of the next `count` tokens, that have not been told yet; None if they are too many or few."""
        if len(logprobs) != self.rows_to_tell(count):
            return None
        fresh = logprobs[max(0, self.num_told - self.num_computed) :]
        self.num_told += len(fresh)
        return fresh

    @property
    def computes_all(self) -> bool:
        """Whether every token of its prompt must be computed for it, whatever the cache holds: it needs the hidden states of all, or asks
        for that."""
        return self.pooling == "mean" or self.sampling.skip_reading_prefix_cache is True

    def give_back(self) -> list[str]:
        """Gives all blocks of its sequences back; returns the ids of those that the worker holds, and now has to forget."""
        held = [sequence for sequence in self.sequences if sequence.held_by_worker]
        for sequence in self.sequences:
            sequence.table.release()
            sequence.replaced = []
            sequence.held_by_worker = False
        return [sequence.request_id for sequence in held]

    def answer(self, prompt_logprobs: list[TokenLogprobs] | None = None) -> EngineOutput:
        """An output that says how far it has come, and nothing else yet but what it tells of the prompt."""
        return EngineOutput(
            request_id=self.request_id,
            first_scheduled_time=self.first_scheduled_time,
            num_preemptions=self.num_preemptions,
            num_cached_tokens=self.num_cached_tokens,
            prompt_logprobs=prompt_logprobs or None,
        )

    def describe(self) -> NewRequest:
        """The request in full, for a worker that does not hold it."""
        # The token list is copied: in process the worker appends what it samples to the list that it is given.
        return NewRequest(
            request_id=self.request_id,
            token_ids=self.token_ids.copy(),
            num_prompt_tokens=self.num_prompt_tokens,
            sampling=self.sampling if self.tells_prompt else replace(self.sampling, prompt_logprobs=None),
            eos_token_ids=self.worker_eos_token_ids,
            num_computed_tokens=self.num_computed,
            beam=self.owner.search is not None,
            grammar=self.grammar,
            pooling=self.pooling,
            bad_words=self.bad_words,
        )

    def take(self, sampled: SampledToken, output: EngineOutput) -> None:
        """Takes in what the worker gave, its next token or what its prompt was pooled to, and says so in `output`."""
        if sampled.pooled is not None:
            output.embedding, output.finish_reason = sampled.pooled, "stop"
            return
        self.token_ids.append(sampled.token_id)
        output.token_ids = [sampled.token_id]
        output.logprobs = None if sampled.logprobs is None else [sampled.logprobs]
        ended = self.finish_reason()
        if ended is not None:
            output.finish_reason, output.stop_reason = ended

    def finish_reason(self) -> tuple[str, int | None] | None:
        """(finish_reason, stop_reason) if the last token known, an output token, ends the request, else None. An end token counts
        before the length, and none counts before `min_tokens` output tokens, as in vLLM."""
        if self.num_output_tokens >= self.min_tokens:
            last = self.token_ids[-1]
            if last in self.eos_token_ids:
                return "stop", None
            if last in self.stop_token_ids:
                return "stop", last
        if len(self.token_ids) >= self.max_known:
            return "length", None
        return None
