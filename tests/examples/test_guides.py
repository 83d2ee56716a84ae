"""Every call that guides to vLLM show runs as it stands, but for the model; what this version lacks is refused by name."""

from __future__ import annotations

import json
import os
import runpy
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from model_copy import copy_model
from processes import is_alive
from serve_process import LiveServer

import octavo
from octavo.protocol.errors import ConfigError

GUIDES = Path(__file__).resolve().parents[2] / "examples/guides"
PYTHON = [path.name for path in sorted(GUIDES.glob("*.py"))]
SHELL = [path.name for path in sorted(GUIDES.glob("*.sh"))]
REFUSED_PYTHON = {
    "tensor_parallel.py": "tensor_parallel_size: 4 is not supported",
    "lora.py": "enable_lora: True is not supported .* adapters",
    "awq.py": "quantization: 'awq' is not supported .* awq, gptq",
}
REFUSED_SHELL = {
    "serve_awq.sh": "--quant (--quantization) is not supported by this version of Octavo: ",
    "serve_parallel.sh": "--parallel-size (--tensor-parallel-size) is not supported by this version of Octavo: it runs on one device",
    "serve_batch.sh": "--parallel-size (--tensor-parallel-size) is not supported by this version of Octavo: it runs on one device",
}
SERVERS = ["serve_openai.sh", "serve_short.sh", "serve_fp16.sh", "serve_batch.sh"]
CLIENTS = ["completions.py", "chat.sh", "old_api.sh"]
RUN = ["generate.py", "memory.py", "prefix_caching.py", "inference_engine.py", "version.sh"]


def environment(**values: str) -> dict[str, str]:
    """With the `python` of these tests."""
    return {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", **values}


@pytest.fixture(scope="module")
def home(fixtures_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model mistralai/Mistral-7B-Instruct that writes chats and has a long context."""
    folder = tmp_path_factory.mktemp("home")
    (folder / "mistralai").mkdir()
    copy_model(fixtures_dir / "tiny-mistral", folder / "mistralai/Mistral-7B-Instruct", config={"max_position_embeddings": 8192})
    return folder


@pytest.fixture(scope="module")
def model(home: Path) -> str:
    return str(home / "mistralai/Mistral-7B-Instruct")


@pytest.fixture(scope="module")
def server(home: Path) -> Iterator[LiveServer]:
    """The server of serve_short.sh, by the name of its model."""
    name = "mistralai/Mistral-7B-Instruct"
    command = [shutil.which("env") or "env", *(f"{key}={value}" for key, value in environment(MODEL=name, PORT="0").items())]
    with LiveServer(name, command=[*command, str(GUIDES / "serve_short.sh")], cwd=home) as live:
        yield live
        assert live.stop() == 0
        assert not any(map(is_alive, live.pids))


def test_every_example_is_run_here() -> None:
    assert {*PYTHON, *SHELL} == {*REFUSED_PYTHON, *REFUSED_SHELL, *SERVERS, *CLIENTS, *RUN}


@pytest.mark.parametrize("name", [name for name in RUN if name.endswith(".py")])
def test_calls_of_python(name: str, model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("MODEL", model)
    said = runpy.run_path(str(GUIDES / name))
    (said.get("llm") or said["model"]).close()
    lines = capsys.readouterr().out
    if name == "generate.py":
        assert [output.prompt for output in said["outputs"]] == said["prompts"]
        assert "Prompt: '인공지능의 미래는', Generated text: " in lines
        assert all(0 < len(output.outputs[0].token_ids) <= 100 for output in said["outputs"])
    elif name == "prefix_caching.py":
        assert lines.startswith("0 tokens were there already")
        assert said["output"].num_cached_tokens >= 16
    elif name == "inference_engine.py":
        assert [res.outputs[0].content for res in said["results"]] == [res.outputs[0].text for res in said["results"]]
    assert lines.strip()


@pytest.mark.parametrize("name", REFUSED_PYTHON)
def test_calls_of_python_that_are_refused(name: str, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODEL", model)
    with pytest.raises(ConfigError, match=REFUSED_PYTHON[name]):
        runpy.run_path(str(GUIDES / name))


@pytest.mark.parametrize(("name", "variables"), [*((name, {}) for name in REFUSED_SHELL), ("serve_awq.sh", {"QUANT": "gptq"})])
def test_servers_that_are_refused(name: str, variables: dict[str, str], model: str) -> None:
    done = subprocess.run([GUIDES / name], env=environment(MODEL=model, **variables), capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr.startswith(f"octavo serve: {REFUSED_SHELL[name]}")


@pytest.mark.parametrize(("name", "dtype"), [("serve_openai.sh", "bfloat16"), ("serve_fp16.sh", "float16"), ("serve_batch.sh", "bfloat16")])
def test_servers_start_and_answer(
    name: str, dtype: str, model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["env", *(f"{key}={value}" for key, value in environment(MODEL=model, PORT="0", PARALLEL="1").items()), str(GUIDES / name)]
    with LiveServer(model, command=command) as live:
        monkeypatch.setenv("URL", live.url)
        monkeypatch.setenv("MODEL", model)
        said = runpy.run_path(str(GUIDES / "completions.py"))
        assert said["response"]["usage"]["completion_tokens"] > 0
        assert live.stop() == 0
    assert f" of {dtype} " in live.stderr or "reference backend" in live.stderr


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
def test_messages_in_place_of_a_prompt(server: LiveServer) -> None:
    done = subprocess.run(
        [GUIDES / "chat.sh"], env=environment(URL=server.url, NAME="Mistral-7B-Instruct"), capture_output=True, timeout=60
    )
    answer = json.loads(done.stdout)
    assert (answer["object"], answer["model"]) == ("text_completion", "Mistral-7B-Instruct")
    assert answer["choices"][0]["finish_reason"] in ("stop", "length")


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
def test_the_first_api(server: LiveServer) -> None:
    done = subprocess.run([GUIDES / "old_api.sh"], env=environment(URL=server.url), capture_output=True, timeout=60)
    (text,) = json.loads(done.stdout)["text"]
    assert text.startswith("San Francisco is a")


def test_the_version_is_printed() -> None:
    done = subprocess.run([GUIDES / "version.sh"], env=environment(), capture_output=True, text=True, check=True)
    assert done.stdout.endswith(f"+octavo.{octavo.__version__}\n")
