"""The worker against a program that only remembers what it was asked and answers with logits made up for the test."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.backends.base import StepInputs
from octavo.protocol.plan import Continuation, NewRequest, SampledToken, ScheduledRequest, StepPlan, StepResult
from octavo.protocol.sampling import SamplingParams
from octavo.worker.request import GrowingArray
from octavo.worker.worker import Worker

VOCAB, BLOCK = 16, 4
Logits = Callable[[int, int], np.ndarray[Any, Any]]


def count_up(token: int, position: int) -> np.ndarray[Any, Any]:
    """Greedy sampling gives the next number."""
    row = np.zeros(VOCAB, np.float32)
    row[(token + 1) % VOCAB] = 5
    return row


class Program:
    """Remembers; a row's logits are a function of its token and position."""

    weights_bytes = 0

    def __init__(self, logits: Logits = count_up) -> None:
        self.logits = logits
        self.events: list[Any] = []
        self.steps: list[StepInputs] = []

    def kv_bytes_per_block(self, block_size: int) -> int:
        return 0

    def allocate_kv_cache(self, num_blocks: int, block_size: int, num_window_blocks: int = 0) -> None:
        self.events.append(("allocate", num_blocks, block_size))

    def copy_blocks(self, copies: list[tuple[int, int, int]]) -> None:
        self.events.append(("copy", copies))

    def read_block(self, block_id: int) -> bytes:
        self.events.append(("read", block_id))
        return b"of %d" % block_id

    def write_block(self, block_id: int, content: bytes) -> None:
        self.events.append(("write", block_id, content))

    def run(self, step: StepInputs) -> np.ndarray[Any, Any]:
        self.events.append("run")
        self.steps.append(step)
        rows = [self.logits(int(step.token_ids[row]), int(step.positions[row])) for row in step.logit_rows]
        return np.array(rows, np.float32).reshape(len(rows), VOCAB)

    def close(self) -> None:
        self.events.append("close")


def worker_with(logits: Logits = count_up, slots: int = 0) -> tuple[Worker, Program]:
    program = Program(logits)
    return Worker(program, VOCAB, 100, BLOCK, slots), program


def new(name: str, tokens: list[int], *, prompt: int | None = None, computed: int = 0, **sampling: Any) -> NewRequest:
    params = SamplingParams(**({"temperature": 0.0, "seed": 0} | sampling))
    return NewRequest(name, tokens, len(tokens) if prompt is None else prompt, params, [], computed)


def tokens_of(result: StepResult) -> dict[str, int]:
    return {sampled.request_id: sampled.token_id for sampled in result.sampled}


def test_blocks_go_to_swap_space_before_others_are_copied_and_come_back_after_that() -> None:
    worker, program = worker_with(slots=3)
    result = worker.run(StepPlan(swaps_out=[(7, 2), (8, 0)], copies=[(1, 7, 4)], swaps_in=[(2, 1), (2, 9)]))
    assert program.events[1:] == [("read", 7), ("read", 8), ("copy", [(1, 7, 4)]), ("write", 1, b"of 7"), ("write", 9, b"of 7")]
    assert result.swap_seconds > 0
    program.events.clear()
    share = ScheduledRequest("a", 1, [0])
    result = worker.run(StepPlan(new=[new("a", [1])], scheduled=[share], swaps_out=[(3, 2)], swaps_in=[(0, 0)]))
    assert program.events == [("read", 3), ("write", 0, b"of 8"), "run"]
    assert result.step_seconds > 0
    for slot in (3, -4):
        with pytest.raises(IndexError):
            worker.run(StepPlan(swaps_out=[(0, slot)]))


def test_it_allocates_once_and_closes_the_program() -> None:
    worker, program = worker_with()
    worker.run(StepPlan(new=[new("a", [1])], scheduled=[ScheduledRequest("a", 1, [0])]))
    assert worker.num_requests == 1
    worker.close()
    assert program.events == [("allocate", 100, BLOCK), "run", "close"]
    assert worker.num_requests == 0


