"""Each field of SamplingParams changes something that a caller sees. A case that could not tell whether its field acts is no case: it has
to fail for a model that never heard of the field."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from octavo import LLM, AsyncLLM, SamplingParams
from octavo.config.engine import EngineConfig, ModelConfig
from octavo.protocol.outputs import RequestOutput
from octavo.protocol.sampling import RequestOutputKind
from octavo.protocol.structured_outputs import StructuredOutputsParams

Ask = Callable[..., RequestOutput]
Case = Callable[[Ask], None]
CASES: dict[str, Case] = {}
PROMPT = "Once upon a time"
# The model's end token.
END, END_TEXT = 2, "<|im_end|>"
GREEDY = {"temperature": 0, "max_tokens": 24, "ignore_eos": True}
DRAWN = {"temperature": 2.0, "max_tokens": 24, "ignore_eos": True}


def case(check: Case) -> Case:
    """Registers the case of the field that the function is named after."""
    CASES[check.__name__] = check
    return check


def tokens(output: RequestOutput) -> list[int]:
    return output.outputs[0].token_ids


def text(output: RequestOutput) -> str:
    return output.outputs[0].text


@case
def n(ask: Ask) -> None:
    assert len(ask(**DRAWN, n=3).outputs) == 3


@case
def presence_penalty(ask: Ask) -> None:
    assert tokens(ask(**GREEDY, presence_penalty=2.0)) != tokens(ask(**GREEDY))


@case
def frequency_penalty(ask: Ask) -> None:
    assert tokens(ask(**GREEDY, frequency_penalty=2.0)) != tokens(ask(**GREEDY))


@case
def repetition_penalty(ask: Ask) -> None:
    assert tokens(ask(**GREEDY, repetition_penalty=5.0)) != tokens(ask(**GREEDY))


@case
def temperature(ask: Ask) -> None:
    cold = {**DRAWN, "temperature": 0, "seed": 1}
    assert tokens(ask(**cold)) == tokens(ask(**{**cold, "seed": 2})) != tokens(ask(**{**DRAWN, "seed": 1}))


@case
def top_p(ask: Ask) -> None:
    assert tokens(ask(**DRAWN, top_p=1e-6)) == tokens(ask(**GREEDY))


@case
def top_k(ask: Ask) -> None:
    assert tokens(ask(**DRAWN, top_k=1)) == tokens(ask(**GREEDY))


@case
def min_p(ask: Ask) -> None:
    assert tokens(ask(**DRAWN, min_p=1.0)) == tokens(ask(**GREEDY))


@case
def seed(ask: Ask) -> None:
    assert tokens(ask(**DRAWN, seed=5)) == tokens(ask(**DRAWN, seed=5)) != tokens(ask(**DRAWN, seed=6))


@case
def stop(ask: Ask) -> None:
    whole = text(ask(**GREEDY))
    found = ask(**GREEDY, stop=whole[4:7])
    assert (text(found), found.outputs[0].stop_reason) == (whole[: whole.index(whole[4:7])], whole[4:7])


@case
def stop_token_ids(ask: Ask) -> None:
    third = tokens(ask(**GREEDY))[2]
    found = ask(**GREEDY, stop_token_ids=[third])
    assert (tokens(found)[-1], found.outputs[0].stop_reason) == (third, third)


@case
def ignore_eos(ask: Ask) -> None:
    end = {"temperature": 0, "max_tokens": 4, "logit_bias": {END: 100.0}}
    assert tokens(ask(**end, ignore_eos=True)) == [END] * 4
    assert tokens(ask(**end)) == [END]


@case
def max_tokens(ask: Ask) -> None:
    assert len(tokens(ask(**{**GREEDY, "max_tokens": 7}))) == 7


@case
def min_tokens(ask: Ask) -> None:
    end = {"temperature": 0, "max_tokens": 8, "logit_bias": {END: 100.0}}
    assert len(tokens(ask(**end, min_tokens=5))) == 6


@case
def logprobs(ask: Ask) -> None:
    assert [len(position) for position in ask(**GREEDY, logprobs=3).outputs[0].logprobs or ()] == [3] * 24


@case
def prompt_logprobs(ask: Ask) -> None:
    found = ask(**GREEDY, prompt_logprobs=0)
    assert [position and list(position) for position in found.prompt_logprobs or ()] == [
        None,
        *([token] for token in found.prompt_token_ids[1:]),
    ]


@case
def detokenize(ask: Ask) -> None:
    assert text(ask(**GREEDY, detokenize=False)) == ""


@case
def skip_special_tokens(ask: Ask) -> None:
    end = {"temperature": 0, "max_tokens": 2, "ignore_eos": True, "logit_bias": {END: 100.0}}
    assert (text(ask(**end, skip_special_tokens=False)), text(ask(**end))) == (END_TEXT * 2, "")


@case
def spaces_between_special_tokens(ask: Ask) -> None:
    # A decoder that puts spaces is that of a SentencePiece vocabulary, whose special tokens rarely have any: what reaches it counts here.
    end = {"temperature": 0, "max_tokens": 2, "ignore_eos": True, "logit_bias": {END: 100.0}, "skip_special_tokens": False}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("octavo.text.tokenizer.Tokenizer.spelling", lambda self, token_id: "Ġ!" if token_id == END else None)
        patch.setattr("octavo.text.tokenizer.Tokenizer.token_bytes", lambda self, token_id: b" !" if token_id == END else b"")
        assert (text(ask(**end, spaces_between_special_tokens=False)), text(ask(**end))) == (" !Ġ!", " ! !")


@case
def include_stop_str_in_output(ask: Ask) -> None:
    whole = text(ask(**GREEDY))
    ended = {**GREEDY, "stop": whole[4:7]}
    assert text(ask(**ended, include_stop_str_in_output=True)) == text(ask(**ended)) + whole[4:7]


@case
def truncate_prompt_tokens(ask: Ask) -> None:
    assert ask(**GREEDY, truncate_prompt_tokens=3).prompt_token_ids == ask(**GREEDY).prompt_token_ids[-3:]


@case
def structured_outputs(ask: Ask) -> None:
    assert text(ask(temperature=0, max_tokens=24, structured_outputs=StructuredOutputsParams(choice=["yes", "no"]))) in ("yes", "no")


@case
def logit_bias(ask: Ask) -> None:
    assert tokens(ask(**GREEDY, logit_bias={7: 100.0})) == [7] * 24


@case
def allowed_token_ids(ask: Ask) -> None:
    assert set(tokens(ask(**DRAWN, allowed_token_ids=[7, 9]))) <= {7, 9}


@case
def bad_words(ask: Ask) -> None:
    third = text(ask(**{**GREEDY, "max_tokens": 3}))
    assert not text(ask(**GREEDY, bad_words=[third.strip()])).startswith(third)


@case
def output_kind(ask: Ask) -> None:
    """Of AsyncLLM alone, which can say more than once what there is: of so many tokens, even where the machine is busy."""
    many = GREEDY | {"max_tokens": 400}
    assert ask(streamed=True, **many, output_kind=RequestOutputKind.FINAL_ONLY).outputs[0].token_ids == tokens(ask(**many))


@case
def skip_reading_prefix_cache(ask: Ask) -> None:
    ask(**GREEDY, prompt=PROMPT * 8)
    assert ask(**GREEDY, prompt=PROMPT * 8).num_cached_tokens > 0
    assert ask(**GREEDY, prompt=PROMPT * 8, skip_reading_prefix_cache=True).num_cached_tokens == 0


@pytest.fixture(scope="module")
def ask(llm: LLM, tiny_llama: Path) -> Ask:
    """What the model gives for sampling fields and a prompt; `streamed`, what it gives first."""

    async def first(params: SamplingParams) -> RequestOutput:
        model = await AsyncLLM.start(EngineConfig(model=ModelConfig(str(tiny_llama))), quiet=True)
        try:
            outputs = [output async for output in model.generate(PROMPT, params, "x")]
        finally:
            await model.close()
        return outputs[0]

    def run(prompt: str = PROMPT, streamed: bool = False, **fields: Any) -> RequestOutput:
        params = SamplingParams(**fields)
        return asyncio.run(first(params)) if streamed else llm.generate(prompt, params, use_tqdm=False)[0]

    return run


def test_every_field_has_a_case() -> None:
    assert set(CASES) == set(SamplingParams.__struct_fields__)


@pytest.mark.parametrize("name", CASES)
def test_a_field_acts(ask: Ask, name: str) -> None:
    CASES[name](ask)

    def deaf(**fields: Any) -> RequestOutput:
        return ask(**{field: value for field, value in fields.items() if field != name})

    with pytest.raises(AssertionError):
        CASES[name](deaf)
