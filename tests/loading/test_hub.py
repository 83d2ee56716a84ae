import json
import os

import numpy as np
import pytest
import safetensors.numpy
from hub_server import COMMIT

from octavo.loading.hub import HubModel, parse_hub_name
from octavo.loading.open import open_checkpoint
from octavo.quantization.decode import decode

CONFIG = json.dumps({"architectures": ["LlamaForCausalLM"]}).encode()
WEIGHTS = safetensors.numpy.save({"a": np.arange(4, dtype=np.float32)})


def full_repository():
    return {
        "config.json": CONFIG,
        "generation_config.json": b"{}",
        "model.safetensors": WEIGHTS,
        "tokenizer.json": b'{"model": {}}',
        "tokenizer.model": b"spm",
        "chat_template.jinja": b"{{ messages }}",
        "README.md": b"# readme",
        "pytorch_model.bin": b"pickle",
        "consolidated.safetensors": WEIGHTS,
        "model.fp16.safetensors": WEIGHTS,
        "original/params.json": b"{}",
        "onnx/model.onnx": b"onnx",
    }


def test_a_repository_is_fetched_without_what_is_not_needed(hub, resolve, tmp_path):
    hub.repositories["org/full"] = full_repository()
    (path,) = resolve("org/full")
    assert path == str(tmp_path / "hf/hub/models--org--full/snapshots" / COMMIT)
    needed = ["chat_template.jinja", "config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer.model"]
    assert hub.fetched() == needed
    assert sorted(os.listdir(path)) == needed
    assert "Downloading org/full from the hub" in resolve.stderr
    with open_checkpoint(tmp_path / path) as checkpoint:
        assert decode(checkpoint.tensor("a")).tolist() == [0, 1, 2, 3]
    assert resolve("org/full") == [path]
    assert hub.fetched() == []
    assert "Downloading" not in resolve.stderr


def test_revision_and_download_dir_hold(hub, resolve, tmp_path):
    hub.repositories["org/full"] = full_repository()
    good, bad = resolve(
        {"name": "org/full", "revision": "v1", "download_dir": str(tmp_path / "here")}, {"name": "org/full", "revision": "no"}
    )
    assert good.startswith(str(tmp_path / "here"))
    assert bad == "org/full on the hub has no revision no"


def test_a_gguf_is_chosen_by_name_by_quantization_or_by_being_alone(hub, resolve):
    hub.repositories["org/many"] = {
        "m-Q4_K.gguf": b"1",
        "m-Q4_K_M.gguf": b"2",
        "sub/m.q8_0.gguf": b"3",
        "big-F16-00001-of-00002.gguf": b"4",
        "README.md": b"",
    }
    hub.repositories["org/one"] = {"only.gguf": b"5", "config.json": CONFIG}
    alone, medium, plain, by_file, several, none, lost, split = resolve(
        "org/one",
        "org/many:q4_k_m",
        "org/many:Q4_K",
        "org/many/sub/m.q8_0.gguf",
        "org/many",
        "org/many:Q5_0",
        "org/many/x.gguf",
        "org/many:F16",
    )
    for path, content in ((alone, "5"), (medium, "2"), (plain, "1"), (by_file, "3")):
        with open(path) as file:
            assert file.read() == content
    listed = "from big-F16-00001-of-00002.gguf, m-Q4_K.gguf, m-Q4_K_M.gguf, sub/m.q8_0.gguf"
    assert several == f"org/many on the hub has 4 GGUF files; choose by org/many/FILE or org/many:QUANT {listed}"
    assert none.startswith("org/many on the hub has no single GGUF file for Q5_0")
    assert none.endswith(listed)
    assert lost.startswith("org/many on the hub has no single GGUF file for x.gguf")
    assert "part 1 of 2 of a split GGUF" in split
    assert hub.fetched() == ["m-Q4_K.gguf", "m-Q4_K_M.gguf", "only.gguf", "sub/m.q8_0.gguf"]


