import json
import os
import random
import re
import struct

import numpy as np
import pytest
import safetensors.numpy

from octavo.loading.open import open_checkpoint
from octavo.protocol.errors import ModelLoadError, UnsupportedModelError
from octavo.quantization.decode import decode

CONFIG = {"architectures": ["LlamaForCausalLM"], "hidden_size": 8}


def file_bytes(header, data=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def place(dtype, shape, begin, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "model"
    path.mkdir()
    (path / "config.json").write_text(json.dumps(CONFIG))
    tensors = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.array([0.5, -2.0], np.float16)}
    safetensors.numpy.save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    return path


def shard(path, contents):
    """Splits tensors over files: name of the file to its tensors; writes the index."""
    (path / "model.safetensors").unlink()
    for name, tensors in contents.items():
        safetensors.numpy.save_file(tensors, path / name)
    places = {tensor: name for name, tensors in contents.items() for tensor in tensors}
    (path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))


def test_one_file(folder):
    (folder / "generation_config.json").write_text('{"temperature": 0.6}')
    with open_checkpoint(folder) as checkpoint:
        assert (checkpoint.format, checkpoint.architecture, checkpoint.path) == ("safetensors", "LlamaForCausalLM", folder)
        assert checkpoint.metadata == CONFIG
        assert checkpoint.generation_config == {"temperature": 0.6}
        assert sorted(checkpoint.tensor_names()) == ["a", "b"]
        assert checkpoint.total_bytes == 28
        assert checkpoint.tensor("a").data.shape == (2, 12)
        assert decode(checkpoint.tensor("a")).tolist() == [[0, 1, 2], [3, 4, 5]]
        assert decode(checkpoint.tensor("b")).tolist() == [0.5, -2.0]
        with pytest.raises(ModelLoadError, match=r"model has no tensor c"):
            checkpoint.tensor("c")


def test_bfloat16_of_a_real_checkpoint(fixtures_dir):
    path = fixtures_dir / "tiny-llama"
    with open_checkpoint(path) as checkpoint, (path / "model.safetensors").open("rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        data = file.read()
        header.pop("__metadata__", None)
        assert sorted(checkpoint.tensor_names()) == sorted(header)
        for name, fields in header.items():
            begin, end = fields["data_offsets"]
            words = np.frombuffer(data[begin:end], "<u2").astype(np.uint32) << 16
            tensor = checkpoint.tensor(name)
            assert (tensor.kind, list(tensor.shape)) == ("BF16", fields["shape"])
            assert np.array_equal(decode(tensor).view(np.uint32).reshape(-1), words)
        assert checkpoint.generation_config["eos_token_id"] == 2


def test_shards_are_one_checkpoint(folder):
    shard(folder, {"model-00001-of-00002.safetensors": {"a": np.ones(3)}, "model-00002-of-00002.safetensors": {"b": np.zeros((2, 2))}})
    with open_checkpoint(folder) as checkpoint:
        assert checkpoint.tensor_names() == ["a", "b"]
        assert checkpoint.total_bytes == 56
        assert decode(checkpoint.tensor("a")).tolist() == [1, 1, 1]
        assert decode(checkpoint.tensor("b")).shape == (2, 2)


def test_a_missing_shard_and_a_tensor_that_its_shard_lacks(folder):
    shard(folder, {"one.safetensors": {"a": np.ones(3)}, "two.safetensors": {"b": np.ones(3)}})
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "one.safetensors", "b": "one.safetensors"}}))
    with pytest.raises(ModelLoadError, match=r"one\.safetensors has no tensor b"):
        open_checkpoint(folder)
    index.write_text(json.dumps({"weight_map": {"a": "one.safetensors", "b": "three.safetensors"}}))
    with pytest.raises(ModelLoadError, match=r"three\.safetensors is missing.*tensor b"):
        open_checkpoint(folder)


