"""Prompts as clients send them, checked and turned into token ids that fit the model's context."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from octavo.protocol.errors import InvalidRequestError
from octavo.server.context import ServerContext
from octavo.server.requests import Generation
from octavo.text.tokenizer import Tokenizer
from octavo.utils.background import in_background

MAX_PROMPTS = 1024
# Tokenizing this much text takes milliseconds; more goes to a thread, so that other requests' tokens keep flowing.
INLINE_CHARACTERS = 16 * 1024


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """Token ids, the request's field that they came from, and the text, if it was one and is whole."""

    token_ids: list[int]
    param: str
    text: str | None = None


def split_prompts(value: Any) -> list[tuple[str, str | list[Any]]]:
    """The prompts in a `prompt` field, each with its dotted path: a string, strings, token ids, or lists of token ids.

    Raises InvalidRequestError for anything else and for empty ones.
    """
    if isinstance(value, str):
        prompts: list[tuple[str, Any]] = [("prompt", value)]
    elif not isinstance(value, list):
        raise InvalidRequestError("prompt: must be a string, a list of strings, or token ids.", param="prompt")
    elif value and isinstance(value[0], int):
        prompts = [("prompt", value)]
    else:
        prompts = [(f"prompt.{index}", prompt) for index, prompt in enumerate(value)]
    if not prompts:
        raise InvalidRequestError("prompt: is empty.", param="prompt")
    if len(prompts) > MAX_PROMPTS:
        raise InvalidRequestError(f"prompt: may hold at most {MAX_PROMPTS} prompts, not {len(prompts)}.", param="prompt")
    kind = type(prompts[0][1])
    for path, prompt in prompts:
        if not isinstance(prompt, (str, list)) or type(prompt) is not kind:
            raise InvalidRequestError(f"{path}: must be a string or a list of token ids, and all prompts alike.", param=path)
        if not prompt:
            raise InvalidRequestError(f"{path}: is empty.", param=path)
    return prompts


@dataclass(frozen=True, slots=True)
class Bound:
    """How many tokens the field `param` may have."""

    most: int
    param: str


async def encode(tokenizer: Tokenizer, text: str, add_special_tokens: bool, bound: Bound | None = None) -> list[int]:
    """Token ids of `text`; long ones are encoded in a thread, unless their length alone takes them over the `bound`, which is an
    InvalidRequestError."""
    if len(text) <= INLINE_CHARACTERS:
        return tokenizer.encode(text, add_special_tokens)

    def encode_long() -> list[int]:
        if bound is not None:
            _check_length(tokenizer.least_tokens(text), bound)
        return tokenizer.encode(text, add_special_tokens)

    return await in_background(encode_long)


def _check_length(least: int, bound: Bound) -> None:
    if least > bound.most:
        raise InvalidRequestError(
            f"{bound.param}: has {least} tokens or more, but the model's context of {bound.most} tokens must hold the prompt and what "
            "comes behind it.",
            param=bound.param,
            code="context_length_exceeded",
        )


@dataclass(frozen=True, slots=True)
class Truncation:
    """How many tokens of a prompt are kept, None for all, and whether at its beginning in place of its end."""

    count: int | None
    keep_first: bool

    def __call__(self, token_ids: list[int]) -> list[int]:
        """What is kept."""
        if self.count is None or len(token_ids) <= self.count:
            return token_ids
        return token_ids[: self.count] if self.keep_first else token_ids[-self.count :]


def truncation(request: Generation, max_model_len: int, max_tokens: int | None) -> Truncation:
    """How the prompts of `request`, which wants `max_tokens` of output, are truncated. Raises InvalidRequestError for a number that can't
    be."""
    count = request.truncate_prompt_tokens
    if count is None and request.truncation_side is not None:
        raise InvalidRequestError("truncation_side: needs truncate_prompt_tokens.", param="truncation_side")
    if count == 0:
        raise InvalidRequestError("truncate_prompt_tokens: must be -1 or at least 1, not 0.", param="truncate_prompt_tokens")
    if count == -1:
        count = max(1, max_model_len - (max_tokens or 1))
    return Truncation(count, request.truncation_side == "right")


def check_added(add_special_tokens: bool | None, path: str) -> None:
    """Raises InvalidRequestError where special tokens are asked for around the token ids at `path`, which are taken as they are."""
    if add_special_tokens:
        raise InvalidRequestError(
            f"add_special_tokens: none are added to token ids, which {path} has; leave it out, or give false.", param="add_special_tokens"
        )


async def tokenize_prompts(ctx: ServerContext, value: Any, add_special_tokens: bool | None, truncate: Truncation) -> list[TokenPrompt]:
    """The token ids of each prompt in a `prompt` field. Raises InvalidRequestError for one that is empty, too long or out of range."""
    prompts = []
    for path, prompt in split_prompts(value):
        if isinstance(prompt, str):
            bound = None if truncate.count is not None else Bound(ctx.llm.info.max_model_len, path)
            token_ids = await encode(ctx.llm.tokenizer, prompt, add_special_tokens is not False, bound)
        else:
            check_added(add_special_tokens, path)
            token_ids = prompt
        kept = truncate(token_ids)
        check_fits(kept, ctx.llm.info.max_model_len, path)
        if isinstance(prompt, list):
            check_token_ids(token_ids, ctx.llm.info.vocab_size, path)
        text = prompt if isinstance(prompt, str) and len(kept) == len(token_ids) else None
        prompts.append(TokenPrompt(kept, path, text))
    return prompts


def check_token_ids(token_ids: list[Any], vocab_size: int, path: str) -> None:
    """Raises InvalidRequestError that names the first of `token_ids` that is no token of the model."""
    # Millions of ids, which is what a body may hold, are checked at once; the loop looks for the one at fault.
    if set(map(type, token_ids)) <= {int} and (not token_ids or (min(token_ids) >= 0 and max(token_ids) < vocab_size)):
        return
    for index, token_id in enumerate(token_ids):
        if type(token_id) is not int:
            raise InvalidRequestError(f"{path}.{index}: must be a token id.", param=f"{path}.{index}")
        if not 0 <= token_id < vocab_size:
            raise InvalidRequestError(
                f"{path}.{index}: token id {_short(token_id)} is outside the model's vocabulary of {vocab_size}.", param=f"{path}.{index}"
            )


def check_fits(token_ids: list[int], max_model_len: int, param: str) -> None:
    """Raises InvalidRequestError unless `token_ids` leave room for one more token in the context."""
    if not token_ids:
        raise InvalidRequestError(f"{param}: gives no tokens.", param=param)
    if len(token_ids) >= max_model_len:
        raise InvalidRequestError(
            f"{param}: has {len(token_ids)} tokens, but the model's context of {max_model_len} tokens must hold the prompt and at least "
            "one token of output.",
            param=param,
            code="context_length_exceeded",
        )


def check_room(prompts: list[TokenPrompt], max_tokens: int, max_model_len: int, param: str) -> None:
    """Raises InvalidRequestError when `max_tokens`, which the client asked for, don't fit behind the longest of `prompts`."""
    longest = max(len(prompt.token_ids) for prompt in prompts)
    if longest + max_tokens > max_model_len:
        raise InvalidRequestError(
            f"{param}: {max_tokens} tokens of output and {longest} of prompt make {longest + max_tokens}, but the longest request here is "
            f"{max_model_len} tokens.",
            param=param,
            code="context_length_exceeded",
        )


def _short(number: int) -> str:
    return str(number) if abs(number) < 10**20 else "(a huge number)"
