"""Numbers that are none, and steps that make no sense: they fail by themselves."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cpu_models import Config, Model, Sequence, advance, in_random_steps, place, random_tokens, step_of

from octavo.backends.base import StepInputs
from octavo.quantization.tensor import CheckpointTensor

native = pytest.importorskip("octavo._native", reason="Octavo was installed without a C++ compiler")

Array = np.ndarray[Any, Any]
ISAS = native.available_isas()
BLOCKS = 40


@pytest.fixture(scope="module", params=["Q4_1", "Q8_0", "BF16"])
def model(request: pytest.FixtureRequest) -> Model:
    """Token 0 is NaN, token 1 infinite, and token 2 as large as bfloat16 can be."""
    made = Model(Config(request.param, 64, heads=4, kv_heads=2, head_dim=32, intermediate=96, kinds={"embed": "F32"}))
    table = made.weights["embed"].data.copy().view(np.float32)
    table[0, 5], table[1, 60], table[2] = np.nan, -np.inf, 3e38
    made.weights["embed"] = CheckpointTensor("embed", "F32", table.shape, table.view(np.uint8))
    return made


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    ("threads", "dtype"),
    [(1, "bfloat16"), (3, "bfloat16"), (1, "float32"), (3, "float16"), (1, "int8"), (3, "int8"), (1, "fp8"), (3, "fp8")],
)
def test_a_request_of_no_numbers_fails_alone(model: Model, isa: str, threads: int, dtype: str) -> None:
    """Beside the others in one batch, and before them in the same blocks."""
    sound = [3 + each % (model.config.vocabulary - 3) for each in random_tokens([1, 10, 17, 100], model.config.vocabulary)]
    program = model.compile(isa, threads=threads, blocks=BLOCKS, kv_cache_dtype=dtype)
    wanted = [each.tobytes() for each in in_random_steps(program, place(sound, random.Random(1), BLOCKS), random.Random(1), 30)]
    broken = [np.where(np.arange(150) % 3 == bad, bad, 4) for bad in (0, 1)]
    for bad, each in enumerate(broken):
        sequence = Sequence(each, list(range(BLOCKS)))
        assert not np.any(np.isfinite(advance(program, [(sequence, 150)])[0][bad:]))
    given = in_random_steps(program, place(sound, random.Random(2), BLOCKS), random.Random(2), 30)
    assert [each.tobytes() for each in given] == wanted
    everything = [*sound, *broken]
    given = in_random_steps(program, place(everything, random.Random(3), BLOCKS), random.Random(3), 30)
    assert [each.tobytes() for each in given[: len(sound)]] == wanted
    program.close()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int8", "fp8"])
def test_tokens_before_one_of_no_numbers_are_as_if_it_had_never_been(model: Model, dtype: str, isa: str) -> None:
    """In the same tiles and the same step: what they leave in the cache may be another request's prefix."""
    (tokens,) = (3 + each % (model.config.vocabulary - 3) for each in random_tokens([100], model.config.vocabulary))
    program = model.compile(isa, blocks=BLOCKS, kv_cache_dtype=dtype)
    whole = advance(program, [(Sequence(tokens, list(range(BLOCKS))), 100)])[0]
    for place_of_bad in (1, 16, 55, 97):
        for bad in (0, 1):
            given = advance(program, [(Sequence(np.where(np.arange(100) == place_of_bad, bad, tokens), list(range(BLOCKS))), 100)])[0]
            assert given[:place_of_bad].tobytes() == whole[:place_of_bad].tobytes()
            assert not np.isfinite(given[place_of_bad:]).any()
    program.close()


