"""Attributes of vLLM's that Octavo has not say so in a sentence."""

from __future__ import annotations

import pytest

from octavo import LLM, StructuredOutputsParams
from octavo.api.async_engine import AsyncLLMEngine
from octavo.api.engine_args import AsyncEngineArgs, EngineArgs
from octavo.api.llm_engine import LLMEngine
from octavo.protocol.errors import InvalidRequestError

MISSING = [
    *((LLM, name) for name in ("score", "classify", "reward", "sleep", "wake_up", "llm_engine", "collective_rpc", "apply_model")),
    *((LLMEngine, name) for name in ("from_vllm_config", "sleep", "wake_up", "collective_rpc")),
    *((AsyncLLMEngine, name) for name in ("sleep", "wake_up", "collective_rpc")),
    *((kind, name) for kind in (EngineArgs, AsyncEngineArgs) for name in ("add_cli_args", "from_cli_args")),
]


@pytest.mark.parametrize(("kind", "name"), MISSING)
def test_each_is_an_attribute_error_with_a_reason(kind: type, name: str) -> None:
    for holder in (kind, object.__new__(kind)):
        assert not hasattr(holder, name)
        with pytest.raises(AttributeError, match=rf"^{kind.__name__}\.{name} is not supported by this version of Octavo: \w") as caught:
            getattr(holder, name)
        assert caught.value.name == name


def test_a_structural_tag_is_refused_by_name() -> None:
    assert StructuredOutputsParams(regex="a", structural_tag=None) == StructuredOutputsParams(regex="a")  # type: ignore[call-arg]
    with pytest.raises(InvalidRequestError, match=r"^structured_outputs\.structural_tag is not supported") as caught:
        StructuredOutputsParams(structural_tag="{}")  # type: ignore[call-arg]
    assert caught.value.param == "structured_outputs.structural_tag"
