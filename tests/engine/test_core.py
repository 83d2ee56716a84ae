"""The engine in process: from a checkpoint to outputs, and back to nothing when that fails."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engines import config_for, request_for
from safetensors.numpy import load_file, save_file

from octavo.config.engine import BackendConfig
from octavo.engine import core as core_module
from octavo.engine.core import EngineCore, build_core
from octavo.executors.in_process import InProcessExecutor
from octavo.kvcache.block_table import BlockTable
from octavo.loading.progress import ConsoleProgress
from octavo.protocol.errors import ConfigError, InvalidRequestError, ModelLoadError, UnsupportedModelError
from octavo.protocol.plan import StepPlan, StepResult
from octavo.protocol.sampling import SamplingParams
from octavo.protocol.wire import EngineOutput, EngineRequest


@pytest.fixture(scope="module")
def model(fixtures_dir: Path) -> Path:
    return fixtures_dir / "tiny-llama"


class Recorder:
    """Progress that remembers what it was told."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def start(self, total: int, label: str) -> None:
        self.events.append((total, label))

    def advance(self, count: int) -> None:
        self.events.append(count)

    def finish(self) -> None:
        self.events.append("finish")


def build(model: Path | str, **options: Any) -> EngineCore:
    return build_core(config_for(model, **options), ConsoleProgress(quiet=True), lambda line: None)


def drain(core: EngineCore) -> dict[str, list[int]]:
    tokens: dict[str, list[int]] = {}
    steps = 0
    while core.has_work:
        for output in core.step():
            assert output.error is None
            tokens.setdefault(output.request_id, []).extend(output.token_ids)
        steps += 1
        assert steps < 1000
    return tokens


def test_it_tells_what_it_chose(model: Path) -> None:
    lines: list[str] = []
    progress = Recorder()
    config = replace(config_for(model, kv_cache_memory=1 << 20), backend=BackendConfig("reference"))
    core = build_core(config, progress, lines.append)
    info = core.info
    per_block = 2 * 2 * 4 * 32 * 4 * 16  # layers, keys and values, heads, head_dim, float32, tokens
    assert info.num_blocks == (1 << 20) // per_block
    assert info.kv_cache_bytes == info.num_blocks * per_block
    assert (info.architecture, info.backend, info.vocab_size, info.block_size) == ("LlamaForCausalLM", "reference", 512, 16)
    assert info.max_model_len == 512
    assert info.weights_bytes == 2 * sum(event for event in progress.events if isinstance(event, int))  # bfloat16 becomes float32
    # Another engine of this machine, that of another run of the tests perhaps, is told of in a line of its own.
    (line,) = (line for line in lines if " also used by " not in line)
    assert line.startswith(f"KV cache: {info.num_blocks} blocks of 16 tokens")
    assert "on the reference backend, " in line
    total, label = progress.events[0]
    assert total == sum(event for event in progress.events if isinstance(event, int))
    assert label == "Loading tiny-llama"
    assert progress.events[-1] == "finish"
    core.close()


def test_requests_run_to_their_ends_and_free_their_blocks(model: Path) -> None:
    core = build(model)
    for index in range(8):
        core.add(request_for(f"r{index}", prompt=list(range(3, 4 + 5 * index)), max_tokens=3 + index))
    assert core.request_ids == [f"r{index}" for index in range(8)]
    tokens = drain(core)
    assert {name: len(ids) for name, ids in tokens.items()} == {f"r{index}": 3 + index for index in range(8)}
    stats = core.stats()
    assert (stats.running, stats.waiting, stats.blocks_used) == (0, 0, 0)
    assert core.request_ids == []
    core.close()


def test_abort(model: Path) -> None:
    core = build(model)
    core.add(request_for("stays"))
    core.add(request_for("goes", max_tokens=400))
    core.step()
    assert core.stats().blocks_used == 2
    assert core.abort("goes")
    assert not core.abort("goes")
    assert core.stats().blocks_used == 1
    assert set(drain(core)) == {"stays"}
    core.close()