@pytest.mark.parametrize("isa", ISAS)
def test_a_request_of_huge_numbers_spoils_nobody(model: Model, isa: str) -> None:
    sound = [3 + each % (model.config.vocabulary - 3) for each in random_tokens([30], model.config.vocabulary)]
    program = model.compile(isa, blocks=BLOCKS)
    wanted = advance(program, [(place(sound, random.Random(1), BLOCKS)[0], 30)])[0].tobytes()
    huge, other = place([np.full(50, 2), sound[0]], random.Random(2), BLOCKS)
    assert advance(program, [(huge, 50), (other, 30)])[1].tobytes() == wanted
    program.close()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    ("block_size", "dtype"), [(16, "bfloat16"), (32, "bfloat16"), (16, "float32"), (32, "float16"), (16, "int8"), (32, "fp8")]
)
def test_copied_blocks_hold_what_was_asked_for_alone(model: Model, block_size: int, dtype: str, isa: str) -> None:
    """A second sequence goes on from copies of the first one's tokens, whose others are no numbers, and a third from copies of those."""
    program = model.compile(isa, blocks=BLOCKS, block_size=block_size, kv_cache_dtype=dtype)
    (tokens,) = (3 + each % (model.config.vocabulary - 3) for each in random_tokens([64], model.config.vocabulary))
    whole = advance(program, [(Sequence(tokens, [36, 37, 38, 39]), 64)], block_size)[0]
    source, copied, again = [5, 9, 2, 7], [20, 21, 22, 23], [30, 31, 32, 33]
    for shared in (1, 15, 16, 33, 40, 47, 63):
        advance(program, [(Sequence(np.where(np.arange(64) < shared, tokens, 0), source), 64)], block_size)
        counts = [min(block_size, shared - first) for first in range(0, shared, block_size)]
        program.copy_blocks([(*pair, count) for *pair, count in zip(source, copied, counts, strict=False)])
        program.copy_blocks([(*pair, count) for *pair, count in zip(copied, again, counts, strict=False)])
        for blocks in (copied, again):
            given = advance(program, [(Sequence(tokens, blocks, done=shared), 64 - shared)], block_size)[0]
            assert np.array_equal(given, whole[shared:])
    program.close()


def changed(name: str, value: Any) -> Callable[[StepInputs], StepInputs]:
    return lambda step: replace(step, **{name: value(getattr(step, name).copy())})


def put(place: Any, value: int) -> Callable[[Array], Array]:
    def change(array: Array) -> Array:
        array[place] = value
        return array

    return change


BAD_STEPS = {
    "token id too large": changed("token_ids", put(3, 67)),
    "token id negative": changed("token_ids", put(0, -1)),
    "position too large": changed("positions", put(4, 1 << 30)),
    "position negative": changed("positions", put(0, -1)),
    "positions swapped": changed("positions", lambda x: x[::-1].copy()),
    "slot beyond the cache": changed("slot_mapping", put(0, BLOCKS * 16)),
    "slot negative": changed("slot_mapping", put(0, -5)),
    "slot of another block": changed("slot_mapping", put(0, 0)),
    "slot of none behind others": changed("slot_mapping", put(4, -1)),
    "slot below none": changed("slot_mapping", put(0, -2)),
    "block id too large": changed("block_tables", put((0, 0), BLOCKS)),
    "block id negative": changed("block_tables", put((1, 1), -1)),
    "block id huge": changed("block_tables", put((0, 0), 2**31 - 1)),
    "block table too narrow": changed("block_tables", lambda x: x[:, :1].copy()),
    "block table of no sequence": changed("block_tables", lambda x: x[:0].copy()),
    "length too large": changed("sequence_lengths", put(0, 2**31 - 1)),
    "length too short": changed("sequence_lengths", put(0, 3)),
    "length negative": changed("sequence_lengths", put(0, -7)),
    "length zero": changed("sequence_lengths", put(1, 0)),
    "starts do not begin at 0": changed("query_starts", put(0, 1)),
    "starts do not end": changed("query_starts", put(2, 100)),
    "starts negative": changed("query_starts", put(1, -3)),
    "starts beyond": changed("query_starts", put(1, 1000)),
    "starts empty": changed("query_starts", lambda x: x[:0].copy()),
    "sequence without tokens": changed("query_starts", put(1, 0)),
    "too few sequences": changed("query_starts", lambda x: x[:2].copy()),
    "too few positions": changed("positions", lambda x: x[:-1].copy()),
    "too few slots": changed("slot_mapping", lambda x: x[:-1].copy()),
    "logit row too large": changed("logit_rows", put(0, 30)),
    "logit row negative": changed("logit_rows", put(0, -1)),
    "no tokens": lambda step: replace(
        step,
        token_ids=step.token_ids[:0],
        positions=step.positions[:0],
        slot_mapping=step.slot_mapping[:0],
        query_starts=step.query_starts[:1],
        sequence_lengths=step.sequence_lengths[:0],
        block_tables=step.block_tables[:0],
        logit_rows=step.logit_rows[:0],
    ),
}


