from __future__ import annotations

import math
import re
import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec
import numpy as np
import pytest

from octavo.protocol.beam_search import BeamSearchParams
from octavo.protocol.errors import InvalidRequestError
from octavo.protocol.sampling import SamplingParams
from octavo.protocol.sampling_names import UNSUPPORTED_FIELDS

NAN, INF = math.nan, math.inf
FLAGS = ["ignore_eos", "detokenize", "skip_special_tokens", "spaces_between_special_tokens", "include_stop_str_in_output"]

ACCEPTED: list[tuple[str, Any, Any]] = [
    ("n", 1, 1),
    ("n", 16384, 16384),
    ("n", np.int32(3), 3),
    ("presence_penalty", -2, -2.0),
    ("presence_penalty", 2.0, 2.0),
    ("frequency_penalty", -2.0, -2.0),
    ("frequency_penalty", np.float32(1.5), 1.5),
    ("repetition_penalty", 0.01, 0.01),
    ("repetition_penalty", 5, 5.0),
    ("temperature", 0, 0.0),
    ("temperature", 2, 2.0),
    ("temperature", 9e-6, 0.0),
    ("temperature", 1e-5, 0.01),
    ("temperature", 0.005, 0.01),
    ("temperature", 0.01, 0.01),
    ("top_p", 1, 1.0),
    ("top_p", 1e-9, 1e-9),
    ("top_k", -1, 0),
    ("top_k", 0, 0),
    ("top_k", 40, 40),
    ("min_p", 0, 0.0),
    ("min_p", 1, 1.0),
    ("seed", None, None),
    ("seed", -1, None),
    ("seed", 0, 0),
    ("seed", -(2**63), -(2**63)),
    ("seed", 2**63 - 1, 2**63 - 1),
    ("seed", np.int64(7), 7),
    ("stop", "end", "end"),
    ("stop", ["a", "b"], ["a", "b"]),
    ("stop", ("a",), ["a"]),
    ("stop", [], []),
    ("stop_token_ids", [0, 5], [0, 5]),
    ("stop_token_ids", (np.int32(4),), [4]),
    ("max_tokens", None, None),
    ("max_tokens", 1, 1),
    ("min_tokens", 16, 16),
    ("logprobs", None, None),
    ("logprobs", 0, 0),
    ("logprobs", -1, -1),
    ("prompt_logprobs", 0, 0),
    ("prompt_logprobs", -1, -1),
    ("truncate_prompt_tokens", -1, -1),
    ("truncate_prompt_tokens", 1, 1),
    *[(flag, value, value) for flag in FLAGS for value in (True, False)],
]

REFUSED: list[tuple[str, Any]] = [
    *[("n", v) for v in (0, -1, 16385, 1.0, True, "1", None)],
    *[(f, v) for f in ("presence_penalty", "frequency_penalty") for v in (-2.01, 2.01, NAN, INF, -INF, True, "0", None, 10**309)],
    *[("repetition_penalty", v) for v in (0, -1.0, 1e-7, 1.1e6, NAN, INF, 10**309, False, "1", None)],
    *[("temperature", v) for v in (-1, -1e-9, 2.0001, NAN, INF, True, "1", None, [1.0], 1j)],
    *[("top_p", v) for v in (0, 0.0, -0.1, 1.0001, 2, NAN, INF, True, "1", None)],
    *[("top_k", v) for v in (-2, 1.5, 2.0, True, "3", None, NAN, 2**63)],
    *[("min_p", v) for v in (-0.001, 1.001, NAN, INF, False, None)],
    *[("seed", v) for v in (2**63, -(2**63) - 1, 1.0, True, "1")],
    *[("stop", v) for v in ("", ["a", ""], [1], [None], 3, True, b"x", {"a": 1}, "\ud800", ["ok", "\udfff"])],
    *[("stop_token_ids", v) for v in ([-1], [1.0], [True], ["1"], 3, "3", [None], [2**64])],
    *[("max_tokens", v) for v in (0, -1, 1.0, True, "16", 2**63)],
    *[("min_tokens", v) for v in (-1, 17, 1.0, True, None)],
    *[(f, v) for f in ("logprobs", "prompt_logprobs") for v in (-2, 1.0, True, "5")],
    *[("truncate_prompt_tokens", v) for v in (0, -2, 1.0, True, "5")],
    *[(flag, v) for flag in FLAGS for v in (0, 1, None, "true")],
]