def test_a_broken_step_says_whom_it_took_along(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    core = build(model, seats=2)
    for name in ("a", "b", "waits"):
        core.add(request_for(name))
    core.step()

    def out_of_memory(plan: StepPlan) -> StepResult:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(core._executor, "run", out_of_memory)
        with pytest.raises(MemoryError):
            core.step()
    assert core.lost == ["a", "b"]
    assert set(drain(core)) == {"waits"}
    core.close()


@pytest.mark.parametrize(("where", "call"), [("commit", 7), ("commit", 1), ("prepare", 7), ("slide", 3)])
def test_after_an_error_between_steps_no_account_is_trusted(model: Path, monkeypatch: pytest.MonkeyPatch, where: str, call: int) -> None:
    """All requests end, no block or request is left anywhere, and what comes later is as ever."""
    core = build(model)
    names = ["a", "b", "c", "d"]
    for name in names:
        core.add(request_for(name, prompt=range(20, 40), max_tokens=8))
    usual, calls = getattr(BlockTable, where), 0

    def out_of_memory(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call:
            raise MemoryError
        return usual(*args)

    with monkeypatch.context() as patch:
        patch.setattr(BlockTable, where, out_of_memory)
        with pytest.raises(MemoryError):
            drain(core)
    assert core.lost == names
    drain(core)
    stats = core.stats()
    assert (stats.running, stats.waiting, stats.blocks_used, core._executor._worker.num_requests) == (0, 0, 0, 0)
    assert core.reset_prefix_cache()
    core.add(request_for("e", prompt=range(20, 40), max_tokens=8))
    again = drain(core)["e"]
    core.close()
    other = build(model)
    other.add(request_for("e", prompt=range(20, 40), max_tokens=8))
    assert again == drain(other)["e"]
    other.close()


def test_requests_that_can_t_run(model: Path) -> None:
    core = build(model)
    with pytest.raises(InvalidRequestError, match="token id 512 is outside the vocabulary of 512 tokens"):
        core.add(request_for("a", prompt=[512]))
    with pytest.raises(InvalidRequestError, match=r"prompt has 600 tokens.*context of 512"):
        core.add(request_for("a", prompt=[5] * 600))
    with pytest.raises(InvalidRequestError, match="stop_token_ids"):
        core.add(request_for("a", stop_token_ids=[512]))
    core.add(request_for("a"))
    with pytest.raises(InvalidRequestError, match="'a' is already in use"):
        core.add(request_for("a"))
    with pytest.raises(ValueError, match="seed"):
        core.add(EngineRequest("b", [5], SamplingParams()))
    assert core.request_ids == ["a"]
    core.close()


def test_a_request_whose_logits_are_not_numbers_fails_alone(model: Path, tmp_path: Path) -> None:
    """Token 9's embedding is NaN: whoever has it in the prompt gets an error, the others the same tokens as ever."""
    sick = tmp_path / "sick"
    sick.mkdir()
    for name in ("config.json", "generation_config.json"):
        (sick / name).write_bytes((model / name).read_bytes())
    tensors = read_bf16(model / "model.safetensors")
    tensors["model.embed_tokens.weight"] = tensors["model.embed_tokens.weight"].copy()
    tensors["model.embed_tokens.weight"][9] = np.nan
    save_file(tensors, sick / "model.safetensors")
    well = build(model)
    well.add(request_for("well", prompt=[5, 8, 7], max_tokens=4))
    wanted = drain(well)["well"]
    core = build(sick)
    core.add(request_for("sick", prompt=[5, 9, 7]))
    core.add(request_for("well", prompt=[5, 8, 7], max_tokens=4))
    outputs: list[EngineOutput] = []
    while core.has_work:
        outputs += core.step()
    failed = [output for output in outputs if output.request_id == "sick"]
    assert [(output.finish_reason, output.token_ids, output.error) for output in failed] == [
        ("error", [], "the model's logits contain NaN at position 3")
    ]
    assert [token for output in outputs if output.request_id == "well" for token in output.token_ids] == wanted
    assert core.stats().blocks_used == 0
    core.close()
    well.close()


def read_bf16(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    """Every tensor as float32."""
    from octavo.loading.safetensors_file import SafetensorsFile
    from octavo.quantization.decode import decode

    file = SafetensorsFile(path)
    return {name: decode(file.tensor(name)) for name in file.tensor_names()}


class Spy(InProcessExecutor):
    """An executor that says when it was closed."""

    closed = 0

    def close(self) -> None:
        type(self).closed += 1
        super().close()


@pytest.fixture
def spy(monkeypatch: pytest.MonkeyPatch) -> type[Spy]:
    monkeypatch.setattr(Spy, "closed", 0)
    monkeypatch.setattr(core_module, "InProcessExecutor", Spy)
    return Spy


def test_errors_give_back_what_was_taken(model: Path, tmp_path: Path, spy: type[Spy], monkeypatch: pytest.MonkeyPatch) -> None:
    threads = threading.active_count()
    with pytest.raises(ModelLoadError, match="nowhere"):
        build(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="max_model_len: 513 is more than the model's own limit of 512 tokens") as caught:
        build(model, longest=513)
    assert caught.value.param == "max_model_len"
    with pytest.raises(ConfigError, match="kv_cache_memory"):
        build(model, kv_cache_memory=1 << 60)
    with pytest.raises(ConfigError, match="num_blocks_override"):
        build(model, num_blocks_override=1 << 50)
    assert spy.closed == 4

    def out_of_memory(self: Any, num_blocks: int, num_swap_blocks: int, num_window_blocks: int) -> None:
        raise MemoryError

    monkeypatch.setattr(Spy, "allocate", out_of_memory)
    with pytest.raises(MemoryError):
        build(model)
    assert spy.closed == 5
    assert threading.active_count() == threads


def test_a_tensor_that_can_t_be_decoded_is_named_with_its_file(model: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((model / "config.json").read_bytes())
    tensors = read_bf16(model / "model.safetensors")
    tensors["model.norm.weight"] = np.ones(256, np.int8)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(UnsupportedModelError) as caught:
        build(tmp_path)
    assert caught.value.message == f"{tmp_path}: tensor model.norm.weight is stored as I8, which this version can't decode"


def test_progress_ends_when_loading_fails(model: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((model / "config.json").read_bytes())
    tensors = {**read_bf16(model / "model.safetensors"), "lm_head.weight": np.ones((512, 256), np.int64)}
    save_file(tensors, tmp_path / "model.safetensors")
    assert load_file(tmp_path / "model.safetensors")["lm_head.weight"].dtype == np.int64
    progress = Recorder()
    with pytest.raises(UnsupportedModelError):
        build_core(config_for(tmp_path), progress, lambda line: None)
    assert progress.events[-1] == "finish"


def test_an_executor_used_out_of_turn(model: Path) -> None:
    executor = InProcessExecutor(config_for(model), ConsoleProgress(quiet=True))
    with pytest.raises(RuntimeError, match="allocate before load"):
        executor.allocate(4)
    executor.load()
    with pytest.raises(RuntimeError, match="no KV cache before allocate"):
        executor.run(StepPlan())
    executor.close()
    executor.close()


def test_close_ends_the_threads(model: Path) -> None:
    before = threading.active_count()
    config = config_for(model)
    core = build_core(
        type(config)(model=config.model, cache=config.cache, scheduler=config.scheduler), ConsoleProgress(quiet=True), lambda line: None
    )
    core.add(request_for("a"))
    drain(core)
    core.close()
    core.close()
    assert threading.active_count() == before
