"""A request's sampling fields as SamplingParams: the request's value, else the model's default, else vLLM's."""

from __future__ import annotations

from typing import Any

from octavo.protocol.errors import InvalidRequestError
from octavo.protocol.sampling import SamplingParams
from octavo.server.context import ServerContext
from octavo.server.requests import Generation

_FIELDS = (
    "n",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "stop",
    "stop_token_ids",
    "min_tokens",
    "ignore_eos",
    "include_stop_str_in_output",
    "skip_special_tokens",
    "spaces_between_special_tokens",
)


def sampling_params(request: Generation, ctx: ServerContext, *, max_tokens: int | None, logprobs: int | None, param: str) -> SamplingParams:
    """SamplingParams for `request`; `max_tokens` None means the rest of the context. `param` is the field that `logprobs` came from.

    Raises InvalidRequestError that names the field at fault.
    """
    if logprobs is not None and logprobs > ctx.options.max_logprobs:
        raise InvalidRequestError(f"{param}: may be at most {ctx.options.max_logprobs} on this server, not {logprobs}.", param=param)
    values: dict[str, Any] = {name: value for name, value in ctx.llm.default_sampling.items() if name in _FIELDS}
    values |= {name: value for name in _FIELDS if (value := getattr(request, name)) is not None}
    params = SamplingParams(max_tokens=max_tokens, logprobs=logprobs, **values)
    params.verify(ctx.llm.info.vocab_size, max_logprobs=-1)
    return params


def streams(request: Generation) -> bool:
    """Whether the reply is to be streamed. Raises InvalidRequestError for stream options that can't hold."""
    options = request.stream_options
    if options is None:
        return bool(request.stream)
    if not request.stream:
        raise InvalidRequestError("stream_options: may be given only when stream is true.", param="stream_options")
    if options.continuous_usage_stats and not options.include_usage:
        path = "stream_options.continuous_usage_stats"
        raise InvalidRequestError(f"{path}: needs include_usage.", param=path)
    return True