@pytest.mark.parametrize(("name", "given", "kept"), ACCEPTED)
def test_value_within_its_limits_is_kept_as_a_plain_value(name: str, given: Any, kept: Any) -> None:
    value = getattr(SamplingParams(**{name: given}), name)
    assert value == kept
    assert type(value) is type(kept)


@pytest.mark.parametrize(("name", "value"), REFUSED)
def test_value_outside_its_limits_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        SamplingParams(**{name: value})
    assert caught.value.param == name
    assert name in caught.value.message
    assert caught.value.message.endswith(".")
    assert len(caught.value.message) < 200


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"n": 0}, "n must be an integer from 1 to 16384, got 0."),
        ({"temperature": -1}, "temperature must be a number from 0 to 2, got -1."),
        ({"top_p": 0}, "top_p must be a number above 0 and at most 1, got 0."),
        ({"repetition_penalty": INF}, "repetition_penalty must be a number from 1e-06 to 1e+06, got inf."),
        ({"max_tokens": 0}, "max_tokens must be an integer of at least 1, got 0."),
        ({"max_tokens": 2**63}, f"max_tokens must be an integer from 1 to {2**63 - 1}, got {2**63}."),
        ({"max_tokens": 4, "min_tokens": 5}, "min_tokens must be at most max_tokens (4), got 5."),
        ({"n": 10**6000}, "n must be an integer from 1 to 16384, got an integer of 19932 bits."),
        ({"stop_token_ids": [3, -1]}, "every id of stop_token_ids must be an integer of at least 0, got -1."),
        ({"detokenize": False, "stop": "x"}, "stop needs detokenize to be true, got false."),
        ({"temperature": 0, "n": 2}, "n must be 1 when temperature is 0 (greedy), got 2."),
    ],
)
def test_message_names_field_limit_and_value(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"^{re.escape(message)}$"):
        SamplingParams(**fields)


def test_defaults_are_those_of_vllm() -> None:
    assert msgspec.structs.asdict(SamplingParams()) == {
        "n": 1,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "seed": None,
        "stop": None,
        "stop_token_ids": None,
        "ignore_eos": False,
        "max_tokens": 16,
        "min_tokens": 0,
        "logprobs": None,
        "prompt_logprobs": None,
        "detokenize": True,
        "skip_special_tokens": True,
        "spaces_between_special_tokens": True,
        "include_stop_str_in_output": False,
        "truncate_prompt_tokens": None,
        "structured_outputs": None,
        "logit_bias": None,
        "allowed_token_ids": None,
        "bad_words": None,
        # Where vLLM has CUMULATIVE: AsyncLLM streams what is new unless told otherwise.
        "output_kind": None,
        "skip_reading_prefix_cache": None,
    }


def test_greedy_turns_the_filters_off() -> None:
    params = SamplingParams(temperature=0, top_p=0.5, top_k=7, min_p=0.2, repetition_penalty=1.3)
    assert params.is_greedy
    assert (params.top_p, params.top_k, params.min_p, params.repetition_penalty) == (1.0, 0, 0.0, 1.3)
    assert not SamplingParams(temperature=0.005).is_greedy


def test_no_max_tokens_allows_any_min_tokens() -> None:
    assert SamplingParams(max_tokens=None, min_tokens=1000).min_tokens == 1000


def test_stop_list_is_always_a_list() -> None:
    assert SamplingParams().stop_list == []
    assert SamplingParams(stop="a").stop_list == ["a"]
    assert SamplingParams(stop=["a", "b"]).stop_list == ["a", "b"]


@pytest.mark.parametrize("name", ["presence_penalty", "frequency_penalty", "repetition_penalty"])
def test_has_penalties(name: str) -> None:
    assert not SamplingParams().has_penalties
    assert SamplingParams(**{name: 1.5}).has_penalties


def test_clone_shares_nothing() -> None:
    params = SamplingParams(stop=["a"], stop_token_ids=[1], temperature=0, seed=4)
    copy = params.clone()
    assert copy == params
    copy.stop.append("b")  # type: ignore[union-attr]
    copy.stop_token_ids.append(2)  # type: ignore[union-attr]
    copy.seed = 5
    assert (params.stop, params.stop_token_ids, params.seed) == (["a"], [1], 4)


