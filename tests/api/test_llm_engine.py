"""LLMEngine: requests that come and go between steps give what LLM gives."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from workload import bits, greedy, prompts, run

from octavo import LLM, RequestOutput, SamplingParams, StructuredOutputsParams
from octavo.api.engine_args import EngineArgs
from octavo.api.llm_engine import LLMEngine
from octavo.protocol.errors import ConfigError, InvalidRequestError, OctavoError
from octavo.protocol.lora import LoRARequest
from octavo.protocol.sampling import RequestOutputKind

COUNT = 16
LONG = SamplingParams(temperature=0, max_tokens=300, ignore_eos=True)
SHORT = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)


@pytest.fixture(scope="module")
def engine(tiny_llama: Path) -> Iterator[LLMEngine]:
    """Every test leaves it idle."""
    with LLMEngine.from_engine_args(EngineArgs(str(tiny_llama), quiet=True)) as made:
        yield made
        assert not made.has_unfinished_requests()
        assert made._llm._core.stats().blocks_used == 0


def finish(engine: LLMEngine) -> dict[str, list[RequestOutput]]:
    """Every output of every request, stepped to the end."""
    found: dict[str, list[RequestOutput]] = {}
    while engine.has_unfinished_requests():
        for output in engine.step():
            found.setdefault(output.request_id, []).append(output)
    return found


def test_requests_that_come_while_others_run(engine: LLMEngine, llm: LLM) -> None:
    params = greedy()[:COUNT]
    last: dict[str, Any] = {}
    for index in range(COUNT):
        engine.add_request(f"r{index}", prompts()[index], params[index])
        last |= {output.request_id: output for output in engine.step()}
    last |= {name: outputs[-1] for name, outputs in finish(engine).items()}
    assert all(output.finished for output in last.values())
    assert bits([last[f"r{index}"] for index in range(COUNT)]) == run(llm, params)
    assert engine.step() == []


def test_each_output_has_everything_so_far(engine: LLMEngine, llm: LLM) -> None:
    engine.add_request("a", "The cat", SHORT)
    assert engine.get_num_unfinished_requests() == 1
    outputs = finish(engine)["a"]
    assert [len(output.outputs[0].token_ids) for output in outputs] == [1, 2, 3, 4, 5]
    assert [output.finished for output in outputs] == [False] * 4 + [True]
    assert outputs[-1].outputs == llm.generate("The cat", SHORT, use_tqdm=False)[0].outputs
    assert outputs[-1].prompt_token_ids == engine.get_tokenizer().encode("The cat")


@pytest.mark.parametrize(
    ("kind", "sizes"), [(RequestOutputKind.DELTA, [1] * 5), (RequestOutputKind.FINAL_ONLY, [5])], ids=["delta", "final"]
)
def test_kinds_of_output(engine: LLMEngine, kind: RequestOutputKind, sizes: list[int]) -> None:
    engine.add_request("a", "The cat", SamplingParams(temperature=0, max_tokens=5, ignore_eos=True, output_kind=kind))
    assert [len(output.outputs[0].token_ids) for output in finish(engine)["a"]] == sizes


def test_samples_stops_and_grammars(engine: LLMEngine, llm: LLM) -> None:
    asked = [
        SamplingParams(n=3, seed=5, max_tokens=20, stop=["e", "o"]),
        SamplingParams(seed=1, max_tokens=20, structured_outputs=StructuredOutputsParams(regex="[0-9]{5}")),
    ]
    for index, params in enumerate(asked):
        engine.add_request(str(index), "The cat", params)
    found = finish(engine)
    for index, params in enumerate(asked):
        assert found[str(index)][-1].outputs == llm.generate("The cat", params, use_tqdm=False)[0].outputs


def test_aborted_requests_are_gone(engine: LLMEngine) -> None:
    for name in ("a", "b", "c"):
        engine.add_request(name, "The cat", LONG)
    assert {output.request_id for output in engine.step()} == {"a", "b", "c"}
    engine.abort_request("a")
    engine.abort_request(["b", "nobody"])
    assert {output.request_id for output in engine.step()} == {"c"}
    engine.abort_request("c")
    assert not engine.has_unfinished_requests()
    assert engine.reset_prefix_cache()


def test_a_request_that_fails_harms_no_other(engine: LLMEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """No honest request makes it happen, so a step is made to say so."""
    for name in ("good", "bad"):
        engine.add_request(name, "The cat", SHORT)
    step = engine._llm._core.step

    def failing() -> Any:
        outputs = step()
        bad = next(output for output in outputs if engine._running[output.request_id.rpartition(":")[0]].request_id == "bad")
        bad.error, bad.finish_reason = "its numbers are broken", "error"
        engine._llm._core.abort(bad.request_id)
        return outputs

    with monkeypatch.context() as patch:
        patch.setattr(engine._llm._core, "step", failing)
        assert [output.request_id for output in engine.step()] == ["good"]
    with pytest.raises(OctavoError, match="request bad failed: its numbers are broken"):
        engine.step()
    assert finish(engine)["good"][-1].finished


def test_an_error_of_the_engine_ends_all(engine: LLMEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    engine.add_request("a", "The cat", LONG)
    with monkeypatch.context() as patch:
        patch.setattr(engine._llm._core._executor, "run", lambda plan: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            engine.step()
    assert not engine.has_unfinished_requests()


def test_what_is_refused(engine: LLMEngine, tiny_llama: Path) -> None:
    with pytest.raises(InvalidRequestError, match="600 tokens"):
        engine.add_request("a", [9] * 600, SHORT)
    with pytest.raises(InvalidRequestError, match=r"^lora_request: 'x'"):
        engine.add_request("a", "x", SHORT, lora_request=LoRARequest("x", 1))
    with pytest.raises(InvalidRequestError, match="sampling_params must be SamplingParams"):
        engine.add_request("a", "x", {"temperature": 0})  # type: ignore[arg-type]
    engine.add_request("a", "x", SHORT)
    with pytest.raises(InvalidRequestError, match="'a' is already in use") as caught:
        engine.add_request("a", "x", SHORT)
    assert caught.value.param == "request_id"
    finish(engine)
    with pytest.raises(ConfigError, match="kv_cache_memory_bytes"):
        LLMEngine(EngineArgs(str(tiny_llama), kv_cache_memory_bytes=1 << 60, quiet=True))


@pytest.mark.parametrize("request_id", [None, 5, b"a", ["a"], {}, ""])
def test_ids_are_strings(engine: LLMEngine, request_id: Any) -> None:
    with pytest.raises(TypeError, match=r"^request_id must be a str") as caught:
        engine.add_request(request_id, "x", SHORT)
    assert not request_id or type(request_id).__name__ in str(caught.value)
    assert not engine.has_unfinished_requests()
    with pytest.raises(TypeError, match=r"^request_id must be a str"):
        engine.abort_request([request_id])
    engine.abort_request("unknown")
    engine.abort_request(["unknown"])
    with pytest.raises(TypeError, match=r"^request_id must be a str or an iterable of them, not int"):
        engine.abort_request(5)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", ["x", None, {"model": "x"}, EngineArgs])
def test_it_is_made_of_engine_args(wrong: Any) -> None:
    for make in (LLMEngine, LLMEngine.from_engine_args):
        with pytest.raises(TypeError, match=rf"^LLMEngine\(\) takes EngineArgs, not {type(wrong).__name__}$"):
            make(wrong)


def test_it_ends_with_requests_that_run(tiny_llama: Path) -> None:
    engine = LLMEngine(EngineArgs(str(tiny_llama), quiet=True))
    engine.add_request("a", "x", LONG)
    engine.step()
    engine.shutdown()
    engine.shutdown()
    assert not engine.has_unfinished_requests()
    with pytest.raises(RuntimeError, match="shut down"):
        engine.add_request("b", "x", SHORT)
