"""SamplingParams.output_kind, and ends of AsyncLLM that come twice."""

from __future__ import annotations

from pathlib import Path

import pytest
from processes import is_alive

from octavo import AsyncLLM, SamplingParams
from octavo.config.engine import CacheConfig, EngineConfig, ModelConfig
from octavo.protocol.errors import InvalidRequestError
from octavo.protocol.sampling import RequestOutputKind


async def test_kinds_and_a_second_end(tiny_llama: Path) -> None:
    config = EngineConfig(model=ModelConfig(str(tiny_llama)), cache=CacheConfig(kv_cache_memory=16 << 20), seed=0)
    async with await AsyncLLM.start(config, quiet=True) as llm:
        pid = llm.engine_pid
        outputs = {}
        for kind in (None, *RequestOutputKind):
            params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, output_kind=kind)
            outputs[kind] = [output async for output in llm.generate([5, 6, 7], params, str(kind), stream=False)]
        whole = outputs[None][0].outputs[0]
        assert [len(each) for each in (outputs[None], outputs[RequestOutputKind.FINAL_ONLY])] == [1, 1]
        assert outputs[RequestOutputKind.FINAL_ONLY][0].outputs[0].token_ids == whole.token_ids
        cumulative = [each.outputs[0] for each in outputs[RequestOutputKind.CUMULATIVE]]
        assert all(whole.token_ids[: len(each.token_ids)] == each.token_ids and whole.text.startswith(each.text) for each in cumulative)
        assert cumulative[-1].token_ids == whole.token_ids
        deltas = [each.outputs[0] for each in outputs[RequestOutputKind.DELTA]]
        assert [token for each in deltas for token in each.token_ids] == whole.token_ids
        assert "".join(each.text for each in deltas) == whole.text
    assert not is_alive(pid)
    await llm.close()


def test_what_is_no_kind() -> None:
    with pytest.raises(InvalidRequestError, match=r"^output_kind must be a RequestOutputKind, got 1"):
        SamplingParams(output_kind=1)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match=r"^skip_reading_prefix_cache must be"):
        SamplingParams(skip_reading_prefix_cache=1)  # type: ignore[arg-type]