def test_the_callers_list_is_not_held() -> None:
    stops = ["a"]
    params = SamplingParams(stop=stops)
    stops.append("")
    assert params.stop == ["a"]


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(temperature=0),
        SamplingParams(temperature=0.001, top_k=-1, seed=-1),
        SamplingParams(n=np.int64(2), seed=np.int64(-5), stop=("x", "y"), stop_token_ids=[np.int32(9)], max_tokens=None, logprobs=-1),
        SamplingParams(seed=2**63 - 1, presence_penalty=1, top_p=0.5, min_p=0.1, ignore_eos=True, detokenize=False),
    ],
)
def test_survives_msgpack_json_and_replace(params: SamplingParams) -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=SamplingParams) == params
    assert msgspec.json.decode(msgspec.json.encode(params), type=SamplingParams) == params
    assert msgspec.structs.replace(params) == params
    assert msgspec.structs.replace(params, max_tokens=3).max_tokens == 3


def test_decoding_checks_too() -> None:
    with pytest.raises(msgspec.ValidationError, match="top_p must be"):
        msgspec.msgpack.decode(msgspec.msgpack.encode({"top_p": 2.0}), type=SamplingParams)
    with pytest.raises(msgspec.ValidationError, match="watermarking"):
        msgspec.msgpack.decode(msgspec.msgpack.encode({"watermarking": {}}), type=SamplingParams)


def test_replace_checks_too() -> None:
    with pytest.raises(InvalidRequestError, match="min_tokens"):
        msgspec.structs.replace(SamplingParams(min_tokens=5), max_tokens=4)


def test_a_whole_vocabulary_is_checked_at_once() -> None:
    """A request's lists of token ids are checked several times on its way, while others wait: without a call for each id."""
    listed = list(range(20_000))
    calls = Counter[str]()

    def count(frame: FrameType, event: str, _: object) -> None:
        calls[event] += 1

    sys.setprofile(count)
    try:
        params = SamplingParams(allowed_token_ids=listed, stop_token_ids=listed)
        params.verify(len(listed))
    finally:
        sys.setprofile(None)
    assert calls.total() < 1000
    assert params.allowed_token_ids == params.stop_token_ids == listed
    for wrong in (-1, True, 2**63, 1.0):
        with pytest.raises(InvalidRequestError, match="every id of allowed_token_ids must be an integer"):
            SamplingParams(allowed_token_ids=[*listed, wrong])  # type: ignore[list-item]


class TestVerify:
    def test_stop_ids_lie_in_the_vocabulary(self) -> None:
        SamplingParams(stop_token_ids=[99]).verify(100)
        with pytest.raises(InvalidRequestError, match=r"stop_token_ids holds 100, .* 100 tokens \(0 to 99\)") as caught:
            SamplingParams(stop_token_ids=[1, 100]).verify(100)
        assert caught.value.param == "stop_token_ids"

    @pytest.mark.parametrize(
        ("logprobs", "limit", "fits"),
        [(20, 20, True), (21, 20, False), (0, 0, True), (1, 0, False), (-1, 20, False), (-1, 100, True), (-1, -1, True), (5000, -1, True)],
    )
    @pytest.mark.parametrize("name", ["logprobs", "prompt_logprobs"])
    def test_logprobs_within_the_servers_limit(self, name: str, logprobs: int, limit: int, fits: bool) -> None:
        params = SamplingParams(**{name: logprobs})
        if fits:
            params.verify(100, limit)
            return
        with pytest.raises(InvalidRequestError, match=f"^{name} must be at most {limit}") as caught:
            params.verify(100, limit)
        assert caught.value.param == name

    def test_sees_what_was_assigned_later(self) -> None:
        params = SamplingParams()
        params.temperature = -3.0
        with pytest.raises(InvalidRequestError, match="temperature"):
            params.verify(100)


class TestFromOptional:
    def test_none_means_the_default_but_for_max_tokens(self) -> None:
        params = SamplingParams.from_optional(temperature=None, top_p=None, n=None, seed=3, logit_bias=None)
        assert params == SamplingParams(seed=3)
        assert SamplingParams.from_optional(max_tokens=None).max_tokens is None
        assert SamplingParams.from_optional().max_tokens == 16


