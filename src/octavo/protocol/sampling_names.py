"""Names of sampling parameters that Octavo does not have: vLLM's, each with what to do instead, and those that nobody knows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from octavo.protocol.errors import InvalidRequestError
from octavo.utils.nearest import did_you_mean

_STRUCTURED = "use structured_outputs"
_BEAMS = "call beam_search with BeamSearchParams"
_PROMPT_LOGPROBS = "prompt_logprobs gives those of every token of the prompt"

# Fields of vLLM's SamplingParams, of 0.32 or of older versions, and of its HTTP requests, that say how tokens are chosen: what to do
# instead, where there is something.
UNSUPPORTED_FIELDS = {
    "best_of": "ask for n samples and take those of the highest cumulative_logprob, or ask the server's /v1/completions, which has it",
    "early_stopping": _BEAMS,
    "extra_args": "",
    "flat_logprobs": "logprobs come as a list of dictionaries",
    "guided_choice": f"{_STRUCTURED} with choice",
    "guided_decoding": _STRUCTURED,
    "guided_decoding_backend": _STRUCTURED,
    "guided_grammar": f"{_STRUCTURED} with grammar",
    "guided_json": f"{_STRUCTURED} with json",
    "guided_json_object": f"{_STRUCTURED} with json_object",
    "guided_regex": f"{_STRUCTURED} with regex",
    "guided_whitespace_pattern": f"{_STRUCTURED} with whitespace_pattern",
    "length_penalty": _BEAMS,
    "logits_processors": "logit_bias, allowed_token_ids, bad_words and structured_outputs change what may be chosen",
    "logprob_token_ids": "logprobs gives the likeliest tokens",
    "output_text_buffer_length": "",
    "prompt_logprob_start": _PROMPT_LOGPROBS,
    "prompt_logprob_token_ids": _PROMPT_LOGPROBS,
    "repetition_detection": "repetition_penalty, frequency_penalty and stop keep a text from going round",
    "routed_experts_prompt_start": "",
    "skip_clone": "",
    "stream_interval": "every step's tokens are streamed as they come",
    "thinking_token_budget": "",
    "trace_decode_token_ids": "prompt_logprobs gives the logprobs of tokens that are known",
    "truncation_side": "truncate_prompt_tokens keeps the end of a prompt",
    "use_beam_search": _BEAMS,
    "vllm_xargs": "",
    "watermarking": "",
}

# Their defaults in vLLM, which ask for nothing.
_DEFAULTS: dict[str, Any] = {
    "early_stopping": False,
    "flat_logprobs": False,
    "length_penalty": 1.0,
    "output_text_buffer_length": 0,
    "routed_experts_prompt_start": 0,
    "skip_clone": False,
    "use_beam_search": False,
}


def known_fields(given: Mapping[str, Any], known: Iterable[str], called: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Those of `given` that are `known`. One that vLLM has may be None, or have vLLM's default; raises InvalidRequestError for others,
    which names the nearest known one, by what it is `called` if that is something else."""
    names = frozenset(known)
    found = {name: value for name, value in given.items() if name in names}
    told = sorted((called or {}).get(name, name) for name in names)
    for name, value in given.items():
        if name in names:
            continue
        if name not in UNSUPPORTED_FIELDS:
            raise InvalidRequestError(f"{name} is not a sampling parameter{did_you_mean(name, told) or '.'}", param=name)
        if value is not None and not _is_default(name, value):
            hint = UNSUPPORTED_FIELDS[name]
            raise InvalidRequestError(f"{name} is not supported by this version{hint and '; '}{hint}.", param=name)
    return found


def _is_default(name: str, value: Any) -> bool:
    """Whether vLLM has `value` where nothing is asked for; arrays, and what else has no one answer to that, are none."""
    try:
        return name in _DEFAULTS and bool(value == _DEFAULTS[name])
    except Exception:
        return False


class NamesItsFields(msgspec.StructMeta):
    """The class of a struct whose keywords are looked at before anything is made, so that an unknown one is an error of the request."""

    def __call__(self, *values: Any, **fields: Any) -> Any:
        """Makes one. Raises InvalidRequestError for a keyword that is no field."""
        if any(name not in self.__struct_fields__ for name in fields):
            fields = known_fields(fields, self.__struct_fields__)
        return super().__call__(*values, **fields)
