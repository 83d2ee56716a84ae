"""Whole models on the CPU backend: their roundings and nothing else, and the same bits whatever runs beside a request."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from cpu_emulation import Emulation
from cpu_models import Config, Model, Sequence, advance, in_random_steps, place, random_tokens, step_of

from octavo.backends.reference.backend import ReferenceBackend

native = pytest.importorskip("octavo._native", reason="Octavo was installed without a C++ compiler")

Array = np.ndarray[Any, Any]
ISAS = native.available_isas()
CONFIGS = {
    "Q4_0": Config("Q4_0", 64, heads=4, kv_heads=4, head_dim=16, intermediate=96, vocabulary=101),
    "Q4_1": Config("Q4_1", 128, heads=8, kv_heads=2, head_dim=32, intermediate=160, vocabulary=130),
    "Q5_0": Config("Q5_0", 160, heads=2, kv_heads=2, head_dim=128, intermediate=96, bias=True),
    "Q8_0": Config("Q8_0", 96, heads=7, kv_heads=1, head_dim=64, intermediate=64, window=20),
    "Q4_K": Config("Q4_K", 256, heads=4, kv_heads=2, head_dim=64, intermediate=256, vocabulary=80),
    "IQ4_NL": Config("IQ4_NL", 64, heads=4, kv_heads=2, head_dim=16, intermediate=96, vocabulary=80),
    "Q6_K": Config("Q6_K", 256, heads=4, kv_heads=2, head_dim=64, intermediate=256, vocabulary=80),
    "BF16": Config("BF16", 72, heads=3, kv_heads=1, head_dim=24, intermediate=56, bias=True),
    "F16": Config("F16", 64, heads=9, kv_heads=1, head_dim=80, intermediate=40),
    "F32": Config("F32", 50, heads=9, kv_heads=3, head_dim=18, intermediate=33, window=7),
    "gemma": Config("BF16", 64, heads=4, kv_heads=2, head_dim=32, intermediate=72, vocabulary=83, layers=4, window=18, gemma=True),
    "gemma-Q8_0": Config("Q8_0", 64, heads=4, kv_heads=1, head_dim=24, intermediate=96, layers=3, window=40, bias=True, gemma=True),
    "mixed": Config(
        "Q4_0",
        96,
        heads=6,
        kv_heads=2,
        head_dim=48,
        intermediate=64,
        kinds={"k": "Q8_0", "v": "BF16", "o": "F32", "gate": "Q4_1", "up": "Q8_0", "down": "BF16", "head": "F16", "embed": "F32"},
    ),
}
LENGTHS = [1, 2, 15, 16, 17, 33, 300]
BLOCKS = 64
TYPES = ["float32", "bfloat16", "float16", "int8", "fp8"]


@cache
def model_of(name: str) -> Model:
    return Model(CONFIGS[name])


@cache
def expectations(name: str) -> tuple[list[Array], list[Array], list[Array]]:
    """Tokens, and their logits with the backend's roundings and in float32."""
    model = model_of(name)
    tokens = random_tokens(LENGTHS, model.config.vocabulary)
    emulation = Emulation(model.graph, model.weights)
    reference = ReferenceBackend().compile(model.graph, model.weights.__getitem__, lambda done: None)
    reference.allocate_kv_cache(BLOCKS, 16)
    sequences = place(tokens, random.Random(0), BLOCKS)
    plain = advance(reference, [(sequence, len(sequence.token_ids)) for sequence in sequences])  # type: ignore[arg-type]
    reference.close()
    return tokens, [emulation.logits(each) for each in tokens], plain


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", list(CONFIGS))
def test_logits_are_rounded_as_the_format_says(name: str, isa: str) -> None:
    """A sum in another order may tip a rounding of an activation, and that many others, so logits are not equal to their last bits. But on
    the whole the roundings explain what float32 lacks: taking them away would leave a difference several times as large."""
    tokens, rounded, plain = expectations(name)
    program = model_of(name).compile(isa, blocks=BLOCKS)
    given = np.concatenate(in_random_steps(program, place(tokens, random.Random(1), BLOCKS), random.Random(2), 100))
    program.close()
    unit = np.concatenate(plain).std()
    difference = np.abs(given - np.concatenate(rounded)) / unit
    explained = np.abs(np.concatenate(plain) - np.concatenate(rounded)) / unit
    assert explained.mean() > 1e-3
    assert difference.mean() < 0.5 * explained.mean()
    assert difference.max() < 0.15