def test_a_repository_with_nothing_to_load_says_so(hub, resolve):
    hub.repositories["org/text"] = {"README.md": b"", "pytorch_model.bin": b"pickle"}
    assert resolve("org/text", "org/text:Q4_0") == [
        "org/text on the hub has no safetensors or GGUF file",
        "org/text on the hub has no GGUF file",
    ]


def test_refusals_of_the_hub_are_one_sentence_each(hub, resolve):
    hub.failures = {
        "org/gated": (403, "GatedRepo"),
        "org/private": (401, "RepoNotFound"),
        "org/forbidden": (403, None),
        "org/odd": (404, None),
    }
    gated, private, forbidden, odd, unknown = resolve("org/gated", "org/private", "org/forbidden", "org/odd", "org/unknown")
    assert gated == f"org/gated on the hub is gated; accept its terms at {hub.url}/org/gated and set HF_TOKEN (or run `hf auth login`)"
    assert private == "the hub has no model org/private, or it is private and HF_TOKEN gives no access to it"
    assert forbidden == "org/forbidden on the hub may not be read (HTTP 403); set HF_TOKEN to a token that may"
    assert odd == "org/odd on the hub was not found (HTTP 404)"
    assert unknown.startswith("the hub has no model org/unknown")


def test_without_a_connection_an_earlier_snapshot_serves(hub, resolve):
    hub.repositories["org/full"] = full_repository()
    hub.repositories["org/one"] = {"only.gguf": b"5"}
    paths = resolve("org/full", "org/one")
    nowhere = {"HF_ENDPOINT": "http://127.0.0.1:9"}
    *again, missing = resolve("org/full", "org/one", "org/other", **nowhere)
    assert again == paths
    assert missing.startswith("org/other is not in the cache, and the hub at http://127.0.0.1:9 can't be reached")
    *again, missing = resolve("org/full", "org/one", "org/other", HF_HUB_OFFLINE="1")
    assert again == paths
    assert missing == "org/other is not in the cache, and HF_HUB_OFFLINE forbids to ask the hub"


def test_a_half_download_is_no_model(hub, resolve):
    files = hub.repositories["org/one"] = {"only.gguf": bytes(200_000)}
    hub.cut_at["only.gguf"] = 1000
    (error,) = resolve("org/one")
    assert error.startswith("org/one could not be fetched whole")
    (offline,) = resolve("org/one", HF_HUB_OFFLINE="1")
    assert offline == "org/one is not in the cache, and HF_HUB_OFFLINE forbids to ask the hub"
    hub.cut_at.clear()
    (path,) = resolve("org/one")
    with open(path, "rb") as file:
        assert file.read() == files["only.gguf"]


def test_a_snapshot_with_a_shard_missing_does_not_serve_without_a_connection(hub, resolve):
    hub.repositories["org/two"] = {
        "config.json": CONFIG,
        "model-00001-of-00002.safetensors": WEIGHTS,
        "model-00002-of-00002.safetensors": safetensors.numpy.save({"b": np.arange(4, dtype=np.float32)}),
        "model.safetensors.index.json": b"{}",
    }
    hub.cut_at["model-00002-of-00002.safetensors"] = 5
    resolve("org/two")
    (offline,) = resolve("org/two", HF_HUB_OFFLINE="1")
    assert offline == "org/two is in the cache only in part, and HF_HUB_OFFLINE forbids to ask the hub"


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("org/name", HubModel("org/name")),
        ("Qwen/Qwen2.5-0.5B", HubModel("Qwen/Qwen2.5-0.5B")),
        ("org/name:Q4_0", HubModel("org/name", quantization="Q4_0")),
        ("org/name/a/b.gguf", HubModel("org/name", file="a/b.gguf")),
        ("name", None),
        ("org/name/other", None),
        ("/org/name", None),
        ("org/../name", None),
        ("../name", None),
        ("org/na..me", None),
        ("org/name:", None),
        ("org/-name", None),
        ("http://host/x", None),
    ],
)
def test_names_of_the_hub(name, model):
    assert parse_hub_name(name) == model
