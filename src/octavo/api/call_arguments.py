"""Arguments of vLLM's calls that Octavo has nothing to do for: taken where the value asks for nothing, else refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from octavo.protocol.errors import InvalidRequestError
from octavo.protocol.lora import refuse_adapters
from octavo.utils.nearest import did_you_mean

_NOTHING: tuple[Any, ...] = (None, {})
_PROMPTS = "a prompt's length is bounded by truncate_prompt_tokens of SamplingParams, and its tokens can be given as prompt_token_ids"

# The values that ask for nothing, and why others can't be served.
_KNOWN: dict[str, tuple[tuple[Any, ...], str]] = {
    "tokenization_kwargs": (_NOTHING, _PROMPTS),
    "mm_processor_kwargs": (_NOTHING, "its models take text only"),
    "chat_template_content_format": (("auto",), "the chat template itself shows whether it reads text or parts"),
    "concurrency_limit": ((None,), "max_num_seqs bounds how many run at once"),
    "prompt_text": ((None,), "a prompt of token ids brings its text as prompt"),
    "arrival_time": ((None,), "a request arrives when it is made"),
    "trace_headers": (_NOTHING, "it sends no traces"),
    "data_parallel_rank": ((None,), "it runs on one device"),
    "reset_connector": ((False,), "it has no KV connector"),
}

_POOLED = ("lora_request", "tokenization_kwargs")
_QUEUED = ("tokenization_kwargs", "prompt_text", "trace_headers", "data_parallel_rank")
_TAKEN: dict[str, tuple[str, ...]] = {
    "LLM.generate": ("tokenization_kwargs", "mm_processor_kwargs"),
    "LLM.chat": ("chat_template_content_format", "tokenization_kwargs", "mm_processor_kwargs"),
    "LLM.beam_search": ("lora_request", "concurrency_limit"),
    "LLM.embed": _POOLED,
    "LLM.encode": _POOLED,
    "LLM.reset_prefix_cache": ("reset_connector",),
    "LLMEngine.add_request": (*_QUEUED, "arrival_time"),
    "LLMEngine.reset_prefix_cache": ("reset_connector",),
    "AsyncLLMEngine.generate": _QUEUED,
    "AsyncLLMEngine.encode": _QUEUED,
    "AsyncLLMEngine.reset_prefix_cache": ("reset_connector",),
}


def refuse_more(call: str, given: Mapping[str, Any]) -> None:
    """Raises InvalidRequestError for an argument of vLLM's `call` that asks for something, TypeError for one that nobody knows."""
    for name, value in given.items():
        if name not in _TAKEN[call]:
            raise TypeError(f"{call}() has no argument {name!r}{did_you_mean(name, _TAKEN[call])}")
        if name == "lora_request":
            refuse_adapters(value)
            continue
        harmless, reason = _KNOWN[name]
        if not any(value is each or (type(value) is type(each) and value == each) for each in harmless):
            raise InvalidRequestError(f"{name}: {value!r:.100} is not supported by this version of Octavo: {reason}", param=name)
