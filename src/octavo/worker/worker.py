"""One device: it holds a program, its KV cache and a copy of each request, and runs plans."""

from __future__ import annotations

import time

from octavo.backends.base import Program
from octavo.protocol.plan import Continuation, NewRequest, SampledToken, StepPlan, StepResult
from octavo.protocol.sampling import SamplingParams
from octavo.protocol.vocabulary import Vocabulary
from octavo.structured_output.compiler import MAX_COMPILED
from octavo.worker.inputs import build_inputs
from octavo.worker.masks import TokenMasks
from octavo.worker.pooling import NOT_FINITE, pool_states
from octavo.worker.request import GrowingArray, Pool, WorkerRequest
from octavo.worker.sampler import Sampled, SampleFailed, SamplingRow
from octavo.worker.stepping import stepper_for
from octavo.worker.swap_memory import SwapMemory


class Worker:
    """Runs one StepPlan after another. It decides nothing: which tokens, in which blocks, is the plan's."""

    def __init__(
        self,
        program: Program,
        vocab_size: int,
        num_blocks: int,
        block_size: int,
        num_swap_blocks: int = 0,
        max_compiled_grammars: int = MAX_COMPILED,
        num_window_blocks: int = 0,
    ) -> None:
        self._program = program
        self._stepper = stepper_for(program, vocab_size)
        self._block_size = block_size
        self._masks = TokenMasks(vocab_size, max_compiled_grammars)
        self._requests: dict[str, WorkerRequest] = {}
        self._swap = SwapMemory(program, num_swap_blocks)
        # Where the blocks of layers that see a window begin, if they have blocks of their own.
        self._first_window_block = num_blocks if num_window_blocks else None
        program.allocate_kv_cache(num_blocks, block_size, num_window_blocks)

    @property
    def num_requests(self) -> int:
        """Requests that it holds."""
        return len(self._requests)

    def run(self, plan: StepPlan) -> StepResult:
        """Computes one step. A request whose logits are not numbers ends up in `failed`; the others are unharmed."""
        started = time.perf_counter()
        swap_seconds = self._move_blocks(plan)
        result = self._compute(plan)
        result.swap_seconds, result.step_seconds = swap_seconds, time.perf_counter() - started - swap_seconds
        return result

    def _move_blocks(self, plan: StepPlan) -> float:
        """Makes the plan's copies; returns the seconds that swapping took."""
        started = time.perf_counter()
        self._swap.move_out(plan.swaps_out)
        swapped_out = time.perf_counter()
        if plan.copies:
            self._program.copy_blocks(plan.copies)
        copied = time.perf_counter()
        self._swap.move_in(plan.swaps_in)
        return time.perf_counter() - copied + swapped_out - started

    def _compute(self, plan: StepPlan) -> StepResult:
        if plan.forgets_all:
            self._requests.clear()
        for request_id in plan.removed:
            # A run that broke off may have removed it, or never have taken it in.
            self._requests.pop(request_id, None)
        if plan.continued:
            self._continue(plan.continued)
        for new in plan.new:
            self._requests[new.request_id] = _describe(new)
        if not plan.scheduled:
            return StepResult()
        scheduled: list[tuple[WorkerRequest, int, int]] = []
        rows: list[SamplingRow] = []
        # Whose each of the rows is, and whether a token is chosen from it.
        owners: list[tuple[WorkerRequest, bool]] = []
        for share in plan.scheduled:
            request = self._requests[share.request_id]
            for place, block_id in share.replaced_blocks:
                request.replace_block(place, block_id)
            if share.new_block_ids:
                request.block_ids.extend(share.new_block_ids)
            if share.new_window_block_ids:
                request.window_block_ids.extend(share.new_window_block_ids)
            scheduled.append((request, share.num_tokens, share.num_cached))
            known = len(request.token_ids)
            if request.prompt_row is not None:
                told = request.told_rows(share.num_tokens)
                rows += told
                owners += [(request, False)] * len(told)
            if request.pool is None and request.num_computed + share.num_tokens == known:
                request.row.position = known
                request.row.token_ids = request.token_ids.view
                rows.append(request.row)
                owners.append((request, True))
        masks = self._masks.begin(rows)
        results = self._stepper.run(build_inputs(scheduled, self._block_size, self._first_window_block), rows, masks)
        result = _result(owners, results)
        if any(request.pool is not None for request, _, _ in scheduled):
            for request_id, vector in pool_states(scheduled, self._program.hidden_states()).items():
                if vector is None:
                    result.failed[request_id] = NOT_FINITE
                else:
                    result.sampled.append(SampledToken(request_id, -1, pooled=vector))
        for request, count, _ in scheduled:
            request.num_computed += count
        return result

    def use_vocabulary(self, vocabulary: Vocabulary) -> None:
        """The tokens as bytes, before the first request with a grammar."""
        self._masks.use_vocabulary(vocabulary)

    def read_block(self, block_id: int) -> bytes:
        """What a block of the KV cache holds, in bytes of the backend's own order."""
        return self._program.read_block(block_id)

    def write_block(self, block_id: int, content: bytes) -> None:
        """Puts what `read_block` gave into a block."""
        self._program.write_block(block_id, content)

    def _continue(self, beams: list[Continuation]) -> None:
        """Puts beams in the places of others; what goes on where it is need not be copied, and comes last."""
        forked = [(beam, self._requests[beam.parent_id].fork(beam.request_id)) for beam in beams if beam.request_id != beam.parent_id]
        for beam in beams:
            if beam.request_id == beam.parent_id:
                self._requests[beam.request_id].token_ids.append(beam.token_id)
        for beam, request in forked:
            request.token_ids.append(beam.token_id)
            self._requests[beam.request_id] = request

    def close(self) -> None:
        """Frees the program."""
        self._masks.close()
        self._requests.clear()
        self._program.close()


def _result(owners: list[tuple[WorkerRequest, bool]], results: list[Sampled | SampleFailed]) -> StepResult:
    """What each row gave its request."""
    result = StepResult()
    for (request, chosen), sampled in zip(owners, results, strict=True):
        if not isinstance(sampled, Sampled):
            result.failed.setdefault(request.request_id, sampled.reason)
            if sampled.invalid:
                result.invalid.add(request.request_id)
        elif chosen:
            if not request.beam:
                request.token_ids.append(sampled.token_id)
            result.sampled.append(SampledToken(request.request_id, sampled.token_id, sampled.logprobs))
        elif sampled.logprobs is not None:
            result.prompt_logprobs.setdefault(request.request_id, []).append(sampled.logprobs)
    return result


def _describe(new: NewRequest) -> WorkerRequest:
    tokens = GrowingArray(new.token_ids)
    seed = new.sampling.seed
    if seed is None:
        raise ValueError(f"request {new.request_id} reached the worker without a seed")
    pool = None if new.pooling is None else Pool(new.pooling, len(tokens))
    row = SamplingRow(
        new.sampling, seed, len(tokens), tokens.view, new.num_prompt_tokens, new.eos_token_ids, grammar=new.grammar, bad_words=new.bad_words
    )
    told = None
    if new.sampling.prompt_logprobs is not None:
        told = SamplingRow(SamplingParams(temperature=0, logprobs=new.sampling.prompt_logprobs), 0, 0, (), new.num_prompt_tokens)
    return WorkerRequest(new.request_id, tokens, new.num_computed_tokens, GrowingArray([]), row, new.beam, told, pool)