@pytest.mark.parametrize("name", ["../model.safetensors", "/etc/passwd", "x/../../y", "..\\y", "C:\\y", "", 7, None, "a\0b"])
def test_an_index_can_not_lead_out_of_the_folder(folder, name):
    shard(folder, {"one.safetensors": {"a": np.ones(3)}})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(ModelLoadError, match="puts tensor a outside the folder"):
        open_checkpoint(folder)


def test_links_as_the_hub_cache_has_them_are_followed(folder, tmp_path):
    (folder / "model.safetensors").rename(tmp_path / "blob")
    (folder / "model.safetensors").symlink_to(tmp_path / "blob")
    with open_checkpoint(folder) as checkpoint:
        assert decode(checkpoint.tensor("b")).tolist() == [0.5, -2.0]


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("config.json", None, r"config\.json is missing"),
        ("config.json", "{", r"config\.json is not valid JSON"),
        ("config.json", "[" * 100_000, r"config\.json is not valid JSON"),
        ("config.json", b"\xff", r"config\.json is not valid JSON"),
        ("config.json", "[]", r"config\.json is not a JSON object"),
        ("config.json", "{}", r"config\.json names no architecture"),
        ("config.json", '{"architectures": []}', r"config\.json names no architecture"),
        ("generation_config.json", "nonsense", r"generation_config\.json is not valid JSON"),
        ("model.safetensors", None, "has no safetensors file"),
    ],
)
def test_a_file_that_is_missing_or_malformed_is_named(folder, name, text, problem):
    if text is None:
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ModelLoadError, match=problem):
        open_checkpoint(folder)


@pytest.mark.parametrize("method", ["awq", "gptq", "fp8", "compressed-tensors"])
def test_a_quantized_checkpoint_is_refused_by_its_method(folder, method):
    (folder / "config.json").write_text(json.dumps({**CONFIG, "quantization_config": {"quant_method": method}}))
    with pytest.raises(UnsupportedModelError, match=rf"config\.json: the quantization method {method} is not supported"):
        open_checkpoint(folder)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_pipe_is_not_waited_for(folder, name):
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(ModelLoadError, match=rf"{re.escape(name)} can't be read: Is a pipe"):
        open_checkpoint(folder)


def test_pickled_weights_are_never_loaded(folder):
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"anything")
    with pytest.raises(UnsupportedModelError, match=r"pickle \(pytorch_model\.bin\).*convert it to safetensors"):
        open_checkpoint(folder)


def test_an_adapter_is_not_a_model(folder):
    (folder / "config.json").rename(folder / "adapter_config.json")
    with pytest.raises(UnsupportedModelError, match="LoRA adapter"):
        open_checkpoint(folder)


def test_several_files_without_an_index_are_refused(folder):
    (folder / "model.safetensors").rename(folder / "one.safetensors")
    open_checkpoint(folder).close()
    (folder / "two.safetensors").write_bytes((folder / "one.safetensors").read_bytes())
    with pytest.raises(ModelLoadError, match=r"2 safetensors files but no model\.safetensors\.index\.json"):
        open_checkpoint(folder)


@pytest.mark.parametrize(("dtype", "size"), [("F8_E4M3", 1), ("I32", 4), ("F4", 3)])
def test_other_dtypes_open_and_are_refused_when_decoded(folder, dtype, size):
    (folder / "model.safetensors").write_bytes(file_bytes({"w": place(dtype, [2, 3], 0, 6 * size)}, bytes(6 * size)))
    with open_checkpoint(folder) as checkpoint:
        tensor = checkpoint.tensor("w")
        assert (tensor.kind, tensor.shape, tensor.nbytes) == (dtype, (2, 3), 6 * size)
        with pytest.raises(UnsupportedModelError, match=rf"tensor w is stored as {dtype}"):
            decode(tensor)


def test_scalars_and_empty_tensors(folder):
    header = {"s": place("F32", [], 0, 4), "e": place("F16", [0, 5], 4, 4)}
    (folder / "model.safetensors").write_bytes(file_bytes(header, struct.pack("<f", 1.5)))
    with open_checkpoint(folder) as checkpoint:
        assert decode(checkpoint.tensor("s")) == 1.5
        assert decode(checkpoint.tensor("e")).shape == (0, 5)