def beam(name: str, tokens: list[int], **sampling: Any) -> NewRequest:
    made = new(name, tokens, logprobs=3, **sampling)
    made.beam = True
    return made


def test_a_beam_grows_by_what_the_plan_says() -> None:
    worker, program = worker_with()
    (sampled,) = worker.run(StepPlan(new=[beam("a", [3, 4, 5])], scheduled=[ScheduledRequest("a", 3, [7])])).sampled
    assert sampled.logprobs is not None
    assert sampled.logprobs.top_ids[0] == 6
    plan = StepPlan(continued=[Continuation("a", "a", 11)], scheduled=[ScheduledRequest("a", 1, [])])
    assert tokens_of(worker.run(plan)) == {"a": 12}
    assert [step.token_ids.tolist() for step in program.steps] == [[3, 4, 5], [11]]


def test_beams_change_places_at_once() -> None:
    """Each parent is as it was before any of them: two swap, one is new, and one goes on where it is."""
    worker, program = worker_with()
    names = ("a", "b", "c")
    worker.run(
        StepPlan(
            new=[beam(name, [place, place]) for place, name in enumerate(names)],
            scheduled=[ScheduledRequest(name, 2, [place]) for place, name in enumerate(names)],
        )
    )
    moves = [("a", "b", 7), ("b", "a", 8), ("c", "c", 9), ("d", "c", 10)]
    names = ("a", "b", "c", "d")
    worker.run(
        StepPlan(
            continued=[Continuation(*move) for move in moves],
            scheduled=[ScheduledRequest(name, 1, [], 0, [(0, 20 + place)]) for place, name in enumerate(names)],
            copies=[(1, 20, 2), (0, 21, 2), (2, 22, 2), (2, 23, 2)],
        )
    )
    assert worker.num_requests == 4
    assert program.steps[1].token_ids.tolist() == [7, 8, 9, 10]
    assert program.steps[1].block_tables.tolist() == [[20], [21], [22], [23]]
    # Whoever goes on from there has all tokens of it.
    worker.run(StepPlan(removed=["a", "b", "c"], continued=[Continuation("e", "d", 1)], scheduled=[ScheduledRequest("e", 1, [])]))
    assert worker._requests["e"].token_ids.view.tolist() == [2, 2, 10, 1]
    assert program.steps[2].positions.tolist() == [3]


def test_a_beam_s_fork_counts_its_own_tokens() -> None:
    """What penalties have counted is not shared with a beam that goes another way."""
    worker, _ = worker_with(lambda token, position: np.arange(VOCAB, dtype=np.float32))
    worker.run(StepPlan(new=[beam("a", [3, 4], presence_penalty=2.0)], scheduled=[ScheduledRequest("a", 2, [0])]))
    plan = StepPlan(
        continued=[Continuation("a", "a", 15), Continuation("b", "a", 14)],
        scheduled=[ScheduledRequest("a", 1, []), ScheduledRequest("b", 1, [], 0, [(0, 1)])],
        copies=[(0, 1, 2)],
    )
    assert tokens_of(worker.run(plan)) == {"a": 14, "b": 15}


def test_a_request_grows_by_what_was_sampled() -> None:
    worker, program = worker_with()
    plan = StepPlan(new=[new("a", [3, 4, 5])], scheduled=[ScheduledRequest("a", 3, [7])])
    assert worker.run(plan).sampled == [SampledToken("a", 6)]
    assert tokens_of(worker.run(StepPlan(scheduled=[ScheduledRequest("a", 1, [])]))) == {"a": 7}
    assert tokens_of(worker.run(StepPlan(scheduled=[ScheduledRequest("a", 1, [2])]))) == {"a": 8}
    assert [step.token_ids.tolist() for step in program.steps] == [[3, 4, 5], [6], [7]]
    assert [step.positions.tolist() for step in program.steps] == [[0, 1, 2], [3], [4]]
    assert [step.slot_mapping.tolist() for step in program.steps] == [[28, 29, 30], [31], [8]]
    assert [step.block_tables.tolist() for step in program.steps] == [[[7]], [[7]], [[7, 2]]]
    assert [step.sequence_lengths.tolist() for step in program.steps] == [[3], [4], [5]]


