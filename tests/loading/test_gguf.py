import os
import random
import struct
import time
import tracemalloc

import gguf
import numpy as np
import pytest
import raw_gguf as raw
from patience import patient

from octavo.loading.open import open_checkpoint
from octavo.protocol.errors import ModelLoadError, UnsupportedModelError
from octavo.quantization.decode import decode


def test_metadata_has_plain_values(small_gguf):
    with open_checkpoint(small_gguf) as checkpoint:
        assert (checkpoint.format, checkpoint.architecture, checkpoint.path) == ("gguf", "llama", small_gguf)
        metadata = checkpoint.metadata
    assert metadata["llama.block_count"] == 2
    assert metadata["llama.rope.freq_base"] == 10000.0
    assert metadata["tokenizer.ggml.add_bos_token"] is False
    assert metadata["test.negative"] == -5
    assert metadata["tokenizer.ggml.tokens"] == ["a", "b", "é", "", "<|end|>"]
    assert metadata["tokenizer.ggml.token_type"] == [1, 1, 1, 1, 3]
    assert type(metadata["tokenizer.ggml.token_type"][0]) is int


def test_sampling_defaults_take_the_names_of_generation_config(small_gguf):
    with open_checkpoint(small_gguf) as checkpoint:
        assert checkpoint.generation_config == {"temperature": 0.5, "top_k": 20, "repetition_penalty": 1.25, "xtc_probability": 0.125}


@pytest.mark.parametrize("kind", ["F16", "Q8_0", "Q4_0", "Q4_1"])
def test_all_is_read_as_the_reference_reader_reads_it(fixtures_dir, kind):
    path = fixtures_dir / "gguf-tiny-llama" / f"tiny-llama-{kind}.gguf"
    reader = gguf.GGUFReader(path)
    with open_checkpoint(path) as checkpoint:
        assert checkpoint.tensor_names() == [tensor.name for tensor in reader.tensors]
        assert checkpoint.total_bytes == sum(int(tensor.n_bytes) for tensor in reader.tensors)
        for want in reader.tensors:
            got = checkpoint.tensor(want.name)
            assert got.kind == want.tensor_type.name
            assert got.shape == tuple(int(n) for n in reversed(want.shape))
            assert got.nbytes == want.n_bytes
            assert np.array_equal(decode(got).reshape(-1), gguf.quants.dequantize(want.data, want.tensor_type).reshape(-1))
        for field in reader.fields.values():
            if not field.name.startswith("GGUF."):
                assert checkpoint.metadata[field.name] == field.contents()


def test_f16_equals_the_safetensors_it_was_made_from(fixtures_dir):
    with (
        open_checkpoint(fixtures_dir / "gguf-tiny-llama" / "tiny-llama-F16.gguf") as converted,
        open_checkpoint(fixtures_dir / "tiny-llama") as original,
    ):
        pairs = [
            ("token_embd", "model.embed_tokens"),
            ("output", "lm_head"),
            ("blk.1.attn_v", "model.layers.1.self_attn.v_proj"),
            ("blk.0.ffn_down", "model.layers.0.mlp.down_proj"),
            ("output_norm", "model.norm"),
        ]
        for ours, theirs in pairs:
            assert np.array_equal(decode(converted.tensor(f"{ours}.weight")), decode(original.tensor(f"{theirs}.weight")))


def test_tensors_are_views_of_the_file_and_outlive_it(small_gguf):
    checkpoint = open_checkpoint(small_gguf)
    tensor = checkpoint.tensor("half")
    assert tensor.data.shape == (3, 10)
    assert not tensor.data.flags.writeable
    assert tensor.data.base is not None
    before = decode(tensor)
    checkpoint.close()
    checkpoint.close()
    assert np.array_equal(decode(tensor), before)
    with pytest.raises(ModelLoadError, match="closed"):
        checkpoint.tensor("half")


def test_a_missing_tensor_is_named_with_its_file(small_gguf):
    with open_checkpoint(small_gguf) as checkpoint, pytest.raises(ModelLoadError, match=r"small\.gguf has no tensor blk\.9\.w"):
        checkpoint.tensor("blk.9.w")


def test_version_2_and_another_alignment_are_read(tmp_path):
    path = tmp_path / "v2.gguf"
    alignment = raw.pair("general.alignment", raw.UINT32, struct.pack("<I", 64))
    path.write_bytes(raw.build([raw.ARCHITECTURE, alignment], version=2, alignment=64, entries=[raw.entry("a", [2])], data=b"\0" * 8))
    with open_checkpoint(path) as checkpoint:
        assert decode(checkpoint.tensor("a")).tolist() == [0, 0]


