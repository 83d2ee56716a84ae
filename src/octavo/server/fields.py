"""Request fields of OpenAI and vLLM that this version lacks, with the values that mean "off" and are therefore let through.

Clients send many of these routinely as null or at their default; only a value that asks for something is refused. null is always off.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Field → values besides null that ask for nothing.
OffValues = Mapping[str, tuple[Any, ...]]

_SHARED: dict[str, tuple[Any, ...]] = {
    "moderation": (),
    "prompt_cache_options": ({},),
    "logprob_token_ids": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json_object": (False,),
    "guided_decoding_backend": (),
    "guided_whitespace_pattern": (),
    "session_id": (),
    "return_token_offsets": (False,),
    "return_mm_kwargs": (False,),
    "routed_experts_prompt_start": (),
    "kv_transfer_params": (),
    "ec_transfer_params": (),
    "vllm_xargs": ({},),
    "mm_payload": (),
    "repetition_detection": (),
    "thinking_token_budget": (),
    "stream_interval": (1,),
    "watermarking": (),
}

COMPLETION_OFF: OffValues = {
    **_SHARED,
    "suffix": ("",),
    "prompt_embeds": (),
}

GENERATE_OFF: OffValues = {
    **COMPLETION_OFF,
    "echo": (False,),
    "logprobs": (),
    "prompt_logprobs": (),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
}

_CHAT_RENDERING: dict[str, tuple[Any, ...]] = {
    "mm_processor_kwargs": ({},),
    "media_io_kwargs": ({},),
}

CHAT_OFF: OffValues = {
    **_SHARED,
    **_CHAT_RENDERING,
    "return_prompt_text": (False,),
    "functions": ([],),
    "function_call": ("none",),
    "verbosity": (),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "web_search_options": (),
}

TOKENIZE_OFF: OffValues = dict(_CHAT_RENDERING)


# Fields that are taken and change nothing that is computed: clients of OpenAI send them.
WITHOUT_EFFECT = frozenset(
    {
        *("user", "metadata", "service_tier", "store", "safety_identifier"),
        *("prompt_cache_key", "prompt_cache_retention", "cache_control"),
    }
)
# Fields that a route shares with others and has no use for.
REFUSED_AT: Mapping[str, tuple[str, ...]] = {"/generate": ("stream_options",)}
# The version that a field, or a route, came with, where that is not the first one.
FIRST_VERSION = "0.1.0"
SINCE: Mapping[str, str] = {}


def is_off(value: Any, off_values: tuple[Any, ...]) -> bool:
    """Whether `value` is null or one of `off_values`; 0 is not false, but 1 is 1.0."""
    return value is None or any(value == off and isinstance(value, bool) == isinstance(off, bool) for off in off_values)
