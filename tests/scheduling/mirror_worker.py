"""A worker without a model: it believes nothing but the plans, checks each against its own books, and reads every token back from a
cache laid out by block tables, so that a block in two hands shows as a wrong token."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field

import msgspec

from octavo.protocol.beam_search import BeamSearchParams
from octavo.protocol.plan import Continuation, NewRequest, SampledToken, ScheduledRequest, StepPlan, StepResult
from octavo.protocol.sampling import SamplingParams
from octavo.protocol.wire import EngineRequest, TokenLogprobs

VOCAB = 24
EOS = 0
GIVEN_BACK = -1


def next_token(tokens: list[int], seed: int | None) -> int:
    """The whole model: a pure function of the tokens that it sees and the request's seed."""
    return zlib.crc32(bytes([*tokens, seed or 0])) % VOCAB


def next_logprobs(tokens: list[int], count: int) -> TokenLogprobs:
    """The model as a beam sees it: the `count` likeliest tokens after the sequence, of which no two are alike."""
    falling = sorted((-(zlib.crc32(bytes([*tokens, 99, token])) % 100_003) / 10_000, token) for token in range(VOCAB))[::-1]
    return TokenLogprobs(falling[0][0], 1, [token for _, token in falling[:count]], [logprob for logprob, _ in falling[:count]])


def searched(
    prompt: list[int], params: BeamSearchParams, ends: list[int], context: int, window: int | None = None
) -> list[tuple[list[int], float, str]]:
    """What a beam search finds by the rules written out plainly: (tokens, sum of logprobs, finish_reason), the best first."""
    width, most = params.beam_width, min(params.max_tokens, context - len(prompt))
    ends = [] if params.ignore_eos else ends
    running: list[tuple[float, list[int]]] = [(0.0, [])]
    finished: list[tuple[float, float, list[int], str]] = []
    for length in range(1, most + 1):
        every = []
        for score, tokens in running:
            known = prompt + tokens
            given = next_logprobs(known[-(window or len(known)) :], VOCAB)
            every += [(score + more, [*tokens, token]) for token, more in zip(given.top_ids, given.top_logprobs, strict=True)]
        every.sort(key=lambda each: -each[0])
        for score, tokens in every[:width]:
            if tokens[-1] in ends or length == most:
                reason = "stop" if tokens[-1] in ends else "length"
                finished.append((score / length**params.length_penalty, score, tokens, reason))
        finished = sorted(finished, key=lambda each: -each[0])[:width]
        running = [each for each in every if each[1][-1] not in ends][:width]
        if len(finished) == width:
            far = most if params.early_stopping == "never" and params.length_penalty > 0 else length
            if params.early_stopping is True or running[0][0] / far**params.length_penalty <= finished[-1][0]:
                break
    return [(tokens, score, reason) for _, score, tokens, reason in finished]


def alone(request: EngineRequest, context: int, window: int | None = None) -> tuple[list[int], str, int | None]:
    """What a request gets if nothing else ever runs: (tokens, finish_reason, stop_reason). The model sees `window` tokens back."""
    sampling = request.sampling
    output: list[int] = []
    while True:
        known = request.prompt_token_ids + output
        token = next_token(known[-(window or len(known)) :], sampling.seed)
        output.append(token)
        may_stop = len(output) >= sampling.min_tokens
        if may_stop and not sampling.ignore_eos and token in request.eos_token_ids:
            return output, "stop", None
        if may_stop and token in (sampling.stop_token_ids or []):
            return output, "stop", token
        if len(output) == sampling.max_tokens or len(request.prompt_token_ids) + len(output) == context:
            return output, "length", None


def make_request(request_id: str, prompt: list[int] | int, max_tokens: int | None = 16, **sampling: object) -> EngineRequest:
    """A request that ends by length alone unless `ignore_eos=False`; an integer prompt is a length."""
    tokens = [(7 * i + len(request_id)) % VOCAB for i in range(prompt)] if isinstance(prompt, int) else prompt
    options = {"ignore_eos": True, **sampling}
    return EngineRequest(request_id, tokens, SamplingParams(max_tokens=max_tokens, **options), eos_token_ids=[EOS])


