"""Models that can't be served: exit code 1 and one sentence that names the file, and the tensor if one is at fault."""

from __future__ import annotations

import struct
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from model_copy import copy_model
from serve_process import LiveServer

GGUF = "gguf-tiny-llama/tiny-llama-Q4_0.gguf"
GATE = b"blk.0.ffn_gate.weight"

# What is broken, from the fixtures and a new folder to the model to serve.
Breakage = Callable[[Path, Path], Path]


def gguf(change: Callable[[bytes], bytes]) -> Breakage:
    def build(fixtures: Path, folder: Path) -> Path:
        data = (fixtures / GGUF).read_bytes()
        changed = change(data)
        assert changed != data
        folder.mkdir()
        (folder / "model.gguf").write_bytes(changed)
        return folder / "model.gguf"

    return build


def put(data: bytes, after: bytes, offset: int, value: bytes) -> bytes:
    """`data` with `value` at `offset` behind the first `after`."""
    at = data.index(after) + len(after) + offset
    return data[:at] + value + data[at + len(value) :]


def folder(file: str, change: Callable[[bytes], bytes | None]) -> Breakage:
    """tiny-llama with one file changed, or without it."""

    def build(fixtures: Path, target: Path) -> Path:
        source = fixtures / "tiny-llama"
        copy_model(source, target)
        data = (source / file).read_bytes()
        changed = change(data)
        assert changed != data
        (target / file).unlink()
        if changed is not None:
            (target / file).write_bytes(changed)
        return target

    return build


def config(old: bytes, new: bytes) -> Breakage:
    return folder("config.json", lambda data: data.replace(old, new))


UP = b'"model.layers.1.mlp.up_proj.weight"'

CASES: dict[str, tuple[Breakage, list[str]]] = {
    "gguf, no bytes": (gguf(lambda data: b""), ["model.gguf", "empty"]),
    "gguf, not one": (gguf(lambda data: b"PK\x03\x04" + data[4:]), ["model.gguf", "not a GGUF file"]),
    "gguf, truncated header": (gguf(lambda data: data[:3000]), ["model.gguf", "ends inside"]),
    "gguf, truncated data": (gguf(lambda data: data[:-5000]), ["model.gguf", "tensor blk.", "beyond the file's"]),
    "gguf, corrupt length": (
        gguf(lambda data: put(data, b"tokenizer.ggml.tokens", 8, b"\xff" * 8)),
        ["model.gguf", "tokenizer.ggml.tokens"],
    ),
    "gguf, unknown tensor type": (gguf(lambda data: put(data, GATE, 20, struct.pack("<I", 999))), ["model.gguf", GATE.decode(), "999"]),
    "gguf, wrong shape": (
        gguf(lambda data: put(data, GATE, 4, struct.pack("<2Q", 512, 256))),
        ["model.gguf", GATE.decode(), "[256, 512]", "[512, 256]"],
    ),
    "gguf, missing tensor": (gguf(lambda data: data.replace(GATE, GATE[:-1] + b"x")), ["model.gguf", GATE.decode(), "missing"]),
    "gguf, architecture": (gguf(lambda data: put(data, b"general.architecture", 12, b"gpt-9")), ["model.gguf", "gpt-9", "not supported"]),
    "gguf, tokenizer": (gguf(lambda data: put(data, b"tokenizer.ggml.model", 12, b"bert")), ["model.gguf", "'bert'"]),
    "folder, architecture": (config(b"LlamaForCausalLM", b"GPT2LMHeadModel"), ["GPT2LMHeadModel", "not supported"]),
    "folder, quantization": (
        config(b'"mlp_bias"', b'"quantization_config": {"quant_method": "awq"}, "mlp_bias"'),
        ["config.json", "awq", "not supported"],
    ),
    "folder, no tokenizer": (folder("tokenizer.json", lambda data: None), ["no tokenizer.json"]),
    "folder, garbled tokenizer": (folder("tokenizer.json", lambda data: data[:200]), ["tokenizer.json"]),
    "folder, garbled config": (folder("config.json", lambda data: data[:50]), ["config.json"]),
    "safetensors, truncated": (folder("model.safetensors", lambda data: data[:-1000]), ["model.safetensors", "tensor model.", "beyond"]),
    "safetensors, missing tensor": (
        folder("model.safetensors", lambda data: data.replace(UP, UP.replace(b"up", b"uq"))),
        [UP.decode().strip('"'), "missing"],
    ),
    "safetensors, wrong shape": (
        config(b'"intermediate_size": 512', b'"intermediate_size": 500'),
        ["mlp.gate_proj", "[512, 256]", "[500, 256]"],
    ),
    "nothing there": (lambda fixtures, folder: folder, ["no model"]),
}


@pytest.fixture(scope="module")
def runs(fixtures_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Future[tuple[Path, int, str, str]]]:
    """Every case's model, exit code, stdout and stderr; two at a time, since each takes a second."""
    root = tmp_path_factory.mktemp("broken")

    def run(number: int, build: Breakage) -> tuple[Path, int, str, str]:
        model = build(fixtures_dir, root / str(number))
        with LiveServer(model, ready=False) as server:
            code = server.wait(30)
            assert server.left_behind == []
            return model, code, server.stdout, server.stderr

    with ThreadPoolExecutor(2) as pool:
        return {name: pool.submit(run, number, build) for number, (name, (build, _)) in enumerate(CASES.items())}


@pytest.mark.parametrize("name", CASES)
def test_one_sentence_and_exit_code_1(runs: dict[str, Future[tuple[Path, int, str, str]]], name: str) -> None:
    model, code, out, err = runs[name].result()
    assert code == 1, err
    assert out == ""
    (line,) = err.splitlines()
    assert line.startswith("octavo: ")
    assert str(model) in line
    for word in CASES[name][1]:
        assert word in line
    assert len(line) < 400 + len(str(model))
