"""Paged attention: equal to the definition, and the same bits however it is cut, batched, placed and threaded."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sequences import Array, Runner, Sequence, Shape, as_stored, dense, random_sequence

from octavo.backends.reference.kv_cache import FORMATS

shapes = st.builds(
    Shape,
    kv_heads=st.integers(1, 3),
    group=st.sampled_from([1, 3, 4, 20]),
    head_dim=st.sampled_from([2, 8, 16, 20]),
    window=st.one_of(st.none(), st.integers(1, 300)),
)
block_sizes = st.sampled_from([1, 2, 16, 64, 256])
types = st.sampled_from(list(FORMATS))
lengths = st.lists(st.one_of(st.integers(1, 20), st.integers(1, 300)), min_size=1, max_size=4)


def place(made: random.Random, sequences: list[Sequence], block_size: int, spare: int = 3) -> int:
    """Scatters each sequence over blocks; returns how many blocks there must be."""
    needed = [-(-len(sequence) // block_size) for sequence in sequences]
    ids = list(range(sum(needed) + spare))
    made.shuffle(ids)
    for sequence, count in zip(sequences, needed, strict=True):
        sequence.blocks = [ids.pop() for _ in range(count)]
    return sum(needed) + spare


def in_chunks(made: random.Random, runner: Runner, sequences: list[Sequence], most: int) -> list[Array]:
    """Runs all sequences to their end, in steps of random chunks of some of them."""
    done = [0] * len(sequences)
    parts: list[list[Array]] = [[] for _ in sequences]
    while True:
        open_ = [index for index, sequence in enumerate(sequences) if done[index] < len(sequence)]
        if not open_:
            return [np.concatenate(part) for part in parts]
        made.shuffle(open_)
        chosen = open_[: made.randint(1, len(open_))]
        chunks = [(index, done[index], min(len(sequences[index]), done[index] + made.randint(1, most))) for index in chosen]
        for (index, _, last), output in zip(chunks, runner.step(chunks), strict=True):
            parts[index].append(output)
            done[index] = last


@settings(max_examples=25)
@given(shapes, block_sizes, lengths, st.integers(0, 2**32 - 1), types)
def test_attention_is_its_definition(shape: Shape, block_size: int, counts: list[int], seed: int, dtype: str) -> None:
    """Over keys and values as the cache's type rounds them, with NaN and infinities wherever no token of these sequences was written."""
    made = random.Random(seed)
    sequences = [random_sequence(seed + index, count, shape) for index, count in enumerate(counts)]
    threads = made.choice([1, 2, 3])
    runner = Runner(sequences, shape, block_size, place(made, sequences, block_size), threads=threads, kv_cache_dtype=dtype)
    runner.spoil(seed)
    for sequence, output in zip(sequences, in_chunks(made, runner, sequences, most=200), strict=True):
        np.testing.assert_allclose(output, dense(as_stored(sequence, shape, dtype), shape), rtol=2e-5, atol=2e-5)
    runner.close()


@settings(max_examples=25)
@given(shapes, block_sizes, lengths, st.integers(0, 2**32 - 1), st.sampled_from([None, 1, 4, 8]), types)
def test_bits_do_not_depend_on_anything_else(
    shape: Shape, block_size: int, counts: list[int], seed: int, tile: int | None, dtype: str
) -> None:
    """Chunks, batches, block ids, garbage, threads; each height of tiles against itself. None is the height that was measured."""
    made = random.Random(seed)
    sequences = [random_sequence(seed + index, count, shape) for index, count in enumerate(counts)]
    alone = []
    for sequence in sequences:
        runner = Runner([sequence], shape, block_size, place(made, [sequence], block_size, spare=0), tile=tile, kv_cache_dtype=dtype)
        alone.append(runner.step([(0, 0, len(sequence))])[0].tobytes())
    for threads, most in ((1, 300), (2, 40), (3, 7)):
        count = place(made, sequences, block_size)
        runner = Runner(sequences, shape, block_size, count, threads=threads, tile=tile, kv_cache_dtype=dtype)
        runner.spoil(seed)
        assert [output.tobytes() for output in in_chunks(made, runner, sequences, most)] == alone
        runner.close()