HUGE = 2**62
HOSTILE = {
    "an empty file": (b"", "is empty"),
    "another magic": (raw.build(magic=b"GGML"), "not a GGUF file"),
    "only a magic": (b"GGUF", "ends inside the header"),
    "version 1": (raw.build(version=1), "version 1"),
    "version 4": (raw.build(version=4), "version 4"),
    "big-endian": (raw.build(version=3 << 24), "big-endian"),
    "huge tensor count": (raw.build(tensor_count=HUGE), "too small"),
    "huge metadata count": (raw.build(pair_count=HUGE), "too small"),
    "huge key": (raw.build([struct.pack("<Q", HUGE) + b"abcde"]), "metadata entry 0"),
    "huge string": (raw.build([raw.pair("k", raw.STRING, struct.pack("<Q", HUGE))]), "ends inside metadata k"),
    "huge string array": (raw.build([raw.pair("k", raw.ARRAY, raw.array(raw.STRING, HUGE, b""))]), "ends inside metadata k"),
    "huge number array": (raw.build([raw.pair("k", raw.ARRAY, raw.array(raw.INT32, HUGE, b""))]), "ends inside metadata k"),
    "nested array": (raw.build([raw.pair("k", raw.ARRAY, raw.array(raw.ARRAY, 1, b""))]), "array of arrays"),
    "unknown item type": (raw.build([raw.pair("k", raw.ARRAY, raw.array(77, 1, b"\0"))]), "unknown type 77"),
    "unknown value type": (raw.build([raw.pair("k", 13, b"\0")]), "unknown type 13"),
    "invalid UTF-8": (raw.build([raw.pair("k", raw.STRING, raw.string(b"\xff\xfe"))]), "metadata k is not valid UTF-8"),
    "a key twice": (raw.build([raw.ARCHITECTURE, raw.ARCHITECTURE]), "general.architecture appears twice"),
    "no architecture": (raw.build([]), "no general.architecture"),
    "alignment 0": (
        raw.build([raw.ARCHITECTURE, raw.pair("general.alignment", raw.UINT32, struct.pack("<I", 0))]),
        "general.alignment must be a power of two, not 0",
    ),
    "alignment of text": (raw.build([raw.ARCHITECTURE, raw.pair("general.alignment", raw.STRING, raw.string("32"))]), "general.alignment"),
    "alignment 48": (raw.build([raw.ARCHITECTURE, raw.pair("general.alignment", raw.UINT32, struct.pack("<I", 48))]), "general.alignment"),
    "an adapter": (raw.build([raw.ARCHITECTURE, raw.pair("general.type", raw.STRING, raw.string("adapter"))]), "'adapter'"),
    "a split file": (raw.build([raw.ARCHITECTURE, raw.pair("split.count", 2, struct.pack("<H", 3))]), "one of 3 parts of a split GGUF"),
    "no tensors": (raw.build(entries=[], data=b""), "no tensors"),
    "a tensor twice": (raw.build(entries=[raw.entry("a", [4]), raw.entry("a", [4], offset=32)], data=b"\0" * 64), "tensor a appears twice"),
    "no dimensions": (raw.build(entries=[raw.entry("a", [])], data=b"\0" * 64), "tensor a has 0 dimensions"),
    "five dimensions": (raw.build(entries=[raw.entry("a", [1] * 5)], data=b"\0" * 64), "tensor a has 5 dimensions"),
    "a zero dimension": (raw.build(entries=[raw.entry("a", [4, 0])], data=b"\0" * 64), "tensor a has a dimension of zero"),
    "huge dimensions": (raw.build(entries=[raw.entry("a", [HUGE] * 4)], data=b"\0" * 64), "tensor a ends at byte"),
    "unknown tensor type": (raw.build(entries=[raw.entry("a", [4], 31)], data=b"\0" * 64), "tensor a is of ggml type 31"),
    "a broken row": (raw.build(entries=[raw.entry("a", [31], raw.Q4_0)], data=b"\0" * 64), "tensor a has rows of 31 values, which Q4_0"),
    "an offset beyond": (raw.build(entries=[raw.entry("a", [4], offset=HUGE)], data=b"\0" * 64), "tensor a ends at byte"),
    "an unaligned offset": (raw.build(entries=[raw.entry("a", [4], offset=8)], data=b"\0" * 64), "tensor a begins at byte 8"),
    "overlap": (raw.build(entries=[raw.entry("a", [16]), raw.entry("b", [16], offset=32)], data=b"\0" * 128), "tensors a and b overlap"),
    "cut data": (raw.build()[:-1], "tensor a ends at byte"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_file_is_refused_in_one_sentence_that_names_it(tmp_path, case):
    data, problem = HOSTILE[case]
    path = tmp_path / "model.gguf"
    path.write_bytes(data)
    with pytest.raises(ModelLoadError) as caught:
        open_checkpoint(path)
    assert str(path) in caught.value.message
    assert problem in caught.value.message
    assert "\n" not in caught.value.message


def test_a_name_of_many_lines_makes_no_message_of_many_lines(tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(raw.build([raw.pair("\x1b[31m\n" * 1000, 13, b"\0")]))
    with pytest.raises(ModelLoadError) as caught:
        open_checkpoint(path)
    assert caught.value.message.isprintable()
    assert len(caught.value.message) < 1000


def test_the_hand_made_file_is_sound_without_its_faults(tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(raw.build())
    with open_checkpoint(path) as checkpoint:
        assert decode(checkpoint.tensor("a")).tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_a_part_of_a_split_file_is_refused_by_its_name(tmp_path):
    path = tmp_path / "model-00002-of-00003.gguf"
    path.write_bytes(raw.build())
    with pytest.raises(UnsupportedModelError, match=r"part 2 of 3.*llama-gguf-split --merge"):
        open_checkpoint(path)
    alone = tmp_path / "model-00001-of-00001.gguf"
    alone.write_bytes(raw.build())
    open_checkpoint(alone).close()


def test_a_missing_file_and_a_loose_safetensors_file_are_named(tmp_path):
    with pytest.raises(ModelLoadError, match=r"gone\.gguf can't be read: No such file"):
        open_checkpoint(tmp_path / "gone.gguf")
    loose = tmp_path / "model.safetensors"
    loose.write_bytes(b"x")
    with pytest.raises(ModelLoadError, match="give its folder"):
        open_checkpoint(loose)


def test_a_pipe_is_no_file(tmp_path):
    os.mkfifo(tmp_path / "pipe.gguf")
    with pytest.raises(ModelLoadError, match=r"pipe\.gguf can't be read: Is a pipe"):
        open_checkpoint(tmp_path / "pipe.gguf")
    (tmp_path / "endless.gguf").symlink_to("/dev/zero")
    with pytest.raises(ModelLoadError, match=r"endless\.gguf can't be read: Is a device"):
        open_checkpoint(tmp_path / "endless.gguf")


def open_and_decode(path):
    """Opens and decodes everything. True if that went well, False if it was refused as it should be; other errors pass through."""
    try:
        with open_checkpoint(path) as checkpoint:
            for name in checkpoint.tensor_names():
                tensor = checkpoint.tensor(name)
                assert decode(tensor).shape == tensor.shape
    except ModelLoadError as error:
        return len(error.message) > 1000 or not error.message.isprintable()
    return True


@pytest.mark.parametrize("seed", range(4))
def test_damaged_bytes_never_do_more_than_refuse(small_gguf, tmp_path, seed):
    sound = small_gguf.read_bytes()
    random_source = random.Random(seed)
    path = tmp_path / "damaged.gguf"
    outcomes = set()
    tracemalloc.start()
    for _ in range(400):
        data = bytearray(sound)
        for _ in range(random_source.choice((1, 1, 2, 8))):
            # Mostly the header, where every byte matters.
            place = random_source.randrange(len(data) if random_source.random() < 0.2 else 900)
            data[place] = random_source.choice((0, 1, 0x7F, 0x80, 0xFF, random_source.randrange(256)))
        path.write_bytes(data)
        outcomes.add(open_and_decode(path))
    assert outcomes == {True, False}
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100 * len(sound)


def test_a_file_cut_at_any_length_is_refused(small_gguf, tmp_path):
    sound = small_gguf.read_bytes()
    path = tmp_path / "cut.gguf"
    assert open_and_decode(small_gguf)
    for length in [*range(0, 1200, 3), *range(1200, len(sound) - 32, 101)]:
        path.write_bytes(sound[:length])
        assert not open_and_decode(path)


@pytest.mark.model
def test_the_default_model_opens_at_once(smollm2_path):
    times = []
    for _ in range(3):
        begin = time.perf_counter()
        with open_checkpoint(smollm2_path) as checkpoint:
            times.append(time.perf_counter() - begin)
            assert len(checkpoint.tensor_names()) == 272
            assert len(checkpoint.metadata["tokenizer.ggml.tokens"]) == 49152
            assert len(checkpoint.metadata["tokenizer.ggml.merges"]) == 48900
            assert checkpoint.tensor("token_embd.weight").shape == (49152, 576)
    assert min(times) < patient(0.25)
