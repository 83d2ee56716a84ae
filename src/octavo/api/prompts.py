"""What a caller may give as a prompt; the dictionaries are vLLM's."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NotRequired, TypedDict, TypeVar, cast

from octavo.protocol.errors import InvalidRequestError

T = TypeVar("T")

LONGEST_SALT = 128


class TextPrompt(TypedDict):
    """Text. `cache_salt`, 1 to 128 characters, keeps the prompt's blocks from requests that don't have the same."""

    prompt: str
    cache_salt: NotRequired[str]


class TokensPrompt(TypedDict):
    """Token ids. `prompt` is the text that they came from, for the output alone; `cache_salt` as in TextPrompt."""

    prompt_token_ids: Sequence[int]
    prompt: NotRequired[str]
    cache_salt: NotRequired[str]


Prompt = str | Sequence[int] | TextPrompt | TokensPrompt
_KEYS = ("prompt", "prompt_token_ids", "cache_salt")


@dataclass(frozen=True, slots=True)
class PromptParts:
    """Text, token ids, or both, and the salt."""

    text: str | None
    token_ids: list[int] | None
    cache_salt: str | None


def prompt_parts(prompt: Prompt) -> PromptParts:
    """What is in a prompt. Raises InvalidRequestError for what is none."""
    if isinstance(prompt, str):
        return PromptParts(prompt, None, None)
    if not isinstance(prompt, Mapping):
        return PromptParts(None, token_ids(prompt), None)
    given = {name: value for name, value in prompt.items() if value is not None}
    for name in given:
        if name not in _KEYS:
            raise InvalidRequestError(f"prompt: {name!r} is not a key of a prompt, which are {', '.join(_KEYS)}", param="prompt")
    text, ids = given.get("prompt"), given.get("prompt_token_ids")
    if text is None and ids is None:
        raise InvalidRequestError("prompt: a dictionary needs prompt or prompt_token_ids", param="prompt")
    if text is not None and not isinstance(text, str):
        raise InvalidRequestError(f"prompt: must be a string, not {type(text).__name__}, in a dictionary", param="prompt")
    return PromptParts(text, None if ids is None else token_ids(ids), checked_salt(given.get("cache_salt")))


def checked_salt(salt: object) -> str | None:
    """The salt, if there is one. Raises InvalidRequestError for what can't be one: an empty one would keep nothing apart."""
    if salt is None:
        return None
    if not isinstance(salt, str) or not 1 <= len(salt) <= LONGEST_SALT:
        given = f"{len(salt)} characters" if isinstance(salt, str) else type(salt).__name__
        raise InvalidRequestError(f"cache_salt must be a string of 1 to {LONGEST_SALT} characters, not {given}", param="cache_salt")
    return salt


def is_token_id(value: object) -> bool:
    """Whether `value` is a whole number; numpy's are, True and 1.0 are not."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def token_ids(prompt: object) -> list[int]:
    """A list, tuple or one-dimensional array of whole numbers as a list of ints. Raises InvalidRequestError for anything else."""
    if isinstance(prompt, Iterable) and not isinstance(prompt, (Mapping, bytes, bytearray)):
        ids = list(prompt)
        if all(map(is_token_id, ids)):
            return [int(token) for token in ids]
    raise InvalidRequestError("prompt must be a string or a list of token ids", param="prompt")


def truncated(ids: list[int], count: int | None, room: int) -> list[int]:
    """The last `count` of `ids`, all if that is None; −1 means as many as leave the output its room, which `room` tokens of prompt do."""
    if count is None:
        return ids
    return ids[-max(1, room if count == -1 else count) :]


def as_prompts(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt or several, as a list: whole numbers in a row are one prompt, and so is a dictionary."""
    if isinstance(prompts, (str, Mapping)):
        return [cast("Prompt", prompts)]
    if not isinstance(prompts, Iterable) or isinstance(prompts, (bytes, bytearray)):
        raise InvalidRequestError(f"prompts must be strings or lists of token ids, not {type(prompts).__name__}", param="prompts")
    listed = list(prompts)
    if listed and all(map(is_token_id, listed)):
        return [cast("list[int]", listed)]
    return cast("list[Prompt]", listed)


def as_priorities(given: Sequence[int] | None, count: int) -> list[int]:
    """A priority for each of `count` prompts. Raises InvalidRequestError."""
    if given is None:
        return [0] * count
    if not isinstance(given, Sequence) or not all(map(is_token_id, given)):
        raise InvalidRequestError("priority must be a list of whole numbers, one for each prompt", param="priority")
    if len(given) != count:
        raise InvalidRequestError(f"there are {count} prompts but {len(given)} priorities", param="priority")
    return [int(each) for each in given]


def one_each(name: str, given: T | Sequence[T] | None, kind: type[T], default: Callable[[], T], count: int) -> list[T]:
    """What the argument `name` gives each of `count` prompts: one `kind` for all, one for each, or with None the default. Raises
    InvalidRequestError."""
    if given is None:
        return [default()] * count
    if isinstance(given, kind):
        return [given] * count
    if not isinstance(given, Sequence):
        raise InvalidRequestError(f"{name} must be {kind.__name__} or a list of them, not {type(given).__name__}", param=name)
    if len(given) != count:
        raise InvalidRequestError(f"there are {count} prompts but {len(given)} {name}", param=name)
    return list(given)


def as_conversations(messages: Any) -> list[list[dict[str, Any]]]:
    """One conversation or several, as a list: dictionaries in a row are one. Raises InvalidRequestError for what is no list at all."""
    if not isinstance(messages, Sequence) or isinstance(messages, (str, bytes)):
        given = "one message" if isinstance(messages, Mapping) else type(messages).__name__
        raise InvalidRequestError(f"messages must be a list of messages or a list of such lists, not {given}", param="messages")
    return [cast("list[dict[str, Any]]", messages)] if not messages or isinstance(messages[0], Mapping) else list(messages)


def check_variables_for_chat(given: Mapping[str, Any]) -> None:
    """Raises InvalidRequestError for a variable of the chat template that is an argument of its own."""
    for name in ("messages", "add_generation_prompt", "continue_final_message", "tools", "chat_template"):
        if name in given:
            raise InvalidRequestError(f"chat_template_kwargs can't set {name}", param="chat_template_kwargs")
