"""One LLM between threads, within itself, and across a fork."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from octavo import LLM, SamplingParams

PARAMS = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
FORKED = """
import os, sys, warnings
from octavo import LLM, SamplingParams
warnings.simplefilter("ignore")  # newer Pythons warn of a fork beside threads
with LLM(sys.argv[1], quiet=True, threads=2) as llm:
    llm.generate(["a"] * 40, SamplingParams(max_tokens=1), use_tqdm=False)
    child = os.fork()
    if child == 0:
        try:
            llm.generate(["a"] * 40, use_tqdm=False)
        except RuntimeError as error:
            print(error, flush=True)
    if child:
        assert os.waitpid(child, 0)[1] == 0
        llm.generate("a", use_tqdm=False)
"""


def tokens(llm: LLM, prompt: str) -> list[int]:
    (output,) = llm.generate(prompt, PARAMS, use_tqdm=False)
    assert output.outputs[0].finish_reason == "length"
    return output.outputs[0].token_ids


def test_threads_take_turns_and_get_what_they_would_alone(llm: LLM) -> None:
    prompts = [f"Thread {number}" for number in range(4)]
    alone = [tokens(llm, prompt) for prompt in prompts]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda prompt: tokens(llm, prompt), prompts * 5, timeout=60)) == alone * 5


def test_a_call_from_within_a_batch_is_refused_and_the_batch_goes_on(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = tokens(llm, "outer")
    step = llm._core.step
    refused: list[str] = []

    def nested() -> object:
        with pytest.raises(RuntimeError) as error:
            llm.generate("inner", PARAMS, use_tqdm=False)
        refused.append(str(error.value))
        return step()

    with monkeypatch.context() as patch:
        patch.setattr(llm._core, "step", nested)
        assert tokens(llm, "outer") == alone
    assert refused
    assert "in the middle of a batch" in refused[0]
    assert tokens(llm, "outer") == alone


def test_a_forked_process_is_told_instead_of_waiting_for_ever(tiny_llama: Path) -> None:
    done = subprocess.run([sys.executable, "-c", FORKED, str(tiny_llama)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.count("make one in each process")) == (0, 1), done.stderr