def test_inputs_of_a_mixed_step_are_laid_out_exactly() -> None:
    """A prompt's chunk, a decode, and a whole prompt side by side, in scattered blocks."""
    worker, program = worker_with()
    worker.run(StepPlan(new=[new("a", [1, 2])], scheduled=[ScheduledRequest("a", 2, [9])]))
    result = worker.run(
        StepPlan(
            new=[new("b", list(range(10))), new("c", [11, 12, 13, 14, 15])],
            scheduled=[ScheduledRequest("b", 6, [5, 50]), ScheduledRequest("a", 1, []), ScheduledRequest("c", 5, [3, 99])],
        )
    )
    step = program.steps[-1]
    assert step.token_ids.tolist() == [0, 1, 2, 3, 4, 5, 3, 11, 12, 13, 14, 15]
    assert step.positions.tolist() == [0, 1, 2, 3, 4, 5, 2, 0, 1, 2, 3, 4]
    assert step.slot_mapping.tolist() == [20, 21, 22, 23, 200, 201, 38, 12, 13, 14, 15, 396]
    assert step.query_starts.tolist() == [0, 6, 7, 12]
    assert step.sequence_lengths.tolist() == [6, 3, 5]
    assert step.block_tables.tolist() == [[5, 50], [9, -1], [3, 99]]
    assert step.logit_rows.tolist() == [6, 11]
    assert (step.token_ids.dtype, step.positions.dtype, step.slot_mapping.dtype) == (np.int32, np.int32, np.int64)
    assert tokens_of(result) == {"a": 4, "c": 0}


def test_a_prompt_in_chunks_is_sampled_at_its_end_only() -> None:
    worker, program = worker_with()
    prompt = [2, 3, 5, 7, 11, 13, 1, 4, 9]
    results = [worker.run(StepPlan(new=[new("a", prompt)], scheduled=[ScheduledRequest("a", 4, [1])]))]
    results += [worker.run(StepPlan(scheduled=[ScheduledRequest("a", count, blocks)])) for count, blocks in ((1, [8]), (3, []), (1, [0]))]
    assert [tokens_of(result) for result in results] == [{}, {}, {}, {"a": 10}]
    assert [step.logit_rows.tolist() for step in program.steps] == [[], [], [], [0]]
    assert [token for step in program.steps for token in step.token_ids.tolist()] == prompt


def test_removal_comes_first_then_the_new_then_copies_then_the_step() -> None:
    """An id may leave and come back in one plan, as after a preemption."""
    worker, program = worker_with()
    worker.run(StepPlan(new=[new("a", [1]), new("b", [2])], scheduled=[ScheduledRequest("a", 1, [0]), ScheduledRequest("b", 1, [1])]))
    program.events.clear()
    copies = [(0, 5, 4), (1, 6, 3)]
    plan = StepPlan(
        removed=["a"],
        new=[new("a", [9, 10])],
        scheduled=[ScheduledRequest("a", 2, [4]), ScheduledRequest("b", 1, [])],
        copies=copies,
    )
    assert tokens_of(worker.run(plan)) == {"a": 11, "b": 4}
    assert program.events == [("copy", [(0, 5, 4), (1, 6, 3)]), "run"]
    assert program.steps[-1].block_tables.tolist() == [[4], [1]]
    assert worker.num_requests == 2