def test_steps_that_make_no_sense_are_refused() -> None:
    model = Model(Config("BF16", 32, heads=2, kv_heads=1, head_dim=16, intermediate=32))
    program = model.compile(ISAS[-1], blocks=BLOCKS)
    sequences = place(random_tokens([20, 10], 67), random.Random(4), BLOCKS)
    sequences[0].blocks[:2] = [11, 12]
    sequences[1].blocks[:1] = [13]
    sequences[1].done = 0
    step = step_of([(sequences[0], 20), (sequences[1], 10)])
    step = replace(step, block_tables=np.array([[11, 12], [13, -1]], np.int32))
    wanted = program.run(step).tobytes()
    for name, change in BAD_STEPS.items():
        bad = change(step)
        if name == "block id negative":
            bad = replace(step, block_tables=np.array([[11, -1], [13, -1]], np.int32))
        with pytest.raises(ValueError, match=r"."):
            pytest.fail(f"{name} was taken for {program.run(bad)}")
        assert program.run(step).tobytes() == wanted, name
    program.close()


def test_arrays_of_another_type_are_converted_or_refused() -> None:
    model = Model(Config("BF16", 32, heads=2, kv_heads=1, head_dim=16, intermediate=32))
    program = model.compile(ISAS[-1], blocks=BLOCKS)
    step = step_of([(place(random_tokens([20], 67), random.Random(4), BLOCKS)[0], 20)])
    wanted = program.run(step).tobytes()
    for name in ("token_ids", "positions", "slot_mapping", "query_starts", "sequence_lengths", "block_tables", "logit_rows"):
        array = getattr(step, name)
        for same in (array.astype(np.int16), array.astype(np.uint64), array.repeat(2, axis=-1)[..., ::2]):
            assert program.run(replace(step, **{name: same})).tobytes() == wanted
        for other in (array.astype(str), array[..., None], None):
            with pytest.raises(TypeError):
                program.run(replace(step, **{name: other}))
    program.close()


def test_a_program_without_a_cache_is_refused() -> None:
    program = native.Program(8, 1, [], "")
    table = program.add_linear(2, 8, 4, np.empty(0, np.float32))
    tokens, activations = program.add_floats(4, False), program.add_activations(4, False, False)
    program.embed(table, tokens)
    program.convert(tokens, activations)
    program.product(activations, program.add_floats(8, False), [(table, 0)], False)
    one = np.zeros(1, np.int32)
    with pytest.raises(ValueError, match="cache"):
        program.run(one, one, np.zeros(1, np.int64), np.array([0, 1], np.int32), one + 1, np.zeros((1, 1), np.int32), None, one)


def test_blocks_to_copy_are_checked() -> None:
    model = Model(Config("BF16", 32, heads=2, kv_heads=1, head_dim=16, intermediate=32))
    program = model.compile(ISAS[-1], blocks=BLOCKS)
    for copies in (
        [(0, BLOCKS, 16)],
        [(BLOCKS, 0, 16)],
        [(-1, 0, 16)],
        [(0, -1, 16)],
        [(0, 1, 16), (2, 1 << 40, 16)],
        [(0, 1, 17)],
        [(0, 1, -1)],
    ):
        with pytest.raises(ValueError, match="out of range"):
            program.copy_blocks(copies)
    program.copy_blocks([(0, 0, 16), (0, BLOCKS - 1, 0)])
    program.close()


