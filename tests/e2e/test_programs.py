"""Programs that people have, each as it comes from its registry, against a live server: they say what the model says in process."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from program_folders import missing, node_packages, python_programs
from serve_process import LiveServer

from octavo import LLM, SamplingParams

PROGRAMS = Path(__file__).parent / "programs"
PROMPT, MESSAGE = "The cat", "Hello"
PACKAGES = ("litellm==1.110.2", "langchain-openai==1.7.4", "llm==0.36")
RUN_SECONDS = 180


@pytest.fixture(scope="module")
def said(tiny_llama: Path) -> dict[str, str]:
    """Greedy, 12 tokens."""
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    with LLM(str(tiny_llama), quiet=True) as llm:
        chat = llm.chat([{"role": "user", "content": MESSAGE}], params, use_tqdm=False)
        return {"completion": llm.generate(PROMPT, params, use_tqdm=False)[0].outputs[0].text, "chat": chat[0].outputs[0].text}


def run(command: list[str | Path], cwd: Path | None = None, **environment: str) -> str:
    """What it prints; fails with what it said when it does."""
    # Nothing is asked of other hosts.
    quiet = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LANGSMITH_TRACING": "false", "NO_PROXY": "127.0.0.1"}
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env={**os.environ, **quiet, **environment}, capture_output=True, text=True, timeout=RUN_SECONDS
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def answer(output: str) -> dict[str, Any]:
    return dict(json.loads(output.splitlines()[-1]))


@pytest.mark.parametrize("program", ["litellm", "langchain"])
def test_python_programs(server: LiveServer, said: dict[str, str], program: str) -> None:
    found = answer(run([python_programs(*PACKAGES) / "python", PROGRAMS / f"{program}_program.py", f"{server.url}/v1", PROMPT, MESSAGE]))
    assert found.pop("mood", "good") in ("good", "bad")
    assert found == {"chat": said["chat"], "streamed": said["chat"], "completion": said["completion"], "tokens": 12}


def test_the_llm_command(server: LiveServer, said: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "extra-openai-models.yaml").write_text(
        f"- model_id: octavo-chat\n  model_name: tiny\n  api_base: {server.url}/v1\n"
        f"- model_id: octavo-completion\n  model_name: tiny\n  api_base: {server.url}/v1\n  completion: true\n"
    )
    command = [python_programs(*PACKAGES) / "llm", "-n", "-o", "temperature", "0", "-o", "max_tokens", "12"]
    environment = {"LLM_USER_PATH": str(tmp_path), "OPENAI_API_KEY": "none"}
    for extra in ([], ["--no-stream"]):
        assert run([*command, "-m", "octavo-chat", *extra, MESSAGE], **environment).removesuffix("\n") == said["chat"]
        assert run([*command, "-m", "octavo-completion", *extra, PROMPT], **environment).removesuffix("\n") == said["completion"]


def test_the_openai_package_of_npm(server: LiveServer, said: dict[str, str]) -> None:
    found = _node(server, "openai_program.mjs", "openai@6.49.0")
    refused = "400 temprature"
    assert found == {"chat": said["chat"], "streamed": said["chat"], "completion": said["completion"], "tokens": 12, "refused": refused}


def test_the_ai_package_of_npm(server: LiveServer, said: dict[str, str]) -> None:
    found = _node(server, "ai_program.mjs", "ai@6.0.326", "@ai-sdk/openai-compatible@2.0.92", "zod@4.6.7")
    assert found == {"chat": said["chat"], "streamed": said["chat"], "tokens": 12}


def _node(server: LiveServer, program: str, *packages: str) -> dict[str, Any]:
    """What a program says that finds its packages beside it."""
    folder = node_packages(*packages)
    shutil.copy(PROGRAMS / program, folder / program)
    return answer(run(["node", program, f"{server.url}/v1", PROMPT, MESSAGE], cwd=folder))


def test_curl(server: LiveServer, said: dict[str, str]) -> None:
    if shutil.which("curl") is None:
        missing("there is no curl on this machine")
    body = {"model": "tiny", "prompt": PROMPT, "temperature": 0, "max_tokens": 12, "ignore_eos": True}
    command: list[str | Path] = ["curl", "-sS", "--fail-with-body", f"{server.url}/v1/completions", "-H", "Content-Type: application/json"]
    assert json.loads(run([*command, "-d", json.dumps(body)]))["choices"][0]["text"] == said["completion"]
    lines = run([*command, "-N", "-d", json.dumps({**body, "stream": True})]).split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    assert "".join(json.loads(line.removeprefix("data: "))["choices"][0]["text"] for line in lines[:-2]) == said["completion"]


# Questions of a multiple choice, as evaluations ask them.
ITEMS = [(f"Question {index}: is {index} even? Answer:", (" yes", " no", " maybe so")) for index in range(10)]


def test_the_loglikelihoods_that_evaluations_ask_for(server: LiveServer, tiny_llama: Path) -> None:
    """lm-eval's local-completions sends token ids, echoed with logprobs, and adds up those after the context: its request and its sum."""
    info = server.http.get("/tokenizer_info").json()
    assert info["eos_token"]

    def tokens(text: str) -> list[int]:
        reply = server.http.post("/tokenize", json={"prompt": text, "add_special_tokens": False})
        return list(reply.json()["tokens"])

    pairs = [(tokens(context), tokens(context + choice)) for context, choices in ITEMS for choice in choices]
    body = {
        "model": "tiny",
        "prompt": [whole for _, whole in pairs],
        "temperature": 0,
        "max_tokens": 1,
        "logprobs": 1,
        "seed": 1234,
        "echo": True,
    }
    choices = sorted(server.http.post("/v1/completions", json=body).json()["choices"], key=lambda choice: choice["index"])
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=1)
    with LLM(str(tiny_llama), quiet=True) as llm:
        outputs = llm.generate([whole for _, whole in pairs], params, use_tqdm=False)
    for (context, whole), choice, output in zip(pairs, choices, outputs, strict=True):
        start = len(context)
        direct = [position[token] for position, token in zip(output.prompt_logprobs[start:], whole[start:], strict=True)]
        assert sum(choice["logprobs"]["token_logprobs"][start:-1]) == sum(each.logprob for each in direct)
        found = choice["logprobs"]
        greedy = [
            there == max(top.values())
            for there, top in zip(found["token_logprobs"][start:-1], found["top_logprobs"][start:-1], strict=True)
        ]
        assert greedy == [each.rank == 1 for each in direct]


def test_a_program_that_is_not_there_fails_where_it_is_required(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_REQUIRE_PROGRAMS", "1")
    with pytest.raises(pytest.fail.Exception, match="OCTAVO_REQUIRE_PROGRAMS is set, and there is no npm"):
        missing("there is no npm")
    monkeypatch.delenv("OCTAVO_REQUIRE_PROGRAMS")
    with pytest.raises(pytest.skip.Exception, match="there is no npm"):
        missing("there is no npm")