def test_a_plan_that_only_removes() -> None:
    worker, program = worker_with()
    worker.run(StepPlan(new=[new("a", [1])], scheduled=[ScheduledRequest("a", 1, [0])]))
    program.events.clear()
    for plan in (StepPlan(removed=["a"]), StepPlan(), StepPlan(copies=[(1, 2, 4)])):
        result = worker.run(plan)
        assert (result.sampled, result.failed) == ([], {})
    assert program.events == [("copy", [(1, 2, 4)])]
    assert worker.num_requests == 0


@pytest.mark.parametrize(("bad", "reason"), [(np.nan, "NaN"), (np.inf, "inf")])
def test_logits_that_are_not_numbers_fail_one_request(bad: float, reason: str) -> None:
    def logits(token: int, position: int) -> np.ndarray[Any, Any]:
        row = count_up(token, position)
        if token == 13:
            row[2] = bad
        return row

    worker, _ = worker_with(logits)
    names = {"a": 1, "sick": 13, "b": 4}
    plan = StepPlan(
        new=[new(name, [token]) for name, token in names.items()],
        scheduled=[ScheduledRequest(name, 1, [index]) for index, name in enumerate(names)],
    )
    result = worker.run(plan)
    assert tokens_of(result) == {"a": 2, "b": 5}
    assert list(result.failed) == ["sick"]
    assert reason in result.failed["sick"]
    after = worker.run(StepPlan(removed=["sick"], scheduled=[ScheduledRequest("a", 1, []), ScheduledRequest("b", 1, [])]))
    assert tokens_of(after) == {"a": 3, "b": 6}
    assert after.failed == {}


def test_a_request_needs_a_seed() -> None:
    worker, _ = worker_with()
    with pytest.raises(ValueError, match="request a reached the worker without a seed"):
        worker.run(StepPlan(new=[new("a", [1], seed=None)], scheduled=[ScheduledRequest("a", 1, [0])]))


def flat(token: int, position: int) -> np.ndarray[Any, Any]:
    """Nearly level, so that penalties and draws decide."""
    return (np.sin(np.arange(VOCAB) * 1.7 + position) * 0.3).astype(np.float32)


PENALTIES: list[dict[str, Any]] = [
    {"presence_penalty": 1.5},
    {"frequency_penalty": 0.7},
    {"repetition_penalty": 1.8},
    {"presence_penalty": 0.4, "frequency_penalty": 0.3, "repetition_penalty": 1.3, "temperature": 1.1, "seed": 99},
    {"temperature": 1.5, "seed": 3, "top_p": 0.8},
    {"min_tokens": 6, "stop_token_ids": [2, 3], "temperature": 1.0, "seed": 5},
]


def run_from(tokens: list[int], prompt: int, count: int, sampling: dict[str, Any]) -> tuple[list[int], list[Any]]:
    """Samples until the sequence has `count` tokens, from a fresh worker that computes all of `tokens` first."""
    worker, _ = worker_with(flat)
    share = ScheduledRequest("a", len(tokens), list(range(20)))
    result = worker.run(StepPlan(new=[new("a", tokens, prompt=prompt, logprobs=2, **sampling)], scheduled=[share]))
    sequence, logprobs = [*tokens], []
    while True:
        sequence.append(result.sampled[0].token_id)
        logprobs.append(result.sampled[0].logprobs)
        if len(sequence) == count:
            return sequence, logprobs
        result = worker.run(StepPlan(scheduled=[ScheduledRequest("a", 1, [])]))


@pytest.mark.parametrize("sampling", PENALTIES)
def test_a_resumed_request_goes_on_as_if_it_had_never_left(sampling: dict[str, Any]) -> None:
    """Outputs that come back with a NewRequest count as outputs, not as prompt."""
    prompt = [4, 4, 9, 1]
    whole, logprobs = run_from(prompt, 4, 30, sampling)
    for length in (5, 6, 17, 29):
        again, tail = run_from(whole[:length], 4, 30, sampling)
        assert again == whole
        assert tail == logprobs[length - 4 :]
    if set(sampling) & {"presence_penalty", "frequency_penalty"}:
        # Were outputs taken for prompt, something would change.
        assert run_from(whole[:17], 17, 30, sampling)[0] != whole


