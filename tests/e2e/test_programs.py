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
QUESTIONS = [f"Question {index}: is {index} even? Answer:" for index in range(10)]
CHOICES = [" yes", " no", " maybe so"]
TASK = {
    "task": "evens",
    "dataset_path": "json",
    "test_split": "test",
    "output_type": "multiple_choice",
    "doc_to_text": "{{question}}",
    "doc_to_choice": CHOICES,
    "doc_to_target": 0,
    "target_delimiter": "",
    "metric_list": [{"metric": "acc"}],
}


def test_loglikelihoods_of_lm_eval(server: LiveServer, tiny_llama: Path, tmp_path: Path) -> None:
    """local-completions sends token ids, echoed with logprobs, and adds up those after the question."""
    (tmp_path / "evens.jsonl").write_text("".join(json.dumps({"question": question}) + "\n" for question in QUESTIONS))
    task = {**TASK, "dataset_kwargs": {"data_files": {"test": str(tmp_path / "evens.jsonl")}}}
    (tmp_path / "evens.yaml").write_text(json.dumps(task))
    model = f"model=tiny,base_url={server.url}/v1/completions,tokenizer_backend=remote,num_concurrent=1,max_retries=1"
    command: list[str | Path] = [python_programs("lm_eval[api]==0.4.13") / "lm_eval", "--model", "local-completions", "--model_args", model]
    command += ["--tasks", "evens", "--include_path", tmp_path, "--batch_size", "8", "--output_path", tmp_path / "out", "--log_samples"]
    run(command, cwd=tmp_path, HF_HOME=str(tmp_path / "hub"), HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1")
    (samples,) = (tmp_path / "out").rglob("samples_*.jsonl")
    found = {}
    for line in samples.read_text().splitlines():
        sample = json.loads(line)
        found[sample["doc"]["question"]] = [(float(total), greedy) for ((total, greedy),) in sample["resps"]]
    expected = {}
    with LLM(str(tiny_llama), quiet=True) as llm:
        encode = llm.get_tokenizer().encode
        for question in QUESTIONS:
            wholes = [encode(question + choice, add_special_tokens=False) for choice in CHOICES]
            start = len(encode(question, add_special_tokens=False))
            params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=1)
            outputs = llm.generate([{"prompt_token_ids": whole} for whole in wholes], params, use_tqdm=False)
            given = [
                [position[token] for position, token in zip(output.prompt_logprobs[start:], whole[start:], strict=True)]
                for output, whole in zip(outputs, wholes, strict=True)
            ]
            expected[question] = [(sum(each.logprob for each in tokens), str(all(each.rank == 1 for each in tokens))) for tokens in given]
    assert found == expected


def test_a_program_that_is_not_there_fails_where_it_is_required(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_REQUIRE_PROGRAMS", "1")
    with pytest.raises(pytest.fail.Exception, match="OCTAVO_REQUIRE_PROGRAMS is set, and there is no npm"):
        missing("there is no npm")
    monkeypatch.delenv("OCTAVO_REQUIRE_PROGRAMS")
    with pytest.raises(pytest.skip.Exception, match="there is no npm"):
        missing("there is no npm")