GOOD = {"a": place("F32", [2], 0, 8)}
HOSTILE = {
    "empty": (b"", "is empty"),
    "five bytes": (b"\1\0\0\0\0", "does not fit"),
    "huge header": (file_bytes(GOOD, bytes(8), length=2**63), "does not fit"),
    "header beyond the file": (file_bytes(GOOD, length=1000), "does not fit"),
    "no JSON": (file_bytes(b"\x80\x04K"), "not valid JSON"),
    "deep JSON": (file_bytes(b"[" * 200_000), "not valid JSON"),
    "huge number": (file_bytes(b'{"a": ' + b"9" * 5000 + b"}"), "not valid JSON"),
    "a list": (file_bytes([]), "not a JSON object"),
    "a tensor twice": (file_bytes(b'{"a": 1, "a": 1}'), "'a' appears twice"),
    "no fields": (file_bytes({"a": {}}), "tensor a lacks"),
    "no dtype": (file_bytes({"a": {**GOOD["a"], "dtype": 5}}, bytes(8)), "tensor a lacks"),
    "negative shape": (file_bytes({"a": place("F32", [-1, -2], 0, 8)}, bytes(8)), "tensor a has an impossible shape"),
    "shape of bools": (file_bytes({"a": place("F32", [True, 2], 0, 8)}, bytes(8)), "tensor a has an impossible shape"),
    "shape of floats": (file_bytes({"a": place("F32", [2.0], 0, 8)}, bytes(8)), "tensor a has an impossible shape"),
    "huge rank": (file_bytes({"a": place("F32", [1] * 5000, 0, 4)}, bytes(4)), "tensor a has an impossible shape"),
    "backward range": (file_bytes({"a": place("F32", [2], 8, 0)}, bytes(8)), "tensor a has an impossible shape or byte range"),
    "shape against range": (file_bytes({"a": place("F32", [3], 0, 8)}, bytes(8)), r"can't take 8 bytes"),
    "a GGUF kind": (file_bytes({"a": place("Q4_0", [32], 0, 18)}, bytes(18)), "tensor a"),
    "beyond the end": (file_bytes(GOOD, bytes(4)), "tensor a ends at byte"),
    "a gap": (file_bytes({"a": place("F32", [2], 4, 12)}, bytes(12)), "tensor a begins at byte"),
    "overlap": (file_bytes({**GOOD, "b": place("F32", [2], 4, 12)}, bytes(12)), "tensor b begins at byte"),
    "bytes left over": (file_bytes(GOOD, bytes(9)), "1 bytes after the last tensor"),
    "no tensors": (file_bytes({"__metadata__": {}}), "no tensors"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_file_is_refused_in_one_sentence_that_names_it(folder, case):
    data, problem = HOSTILE[case]
    (folder / "model.safetensors").write_bytes(data)
    with pytest.raises(ModelLoadError) as caught:
        open_checkpoint(folder)
    assert str(folder) in caught.value.message
    assert problem in caught.value.message
    assert caught.value.message.isprintable()


def test_damaged_bytes_never_do_more_than_refuse(folder):
    path = folder / "model.safetensors"
    sound = path.read_bytes()
    random_source = random.Random(3)
    outcomes = set()
    for _ in range(1000):
        data = bytearray(sound)
        for _ in range(random_source.choice((1, 2))):
            data[random_source.randrange(len(data))] = random_source.randrange(256)
        path.write_bytes(data[: random_source.choice((len(data), len(data), random_source.randrange(len(data))))])
        try:
            with open_checkpoint(folder) as checkpoint:
                for name in checkpoint.tensor_names():
                    decode(checkpoint.tensor(name))
        except ModelLoadError as error:
            outcomes.add(error.message.isprintable())
        else:
            outcomes.add("sound")
    assert outcomes == {True, "sound"}