@pytest.mark.parametrize("block_size", [1, 16, 256])
@pytest.mark.parametrize("window", [1, 5, 128, 129, 299, 300, 10_000])
def test_windows_at_the_edges_of_blocks_and_partitions(block_size: int, window: int) -> None:
    shape = Shape(kv_heads=1, group=2, head_dim=8, window=window)
    sequence = random_sequence(window, 300, shape)
    runner = Runner([sequence], shape, block_size, place(random.Random(window), [sequence], block_size))
    output = in_chunks(random.Random(window), runner, [sequence], 90)[0]
    np.testing.assert_allclose(output, dense(sequence, shape), rtol=2e-5, atol=2e-5)


def test_a_window_of_one_gives_the_token_s_own_value() -> None:
    shape = Shape(kv_heads=2, group=1, head_dim=4, window=1)
    sequence = random_sequence(1, 40, shape)
    runner = Runner([sequence], shape, 16, place(random.Random(1), [sequence], 16))
    assert runner.step([(0, 0, 40)])[0].tobytes() == sequence.value.tobytes()


def test_a_window_as_long_as_the_sequence_is_none() -> None:
    wide, full = (Shape(kv_heads=1, group=3, head_dim=8, window=window) for window in (150, None))
    sequence = random_sequence(2, 150, full)
    outputs = []
    for shape in (wide, full):
        runner = Runner([sequence], shape, 16, place(random.Random(3), [sequence], 16))
        outputs.append(runner.step([(0, 0, 150)])[0].tobytes())
    assert outputs[0] == outputs[1]


