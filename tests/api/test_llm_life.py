"""The life of an LLM: its arguments, its progress bar, interrupts, failures and its end."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import children

from octavo import LLM, SamplingParams
from octavo.protocol.errors import ConfigError, InvalidRequestError, ModelLoadError, OctavoError
from octavo.protocol.lora import LoRARequest
from octavo.protocol.plan import StepPlan, StepResult

GREEDY = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
PROMPTS = ["The cat", "Hello", [5, 6, 7]]
# The first two end early, so that some steps also tell the worker what to remove.
MIXED = [SamplingParams(temperature=0, max_tokens=count, ignore_eos=True) for count in (1, 9, 40)]


def answers(llm: LLM) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in llm.generate(PROMPTS, MIXED, use_tqdm=False)]


def assert_idle(llm: LLM) -> None:
    """No request is known and no block is taken."""
    stats = llm._core.stats()
    assert (stats.running, stats.waiting, stats.blocks_used) == (0, 0, 0)
    assert llm._core.request_ids == []


class Stopper:
    """Raises `error` in place of the `after`-th call of a function, or right after it."""

    def __init__(self, function: Any, error: BaseException, *, after: int, late: bool = False) -> None:
        self._function, self._error, self._left, self._late = function, error, after, late

    def __call__(self, *arguments: Any) -> Any:
        self._left -= 1
        if self._left == 0 and not self._late:
            raise self._error
        result = self._function(*arguments)
        if self._left == 0:
            raise self._error
        return result


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("after", [1, 2, 10])
@pytest.mark.parametrize("place", ["step", "_executor.run"])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), MemoryError("no more")])
def test_nothing_of_a_broken_batch_stays(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, error: BaseException, place: str, after: int, late: bool
) -> None:
    before = answers(llm)
    core: Any = llm._core
    owner, name = (core, "step") if place == "step" else (core._executor, "run")
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, Stopper(getattr(owner, name), error, after=after, late=late))
        with pytest.raises(type(error)):
            answers(llm)
    assert_idle(llm)
    assert answers(llm) == before
    assert core._executor._worker.num_requests == 0


def test_ctrl_c_ends_a_batch_between_two_steps(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    before = answers(llm)
    ended = []
    step = llm._core.step

    def interrupted() -> Any:
        if len(ended) == 3:
            os.kill(os.getpid(), signal.SIGINT)
        outputs = step()
        ended.append(len(outputs))
        return outputs

    with monkeypatch.context() as patch:
        patch.setattr(llm._core, "step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            answers(llm)
    assert len(ended) == 4
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert_idle(llm)
    assert answers(llm) == before


def test_a_second_ctrl_c_does_not_wait(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    before = answers(llm)

    def stuck(plan: StepPlan) -> StepResult:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(10)
        pytest.fail("the second interrupt was held back")

    with monkeypatch.context() as patch:
        patch.setattr(llm._core._executor, "run", stuck)
        with pytest.raises(KeyboardInterrupt):
            answers(llm)
    assert_idle(llm)
    assert answers(llm) == before


def test_a_program_that_handles_ctrl_c_keeps_its_handler(llm: LLM) -> None:
    def own(number: int, frame: Any) -> None: ...

    previous = signal.signal(signal.SIGINT, own)
    try:
        answers(llm)
        assert signal.getsignal(signal.SIGINT) is own
    finally:
        signal.signal(signal.SIGINT, previous)


def test_generating_in_another_thread(llm: LLM) -> None:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(answers(llm)))
    thread.start()
    thread.join(30)
    assert found == [answers(llm)]


def test_a_request_that_fails_in_the_engine(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    before = answers(llm)
    run = llm._core._executor.run

    def failing(plan: StepPlan) -> StepResult:
        result = run(plan)
        if result.sampled:
            lost = result.sampled.pop()
            result.failed[lost.request_id] = "its numbers are broken"
        return result

    with monkeypatch.context() as patch:
        patch.setattr(llm._core._executor, "run", failing)
        with pytest.raises(OctavoError, match="its numbers are broken"):
            answers(llm)
    assert_idle(llm)
    assert answers(llm) == before


def test_it_starts_no_process(tiny_llama: Path) -> None:
    before = children()
    with LLM(str(tiny_llama), quiet=True) as llm:
        answers(llm)
        assert children() == before


def test_closing(tiny_llama: Path) -> None:
    llm = LLM(str(tiny_llama), quiet=True)
    llm.close()
    llm.close()
    with pytest.raises(RuntimeError, match="closed"):
        llm.generate("The cat", GREEDY, use_tqdm=False)
    with pytest.raises(RuntimeError, match="closed"):
        llm.chat([{"role": "user", "content": "Hello"}], GREEDY, use_tqdm=False)


def test_with_closes_even_after_an_error(tiny_llama: Path) -> None:
    with pytest.raises(ZeroDivisionError), LLM(str(tiny_llama), quiet=True) as llm:
        raise ZeroDivisionError
    with pytest.raises(RuntimeError, match="closed"):
        llm.generate("The cat", GREEDY, use_tqdm=False)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tensor_parallel_size", 2),
        ("pipeline_parallel_size", 2),
        ("dtype", "float8"),
        ("dtype", None),
        ("quantization", "awq"),
        ("enable_lora", True),
        ("trust_remote_code", "yes"),
        ("served_model_name", "x"),
        ("load_format", "dummy"),
        ("enable_chunked_prefill", False),
        ("cpu_offload_gb", 4),
        ("tokenizer", "other"),
        ("block_size", 17),
        ("kv_cache_dtype", "float64"),
        ("kv_cache_dtype", 8),
        ("kv_cache_dtype", None),
        ("gpu_memory_utilization", 1.5),
        ("max_model_len", 0),
        ("max_num_seqs", 0),
        ("num_gpu_blocks_override", 0),
        ("kv_cache_memory_bytes", 0),
        ("backend", "abacus"),
        ("threads", -1),
        ("disable_log_stats", 0),
        ("enable_lora", 0),
        ("tensor_parallel_size", True),
        ("swap_space", [0]),
        ("max_model_len", "256"),
        ("gpu_memory_utilization", "0.5"),
        ("block_size", "16"),
        ("block_size", 16.0),
        ("threads", "x"),
        ("pin_threads", 1),
        ("kv_cache_memory_bytes", "much"),
        ("kv_cache_memory_bytes", 2.5),
        ("max_num_seqs", 1.5),
        ("max_num_seqs", True),
        ("num_gpu_blocks_override", 2.5),
        ("chat_template", 5),
        ("seed", "a"),
        ("download_dir", 5),
        ("revision", 5),
        ("generation_config", 5),
        ("backend", 5),
        ("quiet", 5),
    ],
)
def test_arguments_that_cannot_hold(tiny_llama: Path, name: str, value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        LLM(str(tiny_llama), **{"quiet": True, name: value})
    assert caught.value.param == name
    assert caught.value.message.startswith(f"{name}: ")
    assert str(value) in caught.value.message


@pytest.mark.parametrize("model", [5, None, b"smollm2", ["smollm2"], ""])
def test_models_that_are_no_names(model: Any) -> None:
    with pytest.raises(ConfigError, match=r"^model: "):
        LLM(model, quiet=True)


def test_paths_sizes_and_numpy_numbers(tiny_llama: Path, tmp_path: Path) -> None:
    (tmp_path / "plain.jinja").write_text("{{ messages[0]['content'] }}")
    options = {"max_model_len": np.int64(64), "block_size": np.int32(16), "seed": np.int64(3), "kv_cache_memory_bytes": "1MiB"}
    with LLM(tiny_llama, quiet=True, backend="reference", chat_template=tmp_path / "plain.jinja", **options) as llm:
        assert (llm._core.info.num_blocks, llm._core.info.max_model_len) == (32, 64)
        assert llm._core.info.model == str(tiny_llama)
        assert llm.chat([{"role": "user", "content": "Hello"}], GREEDY, use_tqdm=False)[0].prompt == "Hello"


def test_a_context_longer_than_the_models(tiny_llama: Path) -> None:
    with pytest.raises(ConfigError, match=r"max_model_len: 600 .* 512"):
        LLM(str(tiny_llama), max_model_len=600, quiet=True)


def test_arguments_that_nobody_knows(tiny_llama: Path) -> None:
    with pytest.raises(TypeError, match="LLM\\(\\) has no argument 'tensor_paralel_size'; did you mean tensor_parallel_size\\?"):
        LLM(str(tiny_llama), tensor_paralel_size=1)


@pytest.mark.parametrize(
    "options",
    [
        {"tensor_parallel_size": 1, "dtype": "auto", "quantization": None, "enable_lora": False, "trust_remote_code": True},
        {"enforce_eager": True, "disable_log_stats": True, "enable_prefix_caching": None, "swap_space": 0},
    ],
)
def test_arguments_that_ask_for_nothing(tiny_llama: Path, options: dict[str, Any]) -> None:
    LLM(str(tiny_llama), quiet=True, **options).close()


@pytest.mark.parametrize(
    ("dtype", "cache", "kept"),
    [
        ("half", "auto", "float16"),
        ("bf16", "auto", "bfloat16"),
        ("float", "auto", "float32"),
        ("float16", "int8", "int8"),
    ],
)
def test_dtype_is_what_the_cache_keeps_unless_that_says_otherwise(tiny_llama: Path, dtype: str, cache: str, kept: str) -> None:
    with LLM(str(tiny_llama), quiet=True, backend="reference", dtype=dtype, kv_cache_dtype=cache) as llm:
        assert llm._core.info.kv_cache_dtype == kept


def test_float32_is_the_reference_backends(tiny_llama: Path) -> None:
    with pytest.raises(ConfigError, match=r'^dtype: float32 needs the backend "reference"'):
        LLM(str(tiny_llama), quiet=True, dtype="float32")


def test_a_model_of_code_of_its_own(changed_model: Callable[..., str]) -> None:
    path = changed_model(config={"architectures": ["OwnForCausalLM"], "auto_map": {"AutoModelForCausalLM": "own.OwnForCausalLM"}})
    with pytest.raises(ModelLoadError, match=r"OwnForCausalLM is not supported .*it needs code of its own \(trust_remote_code\)"):
        LLM(path, trust_remote_code=True, quiet=True)


def test_out_of_memory_ends_in_advice(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Any, *sizes: Any) -> None:
        raise MemoryError

    monkeypatch.setattr("octavo.executors.in_process.InProcessExecutor.allocate", full)
    with pytest.raises(ModelLoadError, match=r"out of memory: lower gpu_memory_utilization .* or serve a smaller or quantized model"):
        LLM(str(tiny_llama), quiet=True)


def test_an_adapter_is_refused_by_name(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError, match=r"^lora_request: 'mine' can't be applied") as caught:
        llm.generate(PROMPTS, GREEDY, lora_request=[None, LoRARequest("mine", 1, "somewhere"), None])
    assert caught.value.param == "lora_request"
    with pytest.raises(InvalidRequestError, match=r"^lora_request: 'mine'"):
        llm.chat([{"role": "user", "content": "Hi"}], GREEDY, lora_request=LoRARequest("mine", 1))


def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="nowhere"):
        LLM(str(tmp_path / "nowhere"), quiet=True)


def test_max_model_len_shortens_the_context(tiny_llama: Path) -> None:
    with LLM(str(tiny_llama), max_model_len=20, quiet=True) as llm:
        output = llm.generate([9] * 10, SamplingParams(temperature=0, max_tokens=None, ignore_eos=True), use_tqdm=False)[0]
    assert len(output.outputs[0].token_ids) == 10


def test_it_says_on_standard_error_what_it_chose(tiny_llama: Path, capfd: pytest.CaptureFixture[str]) -> None:
    LLM(str(tiny_llama), kv_cache_memory_bytes=1 << 22, backend="reference").close()
    out, err = capfd.readouterr()
    assert out == ""
    assert re.search(r"KV cache: 128 blocks of 16 tokens, .*4\.00 MiB.* requests of the full 512 tokens fit at once", err)
    assert "reference backend" in err


def test_quiet_says_nothing(tiny_llama: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with LLM(str(tiny_llama), quiet=True) as llm:
        llm.generate("The cat", GREEDY, use_tqdm=False)
    assert capfd.readouterr() == ("", "")


def test_the_progress_bar_tells_tokens_per_second(llm: LLM, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    llm.generate(PROMPTS, GREEDY)
    out, err = capsys.readouterr()
    assert out == ""
    last = err.rstrip().rpartition("\r")[2]
    assert re.search(r"Processed prompts: 100%.* 3/3 .*input [\d.]+ tok/s, output [\d.]+ tok/s", last)
    speeds = [float(speed) for speed in re.findall(r"([\d.]+) tok/s", last)]
    ids = [llm.get_tokenizer().encode(prompt) if isinstance(prompt, str) else prompt for prompt in PROMPTS]
    assert speeds[1] / speeds[0] == pytest.approx(120 / sum(map(len, ids)), rel=0.05)


def test_the_progress_bar_counts_a_request_once(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    llm.generate("The cat", SamplingParams(n=3, max_tokens=5))
    assert " 1/1 " in capsys.readouterr().err


def test_the_progress_bar_may_be_off(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    llm.generate("The cat", GREEDY, use_tqdm=False)
    assert capsys.readouterr() == ("", "")


def test_tqdm_is_loaded_only_for_a_bar() -> None:
    """So that an import of octavo stays quick."""
    code = "import sys, octavo; octavo.LLM; print('tqdm' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.strip() == "False"