def test_a_request_resumed_in_chunks_samples_once() -> None:
    worker, program = worker_with()
    request = new("a", [1, 2, 3, 4, 5, 6], prompt=2, presence_penalty=1.0)
    first = worker.run(StepPlan(new=[request], scheduled=[ScheduledRequest("a", 4, [1])]))
    second = worker.run(StepPlan(scheduled=[ScheduledRequest("a", 2, [2])]))
    assert (tokens_of(first), tokens_of(second)) == ({}, {"a": 7})
    assert program.steps[1].positions.tolist() == [4, 5]


def test_tokens_that_are_in_the_cache_already_are_not_computed_again() -> None:
    worker, program = worker_with()
    request = new("a", [1, 2, 3, 4, 5, 6], computed=4)
    assert tokens_of(worker.run(StepPlan(new=[request], scheduled=[ScheduledRequest("a", 2, [30, 31])]))) == {"a": 7}
    step = program.steps[0]
    assert step.token_ids.tolist() == [5, 6]
    assert step.positions.tolist() == [4, 5]
    assert step.slot_mapping.tolist() == [31 * BLOCK, 31 * BLOCK + 1]
    assert step.block_tables.tolist() == [[30, 31]]
    assert step.sequence_lengths.tolist() == [6]


@settings(max_examples=50)
@given(st.lists(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=40), max_size=12))
def test_growing_array(pieces: list[list[int]]) -> None:
    array = GrowingArray(pieces[0] if pieces else [])
    wanted = list(pieces[0]) if pieces else []
    for piece in pieces[1:]:
        before = array.view.copy()
        array.extend(piece)
        wanted += piece
        assert array.view[: len(before)].tolist() == before.tolist()
        assert len(array) == len(wanted)
    assert array.view.tolist() == wanted
    assert array.view.dtype == np.int32


def test_a_token_that_is_in_the_cache_is_computed_and_not_written() -> None:
    worker, program = worker_with()
    request = new("a", [1, 2, 3, 4, 5, 6], computed=5)
    assert tokens_of(worker.run(StepPlan(new=[request], scheduled=[ScheduledRequest("a", 1, [30, 31], num_cached=1)]))) == {"a": 7}
    step = program.steps[0]
    assert (step.token_ids.tolist(), step.positions.tolist(), step.slot_mapping.tolist()) == ([6], [5], [-1])
    assert (step.block_tables.tolist(), step.sequence_lengths.tolist()) == ([[30, 31]], [6])
    worker.run(StepPlan(scheduled=[ScheduledRequest("a", 1, [])]))
    assert program.steps[1].slot_mapping.tolist() == [31 * BLOCK + 2]


def test_of_several_tokens_the_first_are_not_written() -> None:
    worker, program = worker_with()
    shares = [ScheduledRequest("a", 7, [5, 6, 7], num_cached=3), ScheduledRequest("b", 2, [8, 9])]
    worker.run(StepPlan(new=[new("a", list(range(9)), computed=2), new("b", [1, 2, 3, 4, 5], computed=3)], scheduled=shares))
    assert program.steps[0].slot_mapping.tolist() == [-1, -1, -1, 25, 26, 27, 28, 35, 36]


def test_blocks_are_replaced_before_others_are_appended() -> None:
    worker, program = worker_with()
    worker.run(StepPlan(new=[new("a", list(range(8)))], scheduled=[ScheduledRequest("a", 8, [10, 11])]))
    share = ScheduledRequest("a", 1, [12], replaced_blocks=[(0, 20), (1, 21)])
    worker.run(StepPlan(scheduled=[share], copies=[(11, 21, 3)]))
    assert program.events[-2:] == [("copy", [(11, 21, 3)]), "run"]
    assert program.steps[1].block_tables.tolist() == [[20, 21, 12]]
    assert program.steps[1].slot_mapping.tolist() == [12 * BLOCK]