def test_a_start_beyond_the_tokens_is_seen_before_they_are_read() -> None:
    model = Model(Config("BF16", 32, heads=2, kv_heads=1, head_dim=16, intermediate=32))
    program = model.compile(ISAS[-1], blocks=BLOCKS)
    step = step_of([(place(random_tokens([16], 67), random.Random(4), BLOCKS)[0], 16)])
    bad = replace(
        step,
        query_starts=np.array([0, 600, 16], np.int32),
        sequence_lengths=np.array([600, 1], np.int32),
        block_tables=np.repeat(step.block_tables[:1], 38, axis=1).repeat(2, axis=0),
    )
    with pytest.raises(ValueError, match="query_starts"):
        program.run(bad)
    program.close()


def test_logits_stay_readable_when_a_longer_step_or_close_follows() -> None:
    model = Model(Config("BF16", 32, heads=2, kv_heads=1, head_dim=16, intermediate=32, vocabulary=4099))
    program = model.compile(ISAS[-1], blocks=BLOCKS)
    sequence = place(random_tokens([600], 4099), random.Random(4), BLOCKS)[0]
    short = program.run(step_of([(sequence, 100)]))
    kept = short.copy()
    sequence.done = 100
    long = program.run(step_of([(sequence, 500)]))
    last = long.copy()
    program.close()
    # 100 rows are too few for the 500 of the second step, which therefore took memory of its own.
    assert short.tobytes() == kept.tobytes()
    assert long.tobytes() == last.tobytes()


def test_a_running_program_is_closed_to_other_threads() -> None:
    model = Model(Config("BF16", 256, heads=4, kv_heads=2, head_dim=64, intermediate=512, vocabulary=500, layers=4))
    program = model.compile(ISAS[-1], blocks=256)
    sequence = place(random_tokens([4000], 500), random.Random(4), 256)[0]
    step = replace(step_of([(sequence, 4000)]), logit_rows=np.array([3999], np.int32))
    wanted = program.run(step).tobytes()
    given: list[bytes] = []
    refused: list[str] = []

    def insist() -> None:
        while not given:
            with contextlib.suppress(RuntimeError):  # where the other thread came first
                given.append(program.run(step).tobytes())

    runner = threading.Thread(target=insist)
    runner.start()
    one = step_of([(sequence, 1)])
    while runner.is_alive():
        for ask in (lambda: program.run(one), lambda: program.copy_blocks([]), lambda: program._native.add_floats(1, False)):
            try:
                ask()
            except RuntimeError as error:
                refused.append(str(error))
    runner.join()
    assert refused
    assert all("another thread" in each for each in refused)
    assert given == [wanted]
    program.close()


def test_layers_share_the_room_for_what_attention_gives() -> None:
    """A buffer for each would be the greater part of a long step's memory."""
    counts = []
    for layers in (2, 9):
        model = Model(Config("BF16", 32, heads=2, kv_heads=1, head_dim=16, intermediate=32, layers=layers))
        program = model.compile(ISAS[-1], blocks=BLOCKS)
        counts.append(program._native.add_floats(1, False))
        program.close()
    assert counts[0] == counts[1]


@pytest.mark.skipif(sys.platform != "linux", reason="limits memory as Linux does")
@pytest.mark.skipif("libasan" in os.environ.get("LD_PRELOAD", ""), reason="the address sanitizer needs all of the address space")
def test_threads_that_the_system_refuses_are_named() -> None:
    script = """if True:
        import resource
        from octavo.backends.cpu.backend import CpuBackend
        from octavo.graph.graph import Graph
        import octavo._native
        size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + (256 << 20), resource.RLIM_INFINITY))
        try:
            CpuBackend(1000).compile(Graph(8), lambda name: None, lambda done: None)
        except octavo.protocol.errors.ConfigError as error:
            print(error.param, error.message)
    """
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert result.stdout.startswith("threads threads: 1000 could not be started: "), result.stderr