@cache
def alone(name: str, isa: str, block_size: int, dtype: str) -> list[bytes]:
    """Each sequence by itself, in one step, on one thread."""
    program = model_of(name).compile(isa, threads=1, blocks=BLOCKS, block_size=block_size, kv_cache_dtype=dtype)
    tokens = random_tokens(LENGTHS, CONFIGS[name].vocabulary)
    result = [advance(program, [(Sequence(each, list(range(BLOCKS))), len(each))], block_size)[0].tobytes() for each in tokens]
    program.close()
    return result


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    ("name", "block_size", "dtype"),
    [
        *[("Q4_1", 16, "auto"), ("Q8_0", 32, "auto"), ("BF16", 16, "auto"), ("F16", 64, "auto"), ("mixed", 16, "auto")],
        *[("BF16", 32, "float32"), ("F16", 16, "float16"), ("Q4_1", 64, "int8"), ("BF16", 16, "int8"), ("Q8_0", 16, "fp8")],
        *[("F32", 16, "int8"), ("F32", 32, "fp8"), ("gemma", 16, "auto"), ("gemma-Q8_0", 32, "int8")],
    ],
)
def test_bits_depend_on_the_request_alone(name: str, block_size: int, dtype: str, isa: str) -> None:
    """Chunks, batches, threads, the places of blocks, what they held before."""
    made = random.Random(name)
    tokens = random_tokens(LENGTHS, CONFIGS[name].vocabulary)
    for threads, most in ((1, 7), (2, 300), (3, 40), (4, 1)):
        program = model_of(name).compile(isa, threads=threads, blocks=BLOCKS, block_size=block_size, kv_cache_dtype=dtype)
        few = [index for index, each in enumerate(tokens) if most > 1 or len(each) < 40]
        sequences = place([tokens[index] for index in few], made, BLOCKS, block_size)
        given = in_random_steps(program, sequences, made, most, block_size)
        # And once more, in blocks that hold what the first left there.
        again = in_random_steps(program, place([tokens[index] for index in few], made, BLOCKS, block_size), made, most, block_size)
        program.close()
        wanted = [alone(name, isa, block_size, dtype)[index] for index in few]
        assert [each.tobytes() for each in given] == wanted
        assert [each.tobytes() for each in again] == wanted


