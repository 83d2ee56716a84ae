"""Arguments of vLLM's calls that ask for nothing are taken; others are refused by name before anything runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from octavo import LLM, BeamSearchParams, SamplingParams
from octavo.api.call_arguments import refuse_more
from octavo.api.engine_args import EngineArgs
from octavo.api.llm_engine import LLMEngine
from octavo.protocol.errors import ConfigError, InvalidRequestError
from octavo.protocol.lora import LoRARequest

SHORT = SamplingParams(temperature=0, max_tokens=2)
HELLO = [{"role": "user", "content": "Hello"}]
CALLS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "generate": (
        lambda llm, **others: llm.generate("a", SHORT, use_tqdm=False, **others),
        {"tokenization_kwargs": None, "mm_processor_kwargs": {}},
    ),
    "chat": (
        lambda llm, **others: llm.chat(HELLO, SHORT, use_tqdm=False, **others),
        {"chat_template_content_format": "auto", "mm_processor_kwargs": None, "tokenization_kwargs": {}},
    ),
    "embed": (lambda llm, **others: llm.embed("a", use_tqdm=False, **others), {"lora_request": None, "tokenization_kwargs": None}),
    "encode": (lambda llm, **others: llm.encode("a", use_tqdm=False, **others), {"lora_request": None, "tokenization_kwargs": None}),
    "beam_search": (
        lambda llm, **others: llm.beam_search("a", BeamSearchParams(beam_width=2, max_tokens=2), **others),
        {"lora_request": None, "concurrency_limit": None},
    ),
    "reset_prefix_cache": (lambda llm, **others: llm.reset_prefix_cache(**others), {"reset_connector": False}),
}
ASKING = {
    "tokenization_kwargs": {"truncation": True},
    "mm_processor_kwargs": {"num_crops": 4},
    "chat_template_content_format": "openai",
    "lora_request": LoRARequest("mine", 1),
    "concurrency_limit": 4,
    "reset_connector": True,
}


@pytest.mark.parametrize("name", CALLS)
def test_of_each_call(llm: LLM, name: str) -> None:
    call, nothing = CALLS[name]
    assert call(llm, **nothing)
    for argument in nothing:
        with pytest.raises(InvalidRequestError, match=rf"^{argument}: .*this version of Octavo") as caught:
            call(llm, **{argument: ASKING[argument]})
        assert caught.value.param == argument
    with pytest.raises(TypeError, match=rf"^LLM\.{name}\(\) has no argument 'rank'$"):
        call(llm, rank=1)


def test_the_nearest_argument_is_named() -> None:
    with pytest.raises(TypeError, match=r"did you mean tokenization_kwargs\?"):
        refuse_more("LLM.generate", {"tokenisation_kwargs": None})
    with pytest.raises(InvalidRequestError, match=r"^reset_connector: 0 is not"):
        refuse_more("LLM.reset_prefix_cache", {"reset_connector": 0})


def test_resetting_takes_the_blocks_of_running_requests(tiny_llama: Any) -> None:
    with LLMEngine.from_engine_args(EngineArgs(str(tiny_llama), quiet=True)) as engine:
        params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
        (plain,) = engine._llm.generate("The cat", params, use_tqdm=False)
        engine.add_request("a", "The cat", params, arrival_time=None)
        engine.step()
        assert engine.reset_prefix_cache() is False
        assert engine.reset_prefix_cache(reset_running_requests=True, reset_connector=False) is True
        assert engine._llm._core.stats().blocks_used == 0
        with pytest.raises(ConfigError, match=r"^reset_running_requests: must be True or False"):
            engine.reset_prefix_cache("yes")  # type: ignore[arg-type]
        while engine.has_unfinished_requests():
            last = engine.step()
        assert last[0].outputs[0].token_ids == plain.outputs[0].token_ids