# vLLM 0.32's, as its sampling_params.py lists them.
VLLM_FIELDS = {
    *("n", "presence_penalty", "frequency_penalty", "repetition_penalty", "temperature", "top_p", "top_k", "min_p", "seed", "stop"),
    *("stop_token_ids", "ignore_eos", "max_tokens", "min_tokens", "logprobs", "prompt_logprobs", "prompt_logprob_token_ids"),
    *("prompt_logprob_start", "logprob_token_ids", "flat_logprobs", "detokenize", "skip_special_tokens", "spaces_between_special_tokens"),
    *("include_stop_str_in_output", "output_kind", "stream_interval", "skip_clone", "output_text_buffer_length", "structured_outputs"),
    *("logit_bias", "allowed_token_ids", "extra_args", "bad_words", "skip_reading_prefix_cache", "thinking_token_budget"),
    *("repetition_detection", "routed_experts_prompt_start", "trace_decode_token_ids"),
}


class TestNames:
    def test_every_field_of_vllm_s_acts_or_is_refused_by_name(self) -> None:
        assert {*SamplingParams.__struct_fields__, *UNSUPPORTED_FIELDS} >= VLLM_FIELDS
        assert not UNSUPPORTED_FIELDS.keys() & set(SamplingParams.__struct_fields__)

    @pytest.mark.parametrize("make", [SamplingParams, SamplingParams.from_optional], ids=["SamplingParams", "from_optional"])
    @pytest.mark.parametrize("name", sorted(UNSUPPORTED_FIELDS))
    def test_a_field_that_this_version_lacks_is_named(self, name: str, make: Any) -> None:
        with pytest.raises(InvalidRequestError, match=f"^{name} is not supported by this version(; .+)?[.]$") as caught:
            make(**{name: 7}, top_p=0.5)
        assert caught.value.param == name
        assert ("structured_outputs with" in caught.value.message) is (name.startswith("guided_") and "decoding" not in name)
        assert make(**{name: None}, top_p=0.5) == SamplingParams(top_p=0.5)

    @pytest.mark.parametrize(
        ("fields", "words"),
        [
            ({"logits_processors": [print]}, r"; logit_bias, .* change what may be chosen\.$"),
            ({"best_of": 3}, r"; ask for n samples and take those of the highest cumulative_logprob"),
            ({"use_beam_search": True}, r"; call beam_search with BeamSearchParams\.$"),
            ({"flat_logprobs": True}, r"^flat_logprobs is not supported"),
            ({"early_stopping": np.array([0, 0])}, r"^early_stopping is not supported"),
            ({"length_penalty": np.ones(3)}, r"^length_penalty is not supported"),
        ],
    )
    def test_what_to_do_instead(self, fields: dict[str, Any], words: str) -> None:
        with pytest.raises(InvalidRequestError, match=words):
            SamplingParams(**fields)

    def test_what_asks_for_nothing(self) -> None:
        assert SamplingParams(use_beam_search=False, flat_logprobs=False, length_penalty=1.0, seed=4) == SamplingParams(seed=4)

    @pytest.mark.parametrize("make", [SamplingParams, SamplingParams.from_optional], ids=["SamplingParams", "from_optional"])
    @pytest.mark.parametrize(
        ("name", "nearest"),
        [("top_q", r"; did you mean top_p\?"), ("max_token", r"; did you mean max_tokens\?"), ("zzz", r"\.")],
    )
    def test_an_unknown_field_is_named_with_the_nearest(self, name: str, nearest: str, make: Any) -> None:
        with pytest.raises(InvalidRequestError, match=rf"^{name} is not a sampling parameter{nearest}$") as caught:
            make(**{name: 1})
        assert caught.value.param == name

    def test_what_is_decoded_and_copied_is_as_ever(self) -> None:
        params = SamplingParams(2, seed=3)
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=SamplingParams) == params
        assert msgspec.structs.replace(params, n=3) == SamplingParams(3, seed=3)
        with pytest.raises(msgspec.ValidationError, match="top_q"):
            msgspec.json.decode(b'{"top_q": 1}', type=SamplingParams)


def test_documentation_lists_every_field_with_its_default() -> None:
    sampling, beams = (Path(__file__).parents[2] / "docs" / "sampling.md").read_text().split("## Beam search")
    actual = [(name, repr(default)) for name, default in msgspec.structs.asdict(SamplingParams()).items()]
    assert re.findall(r"^\| `(\w+)` \| `([^`]+)` \|", sampling, re.MULTILINE) == actual
    fields = [(field.name, "" if field.required else f"`{field.default!r}`") for field in msgspec.structs.fields(BeamSearchParams)]
    assert re.findall(r"^\| `(\w+)` \| ?(`[^`]+`|) \|", beams, re.MULTILINE) == fields