def families(block_size: int, vocabulary: int) -> list[Sequence]:
    """Nine sequences with the same first 576 tokens, four with the same 320, and one alone, each with a tail of its own."""
    made = np.random.default_rng(4)
    sequences, block = [], 0
    for count, length in ((9, 576), (4, 320), (1, 0)):
        prefix = made.integers(0, vocabulary, length)
        shared = list(range(block, block + length // block_size))
        block += len(shared)
        for index in range(count):
            tail = made.integers(0, vocabulary, 3 + 30 * index)
            own = list(range(block, block - -len(tail) // block_size + 1))
            block += len(own)
            sequences.append(Sequence(np.concatenate([prefix, tail]), shared + own))
    return sequences


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    ("name", "block_size", "dtype"), [("Q4_1", 16, "auto"), ("BF16", 64, "int8"), ("F16", 32, "fp8"), ("Q8_0", 16, "float32")]
)
def test_blocks_that_sequences_share_are_read_together(name: str, block_size: int, dtype: str, isa: str) -> None:
    """By itself, but for a window, which Q8_0 sees, and more heads to a KV head than a tile has rows, as F16 has: the same bits as when
    each reads them for itself, on any number of threads."""
    given = []
    for threads, share in ((1, False), (1, True), (2, True)):
        program = model_of(name).compile(isa, threads=threads, blocks=700, block_size=block_size, kv_cache_dtype=dtype)
        if not share:
            program._native.share_prefixes(False)
        reads = 0
        sequences = families(block_size, CONFIGS[name].vocabulary)
        bits: list[list[bytes]] = [[] for _ in sequences]
        places = {id(sequence): index for index, sequence in enumerate(sequences)}
        for first in (0, 9, 13):
            # The first of a family computes what all share.
            advance(program, [(sequences[first], len(sequences[first].token_ids) - 1)], block_size)
        for index, sequence in enumerate(sequences):
            sequence.done = sequence.done or (576 if index < 9 else 320)
        while chunks := [(each, 1) for each in sequences if each.done < len(each.token_ids)]:
            outputs = advance(program, chunks, block_size)
            reads += program._native.shared_reads()
            for (sequence, _), output in zip(chunks, outputs, strict=True):
                bits[places[id(sequence)]].append(output.tobytes())
            if ahead := [(each, 60) for each, _ in chunks if each.done + 60 < len(each.token_ids)]:
                advance(program, ahead, block_size)
        program.close()
        given.append(bits)
        if threads == 1:
            assert (reads > 0) == (share and name in ("Q4_1", "BF16"))
    assert given[1] == given[0]
    assert given[2] == given[0]


@pytest.mark.parametrize("isa", ISAS)
def test_wanted_rows_are_the_same_bits_as_among_all(isa: str) -> None:
    """Whatever rows of a step want logits, in whatever order, even none."""
    program = model_of("Q4_1").compile(isa, threads=2)
    tokens = random_tokens([20, 9], CONFIGS["Q4_1"].vocabulary)
    sequences = place(tokens, random.Random(3), BLOCKS)
    step = step_of([(sequences[0], 20), (sequences[1], 9)])
    every = program.run(step).copy()
    for rows in ([28], [0], [28, 19], [3, 3, 7], []):
        chosen = program.run(replace(step, logit_rows=np.array(rows, np.int32)))
        assert chosen.shape == (len(rows), CONFIGS["Q4_1"].vocabulary)
        assert np.array_equal(chosen, every[rows])
    program.close()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("window", [None, 1, 100, 256, 400])
@pytest.mark.parametrize("shape", [(1, 1, 16), (4, 1, 64), (9, 3, 24), (2, 2, 128)])
def test_long_contexts(shape: tuple[int, int, int], window: int | None, isa: str) -> None:
    """Many partitions of keys, shared out over threads or not: one token at the end of a long context, and a chunk of several."""
    heads, kv_heads, head_dim = shape
    model = Model(Config("BF16", 32, heads, kv_heads, head_dim, 32, layers=1, window=window))
    (tokens,) = random_tokens([1100], model.config.vocabulary)
    wanted = Emulation(model.graph, model.weights).logits(tokens)
    unit = wanted.std()
    bits = []
    for threads in (1, 2, 3):
        program = model.compile(isa, threads=threads, blocks=80)
        sequence = place([tokens], random.Random(threads), 80)[0]
        given = [advance(program, [(sequence, 1000)])[0], *(advance(program, [(sequence, 1)])[0] for _ in range(40))]
        given.append(advance(program, [(sequence, 60)])[0])
        program.close()
        difference = np.abs(np.concatenate(given) - wanted) / unit
        assert difference.mean() < 3e-3
        assert difference.max() < 0.1
        bits.append(np.concatenate(given).tobytes())
    assert len(set(bits)) == 1


@pytest.mark.parametrize("isa", ISAS)
def test_contexts_of_several_spans_of_partitions(isa: str) -> None:
    """So long that threads take whole spans, whose partitions are merged before they are handed on, and single partitions at the end."""
    model = Model(Config("BF16", 32, 9, 3, 24, 32, layers=1))
    (tokens,) = random_tokens([2603], model.config.vocabulary)
    wanted = Emulation(model.graph, model.weights).logits(tokens)[2600:]
    bits = []
    for threads in (1, 2, 3):
        program = model.compile(isa, threads=threads, blocks=170)
        sequence = place([tokens], random.Random(threads), 170)[0]
        for _ in range(4):
            advance(program, [(sequence, 650)])
        given = np.concatenate([advance(program, [(sequence, 1)])[0] for _ in range(3)])
        program.close()
        assert np.abs(given - wanted).max() < 0.1 * wanted.std()
        bits.append(given.tobytes())
    assert len(set(bits)) == 1


@cache
def emulated(shape: tuple[int, int, int], dtype: str) -> Array:
    model, tokens = long_model(shape)
    return Emulation(model.graph, model.weights, dtype).logits(tokens)


@cache
def long_model(shape: tuple[int, int, int]) -> tuple[Model, Array]:
    model = Model(Config("BF16", 32, *shape, 32, layers=1))
    return model, random_tokens([700], model.config.vocabulary)[0]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", [(4, 1, 64), (9, 3, 24), (2, 2, 128)])
def test_every_type_of_cache_rounds_as_it_is_defined(shape: tuple[int, int, int], dtype: str, isa: str) -> None:
    """Two contexts at once, in chunks that share partitions out over threads or don't."""
    model, tokens = long_model(shape)
    wanted = emulated(shape, dtype)
    unit = wanted.std()
    bits = []
    for threads in (1, 3):
        program = model.compile(isa, threads=threads, blocks=100, kv_cache_dtype=dtype)
        assert program.kv_cache_dtype == dtype
        sequences = place([tokens, tokens], random.Random(threads), 100)
        given = [advance(program, [(sequences[0], 640)])[0], *(advance(program, [(sequences[0], 1)])[0] for _ in range(20))]
        given.append(advance(program, [(sequences[1], 333), (sequences[0], 40)])[1])
        assert np.array_equal(advance(program, [(sequences[1], 367)])[0], np.concatenate(given)[333:])
        program.close()
        bits.append(np.concatenate(given).tobytes())
        difference = np.abs(np.concatenate(given) - wanted) / unit
        assert difference.mean() < 3e-3
        assert difference.max() < 0.1
        if dtype in ("int8", "fp8"):
            assert difference.mean() < np.abs(np.concatenate(given) - emulated(shape, "float32")).mean() / unit
    assert len(set(bits)) == 1


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", TYPES)
def test_a_block_s_bytes_are_all_that_it_holds(dtype: str, isa: str) -> None:
    """Written into other blocks, also those of another program; and the same on another instruction set but for its roundings."""
    model = model_of("BF16")
    (tokens,) = random_tokens([50], model.config.vocabulary)
    first = Sequence(tokens, [5, 9, 2, 7])
    program = model.compile(isa, kv_cache_dtype=dtype)
    wanted = advance(program, [(first, 50)])[0][-1]
    kept = [program.read_block(block) for block in first.blocks]
    assert {len(content) for content in kept} == {program.kv_bytes_per_block(16)}
    for wrong, error in ((kept[0][:-1], "bytes"), (b"", "bytes")):
        with pytest.raises(ValueError, match=error):
            program.write_block(1, wrong)
    for block in (-1, BLOCKS):
        with pytest.raises(ValueError, match="out of range"):
            program.read_block(block)
        with pytest.raises(ValueError, match="out of range"):
            program.write_block(block, kept[0])
    program.close()
    for other in ISAS:
        program = model.compile(other, kv_cache_dtype=dtype)
        for block, content in zip([60, 3, 4, 33], kept, strict=True):
            program.write_block(block, content)
            assert program.read_block(block) == content
        given = advance(program, [(Sequence(tokens, [60, 3, 4, 33], done=49), 1)])[0][0]
        program.close()
        if other == isa:
            assert np.array_equal(given, wanted)
        np.testing.assert_allclose(given, wanted, atol=0.05 * wanted.std())


@pytest.mark.parametrize("isa", ISAS)
def test_tokens_in_the_cache_already_are_computed_and_not_written(isa: str) -> None:
    """The same bits as a step that writes them, whether a prompt's or one at a time; and what lies in the cache is what counts."""
    model = model_of("Q4_1")
    tokens = random_tokens([40, 21], model.config.vocabulary)
    sequences = place(tokens, random.Random(6), BLOCKS)
    step = step_of([(sequences[0], 40), (sequences[1], 21)])
    sequences[0].done, sequences[1].done = 39, 20
    last = step_of([(sequences[0], 1), (sequences[1], 1)])
    for threads in (1, 3):
        program = model.compile(isa, threads=threads, blocks=BLOCKS)
        wanted, single = program.run(step).tobytes(), program.run(last).tobytes()
        for cached in (np.arange(61) >= 0, (np.arange(61) % 40) < 18, np.arange(61) >= 40):
            assert program.run(replace(step, slot_mapping=np.where(cached, -1, step.slot_mapping))).tobytes() == wanted
        for cached in (np.array([True, True]), np.array([False, True])):
            assert program.run(replace(last, slot_mapping=np.where(cached, -1, last.slot_mapping))).tobytes() == single
        # Another token in the last one's place finds the key and value of the one that was written.
        other = replace(last, token_ids=last.token_ids + 1)
        assert program.run(replace(other, slot_mapping=np.array([-1, -1]))).tobytes() != program.run(other).tobytes()
        program.close()
