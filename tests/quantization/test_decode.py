import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType

from octavo.protocol.errors import ModelLoadError, UnsupportedModelError
from octavo.quantization.decode import decode
from octavo.quantization.kinds import KINDS
from octavo.quantization.tensor import CheckpointTensor

RNG_SEED = 20240607


def raw(kind, shape, data):
    rows = int(np.prod(shape[:-1], dtype=np.int64))
    return CheckpointTensor("w", kind, shape, np.frombuffer(data, np.uint8).reshape(rows, -1))


def random_blocks(rng, blocks, scales, payload):
    """Blocks that begin with sane float16 scales and go on with random bytes."""
    heads = rng.normal(0, 0.05, (blocks, scales)).astype("<f2")
    bodies = rng.integers(0, 256, (blocks, payload), dtype=np.uint8)
    return heads, bodies, np.concatenate([heads.view(np.uint8), bodies], axis=1).tobytes()


def test_q8_0_is_scale_times_int8():
    heads, bodies, data = random_blocks(np.random.default_rng(RNG_SEED), 6, 1, 32)
    got = decode(raw("Q8_0", (2, 96), data)).reshape(6, 32)
    for block in range(6):
        d = np.float32(heads[block, 0])
        for i in range(32):
            q = int(bodies[block, i])
            assert got[block, i] == d * np.float32(q - 256 if q > 127 else q)


def test_q4_0_is_scale_times_nibble_less_eight():
    heads, bodies, data = random_blocks(np.random.default_rng(RNG_SEED), 6, 1, 16)
    got = decode(raw("Q4_0", (3, 64), data)).reshape(6, 32)
    for block in range(6):
        d = np.float32(heads[block, 0])
        for i in range(16):
            byte = int(bodies[block, i])
            assert got[block, i] == d * np.float32((byte % 16) - 8)
            assert got[block, i + 16] == d * np.float32((byte // 16) - 8)


def test_q4_1_is_scale_times_nibble_plus_minimum():
    heads, bodies, data = random_blocks(np.random.default_rng(RNG_SEED), 6, 2, 16)
    got = decode(raw("Q4_1", (3, 64), data)).reshape(6, 32)
    for block in range(6):
        d, m = np.float32(heads[block, 0]), np.float32(heads[block, 1])
        for i in range(16):
            byte = int(bodies[block, i])
            assert got[block, i] == d * np.float32(byte % 16) + m
            assert got[block, i + 16] == d * np.float32(byte // 16) + m


def test_f16_covers_every_bit_pattern():
    bits = np.arange(65536, dtype="<u2")
    got = decode(raw("F16", (256, 256), bits.tobytes())).reshape(-1)
    for i in (0, 1, 0x03FF, 0x0400, 0x3C00, 0x7BFF, 0x7C00, 0x8001, 0xBC00, 0xFBFF, 0xFC00):
        sign, exponent, mantissa = -1.0 if i >> 15 else 1.0, (i >> 10) & 31, i & 1023
        if exponent == 31:
            want = sign * np.inf
        elif exponent:
            want = sign * (1 + mantissa / 1024) * 2.0 ** (exponent - 15)
        else:
            want = sign * mantissa * 2.0**-24
        assert got[i] == want
    assert np.isnan(got[0x7C01])
    assert got.shape == (65536,)


def test_bf16_is_the_upper_half_of_a_float32():
    values = np.random.default_rng(RNG_SEED).normal(size=(4, 5)).astype("<f4")
    upper = values.view("<u4") >> 16
    got = decode(raw("BF16", (4, 5), upper.astype("<u2").tobytes()))
    assert np.array_equal(got.view("<u4"), upper << 16)
    assert np.abs(got / values - 1).max() < 2**-7


def test_f32_is_a_view_where_it_is_aligned_and_right_where_it_is_not():
    values = np.random.default_rng(RNG_SEED).normal(size=(3, 7)).astype("<f4")
    aligned = raw("F32", (3, 7), values.tobytes())
    assert np.shares_memory(decode(aligned), aligned.data)
    shifted = np.frombuffer(b"\0" + values.tobytes(), np.uint8)[1:].reshape(3, 28)
    got = decode(CheckpointTensor("w", "F32", (3, 7), shifted))
    assert got.flags.aligned
    assert np.array_equal(got, values)


def test_f64_and_scalars_and_empty_tensors():
    assert decode(raw("F64", (2,), np.array([0.1, 3.0]).tobytes())).tolist() == [np.float32(0.1), 3.0]
    scalar = decode(raw("F32", (), np.float32(2.5).tobytes()))
    assert scalar.shape == ()
    assert scalar == 2.5
    assert decode(CheckpointTensor("w", "BF16", (0, 8), np.zeros((0, 16), np.uint8))).shape == (0, 8)


def test_rows_taken_in_another_order_decode_in_that_order():
    _, _, data = random_blocks(np.random.default_rng(RNG_SEED), 8, 2, 16)
    tensor = raw("Q4_1", (4, 64), data)
    order = np.array([2, 0, 3, 1])
    assert np.array_equal(decode(tensor.take_rows(order)), decode(tensor)[order])


def reference_kinds():
    for qtype in GGMLQuantizationType:
        try:
            gguf.quants.dequantize(np.zeros((1, gguf.GGML_QUANT_SIZES[qtype][1]), np.uint8), qtype)
        except NotImplementedError:
            continue
        yield qtype


@pytest.mark.parametrize("qtype", list(reference_kinds()), ids=lambda q: q.name)
def test_every_type_of_the_reference_decodes_alike(qtype):
    values, size = gguf.GGML_QUANT_SIZES[qtype]
    data = np.random.default_rng(RNG_SEED).integers(0, 256, (24, 3 * size), dtype=np.uint8)
    with np.errstate(all="ignore"):
        want = gguf.quants.dequantize(data, qtype)
    got = decode(CheckpointTensor("w", qtype.name, (4, 6, 3 * values), data))
    assert got.dtype == np.float32
    assert np.array_equal(got.reshape(24, -1), want, equal_nan=True)


def test_the_table_agrees_with_gguf():
    for qtype, (values, size) in gguf.GGML_QUANT_SIZES.items():
        assert (KINDS[qtype.name].values_per_block, KINDS[qtype.name].bytes_per_block) == (values, size)


@pytest.mark.parametrize(("kind", "size"), [("I32", 4), ("F8_E4M3", 1), ("Q8_K", 1), ("Q9_X", 1)])
def test_a_kind_without_decoder_is_refused_by_tensor_and_kind(kind, size):
    with pytest.raises(UnsupportedModelError, match=rf"tensor blk\.0\.w is stored as {kind}"):
        decode(CheckpointTensor("blk.0.w", kind, (2, 256), np.zeros((2, 256 * size), np.uint8)))


@pytest.mark.parametrize("shape", [(2, 64), (3, 32), (2, 31), (64,)])
def test_data_that_does_not_fit_the_shape_is_refused_by_tensor(shape):
    with pytest.raises(ModelLoadError, match="tensor w "):
        decode(CheckpointTensor("w", "Q4_0", shape, np.zeros((2, 18), np.uint8)))
