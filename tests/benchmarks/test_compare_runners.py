"""What runners do around an engine, and Octavo's own runner on a small model."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from comparison.measuring import RUNNERS
from comparison.processes import json_lines

SRC = Path(__file__).resolve().parents[2] / "src"
JOB = {
    "model": "m",
    "threads": 1,
    "max_model_len": 128,
    "options": {},
    "question": {"prompt": [5, 6], "output_len": 3},
    "tasks": [
        {"name": "stream", "together": False, "warmup": [[[1], 4]], "requests": [[[2, 3], 4], [[4, 5], 4]]},
        {"name": "prefill", "together": False, "warmup": [[[1, 2], 1]], "requests": [[[3, 4], 1]]},
        {"name": "chat64", "together": True, "warmup": [[[1], 2]] * 3, "requests": [[[1, 2], 3], [[1, 3], 5], [[9], 1]]},
    ],
}
FAKE = """
import sys
sys.path.insert(0, {runners!r})
import measuring

class Fake:
    def __init__(self, task):
        print("loading", flush=True)
        self.short = task["options"].get("short")

    def generate(self, requests):
        print("asked", [len(prompt) for prompt, _ in requests], [count for _, count in requests], file=sys.stderr)
        return [[7] * (count - (self.short == count)) for _, count in requests]

    def close(self):
        print("closed", file=sys.stderr)

measuring.main(Fake, ["pytest"])
"""


@pytest.fixture
def fake_runner(tmp_path):
    path = tmp_path / "run_fake.py"
    path.write_text(FAKE.format(runners=str(RUNNERS)))
    return path


def run_job(runner, job, **variables):
    done = subprocess.run(
        [sys.executable, str(runner)], input=json.dumps(job), capture_output=True, text=True, check=False, env={**variables, "PATH": ""}
    )
    assert done.returncode == 0, done.stderr
    return done


def test_one_object_a_line_and_all_noise_on_standard_error(fake_runner):
    done = run_job(fake_runner, JOB)
    lines = json_lines(done.stdout)
    assert len(lines) == len(done.stdout.splitlines()) == 5
    assert 0 < lines[0]["ready_s"] < 60
    assert set(lines[0]["versions"]) == {"pytest"}
    assert lines[1] == {"answer": [7, 7, 7]}
    assert [line["task"] for line in lines[2:]] == ["stream", "prefill", "chat64"]
    assert "loading" in done.stderr
    assert done.stderr.rstrip().endswith("closed")


def test_alone_means_one_after_another_and_together_means_at_once(fake_runner):
    asked = [line for line in run_job(fake_runner, JOB).stderr.splitlines() if line.startswith("asked")]
    assert asked == [
        "asked [2] [3]",
        "asked [1] [4]",
        *["asked [2] [1]", "asked [2] [4]"] * 2,
        "asked [2] [1]",
        "asked [2] [1]",
        "asked [1, 1, 1] [2, 2, 2]",
        "asked [2, 2, 1] [3, 5, 1]",
    ]


def test_a_prompt_s_time_is_the_time_to_its_first_token(fake_runner):
    prefill = json_lines(run_job(fake_runner, JOB).stdout)[3]
    assert prefill["first_token_s"] == prefill["seconds"]
    assert prefill["output_tokens"] == [1]


def test_too_few_tokens_are_an_error_of_that_task_alone(fake_runner):
    lines = json_lines(run_job(fake_runner, {**JOB, "options": {"short": 5}}).stdout)
    assert lines[4] == {"task": "chat64", "error": "RuntimeError: a request for 5 tokens got 4"}
    assert "seconds" in lines[2]


def test_octavo_s_runner(fixtures_dir):
    job = {**JOB, "model": str(fixtures_dir / "gguf-tiny-llama" / "tiny-llama-Q4_1.gguf"), "options": {"max_model_len": 64}}
    lines = json_lines(run_job(RUNNERS / "run_octavo.py", job, PYTHONPATH=str(SRC)).stdout)
    assert len(lines[1]["answer"]) == 3
    assert [sorted(line) for line in lines[2:]] == [
        ["first_token_s", "output_tokens", "seconds", "task"],
        ["first_token_s", "output_tokens", "seconds", "task"],
        ["output_tokens", "seconds", "task"],
    ]
    assert lines[4]["output_tokens"] == 9