def make_search(request_id: str, prompt: list[int] | int, width: int, max_tokens: int = 8, **options: object) -> EngineRequest:
    """A beam search, which end tokens end unless `ignore_eos`."""
    request = make_request(request_id, prompt, max_tokens, ignore_eos=options.get("ignore_eos", False), logprobs=0)
    return msgspec.structs.replace(request, beam_search=BeamSearchParams(width, max_tokens, **options))


@dataclass
class Held:
    token_ids: list[int]
    seed: int | None
    num_computed: int = 0
    beam: int | None = None
    block_ids: list[int] = field(default_factory=list)
    first_seen: int = 0
    window_block_ids: list[int] = field(default_factory=list)
    first_in_window: int = 0


class MirrorWorker:
    """`memory` is a plain dictionary of every token in every slot of every block. With a `window` the model sees so many tokens back; with
    `num_window_blocks` only a half of it does, which has blocks of its own, and the model sees all."""

    def __init__(
        self, block_size: int, num_blocks: int, budget: int, max_num_seqs: int, window: int | None = None, num_window_blocks: int = 0
    ) -> None:
        self.window = None if num_window_blocks else window
        self.own_window = window if num_window_blocks else None
        self.num_window_blocks = num_window_blocks
        self.block_size = block_size
        self.num_blocks = num_blocks
        self.budget = budget
        self.max_num_seqs = max_num_seqs
        self.held: dict[str, Held] = {}
        self.memory: dict[tuple[int, int], int] = {}
        self.swap: dict[int, dict[int, int]] = {}
        self.moved_out = self.moved_in = 0
        self.computed = 0

    def run(self, plan: StepPlan, failing: frozenset[str] = frozenset()) -> StepResult:
        # Through bytes, as to another process: nothing may be shared with the scheduler.
        plan = msgspec.msgpack.decode(msgspec.msgpack.encode(plan), type=StepPlan)
        if plan.forgets_all:
            self.held.clear()
        self._forget(plan.removed)
        self._continue(plan.continued)
        for new in plan.new:
            self._introduce(new)
        self._check_sizes(plan)
        for block, slot in plan.swaps_out:
            self.swap[slot] = self.contents(block)
        for copy in plan.copies:
            self._copy(*copy)
        for slot, block in plan.swaps_in:
            self._clear(block)
            self.memory.update({(block, offset): token for offset, token in self.swap[slot].items()})
        self.moved_out += len(plan.swaps_out)
        self.moved_in += len(plan.swaps_in)
        for share in plan.scheduled:
            self._change_table(share)
        for share in plan.scheduled:
            self._write(share)
        for share in plan.scheduled:
            self._read(self.held[share.request_id])
        return self._sample(plan, failing)

    def _forget(self, removed: list[str]) -> None:
        assert len(set(removed)) == len(removed)
        for request_id in removed:
            del self.held[request_id]

    def _continue(self, continued: list[Continuation]) -> None:
        assert len({beam.request_id for beam in continued}) == len(continued)
        before = {beam.parent_id: self.held[beam.parent_id] for beam in continued}
        for beam in continued:
            parent = before[beam.parent_id]
            assert parent.beam
            assert parent.num_computed == len(parent.token_ids)
            tokens, blocks = [*parent.token_ids, beam.token_id], parent.block_ids.copy()
            own = parent.window_block_ids.copy()
            self.held[beam.request_id] = Held(tokens, parent.seed, parent.num_computed, parent.beam, blocks, window_block_ids=own)

    def _introduce(self, new: NewRequest) -> None:
        assert new.request_id not in self.held
        assert 0 <= new.num_computed_tokens < len(new.token_ids)
        assert 1 <= new.num_prompt_tokens <= len(new.token_ids)
        beam = new.sampling.logprobs if new.beam else None
        self.held[new.request_id] = Held(new.token_ids, new.sampling.seed, new.num_computed_tokens, beam)

    def _check_sizes(self, plan: StepPlan) -> None:
        ids = [share.request_id for share in plan.scheduled]
        assert len(set(ids)) == len(ids)
        assert {new.request_id for new in plan.new} <= set(ids)
        assert plan.num_tokens <= self.budget
        assert len(self.held) <= self.max_num_seqs

    def _copy(self, source: int, destination: int, num_tokens: int) -> None:
        assert 1 <= num_tokens <= self.block_size
        kept = {offset: self.memory[source, offset] for offset in range(num_tokens)}
        self._clear(destination)
        self.memory.update({(destination, offset): token for offset, token in kept.items()})

    def contents(self, block: int) -> dict[int, int]:
        """The tokens of a block by their place in it."""
        return {offset: self.memory[block, offset] for offset in range(self.block_size) if (block, offset) in self.memory}

    def _clear(self, block: int) -> None:
        for offset in range(self.block_size):
            self.memory.pop((block, offset), None)

    def _change_table(self, share: ScheduledRequest) -> None:
        held = self.held[share.request_id]
        block_ids, own = held.block_ids, held.window_block_ids
        for place, block in share.replaced_blocks:
            ids, at = (block_ids, place) if place >= 0 else (own, ~place)
            assert at < len(ids)
            ids[at] = block
        block_ids += share.new_block_ids
        own += share.new_window_block_ids
        if self.num_window_blocks:
            kept = own[own.count(GIVEN_BACK) :]
            assert GIVEN_BACK not in kept
            assert len(set(kept)) == len(kept)
            assert all(0 <= block - self.num_blocks < self.num_window_blocks for block in kept)
            assert len(own) == len(block_ids)
        else:
            assert not own
        there = block_ids[block_ids.count(GIVEN_BACK) :]
        assert self.window is not None or there == block_ids
        assert len(set(there)) == len(there)
        assert all(0 <= block < self.num_blocks for block in there)

    def _write(self, share: ScheduledRequest) -> None:
        held = self.held[share.request_id]
        end = held.num_computed + share.num_tokens
        assert share.num_tokens >= 1
        assert end <= len(held.token_ids)
        # Only the last token known is ever computed without a need to write it.
        assert share.num_cached in ((0, 1) if end == len(held.token_ids) and share.num_tokens == 1 else (0,))
        assert 0 <= len(held.block_ids) * self.block_size - end < self.block_size
        held.first_seen = self.first_seen(held.num_computed)
        held.first_in_window = self.first_in_window(held.num_computed)
        for position in range(held.num_computed + share.num_cached, end):
            for slot in self._slots(held, position):
                self.memory[slot] = held.token_ids[position]
        held.num_computed = end
        self.computed += share.num_tokens

    def _read(self, held: Held) -> None:
        self.assert_holds(held.block_ids, held.token_ids[: held.num_computed], held.first_seen)
        if self.own_window is not None:
            self.assert_holds(held.window_block_ids, held.token_ids[: held.num_computed], held.first_in_window)

    def first_seen(self, position: int) -> int:
        """The first position that a token at `position` sees."""
        return 0 if self.window is None else max(0, position - self.window + 1)

    def first_in_window(self, position: int) -> int:
        """The first position that a token at `position` sees where a window bounds it."""
        return 0 if self.own_window is None else max(0, position - self.own_window + 1)

    def assert_holds(self, block_ids: list[int], token_ids: list[int], first: int = 0) -> None:
        size = self.block_size
        assert [self.memory.get((block_ids[place // size], place % size)) for place in range(first, len(token_ids))] == token_ids[first:]

    def _slots(self, held: Held, position: int) -> list[tuple[int, int]]:
        place, offset = divmod(position, self.block_size)
        return [(ids[place], offset) for ids in (held.block_ids, held.window_block_ids) if ids]

    def _slot(self, held: Held, position: int) -> tuple[int, int]:
        return held.block_ids[position // self.block_size], position % self.block_size

    def _sample(self, plan: StepPlan, failing: frozenset[str]) -> StepResult:
        result = StepResult()
        for share in plan.scheduled:
            held = self.held[share.request_id]
            if share.request_id in failing:
                result.failed[share.request_id] = "made to fail"
            elif held.num_computed == len(held.token_ids):
                seen = range(self.first_seen(held.num_computed - 1), held.num_computed)
                read = [self.memory[self._slot(held, p)] for p in seen]
                if held.beam is not None:
                    result.sampled.append(SampledToken(share.request_id, 0, next_logprobs(read, held.beam)))
                    continue
                token = next_token(read, held.seed)
                held.token_ids.append(token)
                result.sampled.append(SampledToken(share.request_id, token, TokenLogprobs(-float(token), 1)))
        return result
