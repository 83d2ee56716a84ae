from __future__ import annotations

import json
import os
import subprocess
import sys

import gguf
import numpy as np
import pytest
from hub_server import Hub


@pytest.fixture(scope="session")
def small_gguf(tmp_path_factory):
    """A GGUF by gguf's own writer, with one tensor of each common kind and each kind of metadata."""
    path = tmp_path_factory.mktemp("gguf") / "small.gguf"
    rng = np.random.default_rng(7)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(2)
    writer.add_rope_freq_base(10000.0)
    writer.add_bool("tokenizer.ggml.add_bos_token", False)
    writer.add_int64("test.negative", -5)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(["a", "b", "é", "", "<|end|>"])
    writer.add_token_types([1, 1, 1, 1, 3])
    writer.add_float32("general.sampling.temp", 0.5)
    writer.add_int32("general.sampling.top_k", 20)
    writer.add_float32("general.sampling.penalty_repeat", 1.25)
    writer.add_float32("general.sampling.xtc_probability", 0.125)
    writer.add_tensor("norm", rng.normal(size=(8,)).astype(np.float32))
    writer.add_tensor("half", rng.normal(size=(3, 5)).astype(np.float16))
    for kind in ("Q8_0", "Q4_0", "Q4_1", "BF16"):
        qtype = gguf.GGMLQuantizationType[kind]
        weights = rng.normal(size=(3, 64)).astype(np.float32)
        writer.add_tensor(kind.lower(), gguf.quants.quantize(weights, qtype), raw_dtype=qtype)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def hub():
    server = Hub()
    yield server
    server.stop()


@pytest.fixture
def resolve(tmp_path, hub):
    """Resolves names in one fresh process each time, since the hub's library reads its environment once."""

    def run(*calls, **environment):
        settings = {
            **{key: value for key, value in os.environ.items() if not key.startswith("HF_")},
            "HF_ENDPOINT": hub.url,
            "HF_HOME": str(tmp_path / "hf"),
            "HF_HUB_ETAG_TIMEOUT": "5",
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "OCTAVO_CACHE": str(tmp_path / "cache"),
            **environment,
        }
        wanted = [{"name": call} if isinstance(call, str) else call for call in calls]
        result = subprocess.run(
            [sys.executable, "-W", "error", "-c", RESOLVE, json.dumps(wanted)],
            env=settings,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert result.returncode == 0, result.stderr
        run.stderr = result.stderr
        return [answer["path"] or answer["error"] for answer in json.loads(result.stdout)]

    return run


RESOLVE = """
import json, sys
from octavo.loading.progress import ConsoleProgress
from octavo.loading.resolve import resolve_model
from octavo.protocol.errors import ModelLoadError
answers = []
for call in json.loads(sys.argv[1]):
    try:
        answers.append({"path": str(resolve_model(**call, progress=ConsoleProgress())), "error": None})
    except ModelLoadError as error:
        answers.append({"path": None, "error": error.message})
print(json.dumps(answers))
"""
