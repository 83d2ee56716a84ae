"""A request's sampling fields as SamplingParams: the request's value, else the model's default, else vLLM's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from octavo.protocol.beam_search import BeamSearchParams
from octavo.protocol.checks import show
from octavo.protocol.errors import InvalidRequestError
from octavo.protocol.sampling import SamplingParams
from octavo.server.beams import beam_params
from octavo.server.context import ServerContext
from octavo.server.prompts import TokenPrompt
from octavo.server.requests import Generation, TokenGeneration
from octavo.server.structured_outputs import structured_outputs_of

# Digits of a token id.
LONGEST_ID = 10
_FIELDS = (
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
    "allowed_token_ids",
    "bad_words",
)

# Up to so many logprobs at a token are few, however many tokens there are; more may come to so many in one request.
WIDE, MOST_LOGPROBS = 20, 1 << 19


def wanted_logprobs(logprobs: int | None, ctx: ServerContext, param: str) -> int | None:
    """How many `logprobs`, which came from the field `param`, are wanted; -1 are those of the whole vocabulary. Raises InvalidRequestError
    for more than this server gives."""
    if logprobs is None:
        return None
    size = ctx.llm.info.vocab_size
    wanted, most = size if logprobs == -1 else logprobs, size if ctx.llm.max_logprobs == -1 else ctx.llm.max_logprobs
    if wanted > most:
        whole = f" (the whole vocabulary, {size})" if logprobs == -1 else ""
        raise InvalidRequestError(f"{param}: may be at most {most} on this server, not {logprobs}{whole}.", param=param)
    return wanted


def check_many_logprobs(
    prompts: Sequence[TokenPrompt], params: SamplingParams | BeamSearchParams, logprobs: int | None, prompt_logprobs: int | None, field: str
) -> None:
    """Raises InvalidRequestError for more than WIDE logprobs at a token, if they come to more than MOST_LOGPROBS: a reply is written out on
    the thread that serves everybody. `field` is what `logprobs` came from."""
    known = sum(len(prompt.token_ids) for prompt in prompts)
    made = len(prompts) * (params.n if isinstance(params, SamplingParams) else params.beam_width) * (params.max_tokens or 0)
    for name, count, tokens in ((field, logprobs, made), ("prompt_logprobs", prompt_logprobs, known)):
        if count is not None and count > WIDE and count * tokens > MOST_LOGPROBS:
            raise InvalidRequestError(
                f"{name}: {count} for each of up to {tokens} tokens are more than the {MOST_LOGPROBS} that a request may ask for; ask for "
                "fewer, or for fewer tokens.",
                param=name,
            )


def check_prompt_logprobs(request: TokenGeneration) -> None:
    """Raises InvalidRequestError where the prompt's logprobs have no place in the reply: vLLM's chunks have none either."""
    if request.stream and request.prompt_logprobs is not None:
        raise InvalidRequestError("prompt_logprobs: can't be streamed.", param="prompt_logprobs")


def generation_params(
    request: Generation, ctx: ServerContext, *, computed: int, max_tokens: int, logprobs: int | None, prompt_logprobs: int | None = None
) -> SamplingParams | BeamSearchParams:
    """How to make `computed` completions of each prompt, of which `n` are returned. Where there are more, they have logprobs in any case.

    Raises InvalidRequestError that names the field at fault.
    """
    structured_outputs = structured_outputs_of(request)
    if request.use_beam_search:
        return beam_params(request, computed, max_tokens)
    chooses = computed > (request.n or 1)
    try:
        params = sampling_params(request, ctx, n=computed, max_tokens=max_tokens, logprobs=logprobs or 0 if chooses else logprobs)
    except InvalidRequestError as error:
        if error.param == "n" and chooses:
            raise InvalidRequestError(error.message.replace("n must", "best_of must", 1), param="best_of") from None
        raise
    params.prompt_logprobs, params.structured_outputs = prompt_logprobs, structured_outputs
    return params


def sampling_params(request: Generation, ctx: ServerContext, *, n: int, max_tokens: int, logprobs: int | None) -> SamplingParams:
    """SamplingParams for `n` samples of each prompt of `request`. Raises InvalidRequestError that names the field at fault."""
    values: dict[str, Any] = {name: value for name, value in ctx.llm.default_sampling.items() if name in _FIELDS}
    values |= {name: value for name in _FIELDS if (value := getattr(request, name)) is not None}
    if request.logit_bias is not None:
        values["logit_bias"] = _biases(request.logit_bias)
    params = SamplingParams(n=n, max_tokens=max_tokens, logprobs=logprobs, **values)
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


def _biases(biases: dict[str, float]) -> dict[int, float]:
    found: dict[int, float] = {}
    for name, bias in biases.items():
        token_id = _token_id(name)
        if token_id in found:
            raise InvalidRequestError(f"logit_bias: names token {token_id} twice.", param="logit_bias")
        found[token_id] = bias
    return found


def _token_id(name: str) -> int:
    """A token id as JSON has it for a name. Raises InvalidRequestError."""
    if not (name.isascii() and name.isdecimal() and len(name) <= LONGEST_ID):
        raise InvalidRequestError(f'logit_bias: its names must be token ids, like "50256", not {show(name)}.', param="logit_bias")
    return int(name)