def test_scores_of_any_size_stay_finite() -> None:
    """The softmax is anchored at its highest score."""
    shape = Shape(kv_heads=1, group=1, head_dim=8)
    sequence = random_sequence(4, 200, shape)
    sequence.query *= np.float32(1e4)
    runner = Runner([sequence], shape, 16, place(random.Random(4), [sequence], 16))
    np.testing.assert_allclose(runner.step([(0, 0, 200)])[0], dense(sequence, shape), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("dtype", list(FORMATS))
@pytest.mark.parametrize("threads", [1, 2])
def test_a_sequence_of_nan_and_infinity_harms_no_other(threads: int, dtype: str) -> None:
    shape = Shape(kv_heads=2, group=3, head_dim=8)
    sound, sick = random_sequence(5, 140, shape), random_sequence(6, 140, shape)
    count = place(random.Random(5), [sound, sick], 16)
    wanted = Runner([sound], shape, 16, count, kv_cache_dtype=dtype).step([(0, 0, 140)])[0].tobytes()
    sick.query[3] = np.nan
    sick.key[5] = np.inf
    sick.value[7] = 3e38
    sick.query[90] = 3e38
    runner = Runner([sick, sound], shape, 16, count, threads=threads, kv_cache_dtype=dtype)
    outputs = runner.step([(0, 0, 140), (1, 0, 140)])
    assert outputs[1].tobytes() == wanted
    assert np.isnan(outputs[0][3]).all()


@pytest.mark.parametrize("dtype", list(FORMATS))
@pytest.mark.parametrize("window", [None, 40])
def test_tokens_before_a_nan_are_as_if_it_had_never_been(window: int | None, dtype: str) -> None:
    """In the same tile and the same step; a window that has left it behind too."""
    shape = Shape(kv_heads=2, group=3, head_dim=8, window=window)
    sound = random_sequence(5, 200, shape)
    sick = Sequence(sound.query.copy(), sound.key.copy(), sound.value.copy())
    sick.key[90, 3] = sick.value[91, 9] = np.nan
    outputs = []
    for sequence in (sound, sick):
        runner = Runner([sequence], shape, 16, place(random.Random(5), [sequence], 16), kv_cache_dtype=dtype)
        outputs.append(runner.step([(0, 0, 200)])[0])
    assert outputs[1][:90].tobytes() == outputs[0][:90].tobytes()
    assert np.isnan(outputs[1][91]).any()
    if window is not None:
        assert outputs[1][91 + window :].tobytes() == outputs[0][91 + window :].tobytes()


@pytest.mark.parametrize("dtype", list(FORMATS))
def test_copied_blocks_hold_the_same_bits(dtype: str) -> None:
    shape = Shape(kv_heads=2, group=2, head_dim=8)
    sequence = random_sequence(8, 50, shape)
    sequence.blocks = [5, 0, 9, 3]
    runner = Runner([sequence], shape, 16, 12, kv_cache_dtype=dtype)
    wanted = runner.step([(0, 0, 50)])[0]
    runner.spoil(8)
    runner.step([(0, 0, 49)])
    others = [array[7].tobytes() for array in runner.arrays]
    runner.program.copy_blocks([(5, 1, 16), (3, 4, 2), (9, 11, 16)])
    for array in runner.arrays:
        assert array[1].tobytes() == array[5].tobytes()
        assert array[4, :2].tobytes() == array[3, :2].tobytes()
        assert not array[4, 2:].any()
    sequence.blocks = [1, 0, 11, 4]
    assert runner.step([(0, 49, 50)])[0].tobytes() == wanted[49:].tobytes()
    assert [array[7].tobytes() for array in runner.arrays] == others


def test_cached_tokens_are_computed_and_not_written() -> None:
    """The same bits as a step that writes them; and what lies in the cache is what counts."""
    shape = Shape(kv_heads=2, group=2, head_dim=8)
    sequence, other = random_sequence(8, 50, shape), random_sequence(9, 20, shape)
    count = place(random.Random(8), [sequence, other], 16)
    runner = Runner([sequence, other], shape, 16, count)
    wanted = [output.tobytes() for output in runner.step([(0, 0, 50), (1, 0, 20)])]
    before = [array.tobytes() for array in runner.arrays]
    for unwritten in (lambda row: True, lambda row: row % 50 < 18, lambda row: row < 50):
        assert [output.tobytes() for output in runner.step([(0, 0, 50), (1, 0, 20)], unwritten)] == wanted
        assert [array.tobytes() for array in runner.arrays] == before
    runner.spoil(8)
    assert np.isnan(runner.step([(0, 0, 50)], lambda row: row == 0)[0]).all()


def test_copies_run_in_their_order() -> None:
    shape = Shape(kv_heads=1, group=1, head_dim=2)
    runner = Runner([random_sequence(0, 1, shape)], shape, 2, 4)
    for index in range(4):
        runner.arrays[0][index] = index
    runner.program.copy_blocks([(0, 1, 2), (1, 2, 2), (3, 0, 2)])
    assert runner.arrays[0][:, 0, 0, 0].tolist() == [3, 0, 0, 3]


@pytest.mark.parametrize("dtype", list(FORMATS))
def test_a_block_s_bytes_are_all_that_it_holds(dtype: str) -> None:
    shape = Shape(kv_heads=2, group=2, head_dim=8)
    sequence = random_sequence(8, 50, shape)
    sequence.blocks = [5, 0, 9, 3]
    runner = Runner([sequence], shape, 16, 12, kv_cache_dtype=dtype)
    wanted = runner.step([(0, 0, 50)])[0]
    kept = [runner.program.read_block(block) for block in sequence.blocks]
    assert {len(each) for each in kept} == {runner.program.kv_bytes_per_block(16)}
    runner.spoil(8)
    sequence.blocks = [1, 2, 6, 4]
    for block, content in zip(sequence.blocks, kept, strict=True):
        runner.program.write_block(block, content)
        assert runner.program.read_block(block) == content
    assert runner.step([(0, 49, 50)])[0].tobytes() == wanted[49:].tobytes()
    with pytest.raises(ValueError, match="bytes"):
        runner.program.write_block(1, kept[0][:-1])
