"""How a request wants its tokens chosen."""

from __future__ import annotations

import numbers
from enum import Enum
from typing import Any

import msgspec

from octavo.protocol.checks import MAX_INT, flag, integer, number, show
from octavo.protocol.errors import InvalidRequestError
from octavo.protocol.sampling_names import NamesItsFields
from octavo.protocol.structured_outputs import StructuredOutputsParams

MAX_N = 16_384
GREEDY_BELOW = 1e-5
MIN_TEMPERATURE = 0.01
MAX_TEMPERATURE = 2.0
MAX_BIAS = 100.0
MAX_BAD_WORDS = 1024
MAX_BAD_WORD_CHARS = 1000
MAX_BAD_WORDS_CHARS = 64 * 1024


class RequestOutputKind(Enum):
    """What each output of a streamed request holds: all so far, what is new, or, in one output at the end, everything."""

    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


class SamplingParams(msgspec.Struct, metaclass=NamesItsFields, omit_defaults=True, forbid_unknown_fields=True):
    """Names, order, defaults and limits are vLLM's; `docs/sampling.md` lists them.

    Values are checked and brought to their plain Python type when the object is made, copied or decoded:

    - a temperature under 1e-5 becomes 0 and means greedy choice, which also sets top_p=1, top_k=0 and min_p=0;
      one between that and 0.01 is raised to 0.01, below which float32 logits lose their meaning;
    - `seed=-1` becomes None, `top_k=-1` becomes 0 (off), a `logit_bias` beyond -100 or 100 becomes that;
    - numpy numbers become Python numbers, tuples become lists.

    Raises InvalidRequestError, with `param` naming the field, for a value of the wrong type or outside its limits, for a field of vLLM's
    that this version lacks (None and vLLM's default are all it may be), and for one that nobody knows.
    """

    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    truncate_prompt_tokens: int | None = None
    structured_outputs: StructuredOutputsParams | None = None
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    output_kind: RequestOutputKind | None = None
    skip_reading_prefix_cache: bool | None = None

    def __post_init__(self) -> None:
        self._check_numbers()
        self._check_lengths()
        self._check_stops()
        self._check_tokens()
        if self.structured_outputs is not None and not isinstance(self.structured_outputs, StructuredOutputsParams):
            raise InvalidRequestError(
                f"structured_outputs must be StructuredOutputsParams, got {show(self.structured_outputs)}.", param="structured_outputs"
            )
        if self.output_kind is not None and not isinstance(self.output_kind, RequestOutputKind):
            raise InvalidRequestError(f"output_kind must be a RequestOutputKind, got {show(self.output_kind)}.", param="output_kind")
        if self.skip_reading_prefix_cache is not None:
            flag("skip_reading_prefix_cache", self.skip_reading_prefix_cache)
        if self.is_greedy:
            if self.n > 1:
                raise InvalidRequestError(f"n must be 1 when temperature is 0 (greedy), got {self.n}.", param="n")
            self.temperature = 0.0
            self.top_p, self.top_k, self.min_p = 1.0, 0, 0.0
        elif self.temperature < MIN_TEMPERATURE:
            self.temperature = MIN_TEMPERATURE

    @classmethod
    def from_optional(cls, **fields: Any) -> SamplingParams:
        """Build from fields of which some may be None, as an HTTP body or a caller's keywords give them.

        None means "the default", except for `max_tokens`, where it means "no limit of the request's own". Raises as SamplingParams does.
        """
        return cls(**{name: value for name, value in fields.items() if value is not None or name == "max_tokens"})

    def verify(self, vocab_size: int, max_logprobs: int = 20) -> None:
        """Check against the model and the server: stop ids must lie in the vocabulary, `logprobs` and `prompt_logprobs` under the limit.

        `max_logprobs` is the most that the server gives, -1 for no limit. Every other field is checked again, for it may have been
        assigned to since. Raises InvalidRequestError.
        """
        self.__post_init__()
        for name in ("stop_token_ids", "logit_bias", "allowed_token_ids"):
            token_id = max(getattr(self, name) or (), default=0)
            if token_id >= vocab_size:
                raise InvalidRequestError(
                    f"{name} holds {token_id}, but the vocabulary has {vocab_size} tokens (0 to {vocab_size - 1}).", param=name
                )
        if max_logprobs == -1:
            return
        for name, asked in (("logprobs", self.logprobs), ("prompt_logprobs", self.prompt_logprobs)):
            wanted = vocab_size if asked == -1 else asked or 0
            if wanted > max_logprobs:
                whole = " (-1, the whole vocabulary)" if asked == -1 else ""
                raise InvalidRequestError(f"{name} must be at most {max_logprobs}, got {wanted}{whole}.", param=name)

    def clone(self) -> SamplingParams:
        """An independent copy: lists are copied too."""
        return msgspec.structs.replace(self)

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature < GREEDY_BELOW

    @property
    def stop_list(self) -> list[str]:
        """The stop strings as a list, empty if there are none."""
        if self.stop is None:
            return []
        return [self.stop] if isinstance(self.stop, str) else list(self.stop)

    @property
    def has_penalties(self) -> bool:
        """Whether any of the three penalties changes a logit."""
        return self.presence_penalty != 0.0 or self.frequency_penalty != 0.0 or self.repetition_penalty != 1.0

    def _check_numbers(self) -> None:
        self.n = integer("n", self.n, 1, MAX_N)
        self.presence_penalty = number("presence_penalty", self.presence_penalty, -2.0, 2.0)
        self.frequency_penalty = number("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        self.repetition_penalty = number("repetition_penalty", self.repetition_penalty, 1e-6, 1e6)
        self.temperature = number("temperature", self.temperature, 0.0, MAX_TEMPERATURE)
        self.top_p = number("top_p", self.top_p, 0.0, 1.0, open_low=True)
        self.top_k = max(integer("top_k", self.top_k, -1), 0)
        self.min_p = number("min_p", self.min_p, 0.0, 1.0)
        if self.seed is not None:
            seed = integer("seed", self.seed, -(2**63))
            self.seed = None if seed == -1 else seed

    def _check_lengths(self) -> None:
        if self.max_tokens is not None:
            self.max_tokens = integer("max_tokens", self.max_tokens, 1)
        self.min_tokens = integer("min_tokens", self.min_tokens, 0)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidRequestError(
                f"min_tokens must be at most max_tokens ({self.max_tokens}), got {self.min_tokens}.", param="min_tokens"
            )
        if self.logprobs is not None:
            self.logprobs = integer("logprobs", self.logprobs, -1)
        if self.prompt_logprobs is not None:
            self.prompt_logprobs = integer("prompt_logprobs", self.prompt_logprobs, -1)
        if self.truncate_prompt_tokens is not None:
            self.truncate_prompt_tokens = integer("truncate_prompt_tokens", self.truncate_prompt_tokens, -1)
            if self.truncate_prompt_tokens == 0:
                raise InvalidRequestError("truncate_prompt_tokens must be -1 or at least 1, got 0.", param="truncate_prompt_tokens")

    def _check_tokens(self) -> None:
        if self.logit_bias is not None:
            if not isinstance(self.logit_bias, dict):
                raise InvalidRequestError(
                    f"logit_bias must be a dictionary of token ids and numbers, got {show(self.logit_bias)}.", param="logit_bias"
                )
            self.logit_bias = {
                integer("logit_bias", token, 0, what="every id of logit_bias"): _bias(value) for token, value in self.logit_bias.items()
            }
        if self.allowed_token_ids is not None:
            self.allowed_token_ids = _token_ids("allowed_token_ids", self.allowed_token_ids)
            if not self.allowed_token_ids:
                raise InvalidRequestError("allowed_token_ids must not be empty: no token could be chosen.", param="allowed_token_ids")
        if self.bad_words is not None:
            self.bad_words = [_string("bad_words", item) for item in _items("bad_words", self.bad_words, "a list of strings")]
            _check_bad_words(self.bad_words)

    def _check_stops(self) -> None:
        for name in _FLAGS:
            flag(name, getattr(self, name))
        if isinstance(self.stop, str):
            _string("stop", self.stop)
        elif self.stop is not None:
            self.stop = [_string("stop", item) for item in _items("stop", self.stop, "a string or a list of strings")]
        if self.stop and not self.detokenize:
            raise InvalidRequestError("stop needs detokenize to be true, got false.", param="stop")
        if self.stop_token_ids is not None:
            self.stop_token_ids = _token_ids("stop_token_ids", self.stop_token_ids)


def _check_bad_words(words: list[str]) -> None:
    """They are tokenized before the request is taken, while others wait."""
    if len(words) > MAX_BAD_WORDS:
        raise InvalidRequestError(f"bad_words may hold at most {MAX_BAD_WORDS} words, got {len(words)}.", param="bad_words")
    longest = max(map(len, words), default=0)
    if longest > MAX_BAD_WORD_CHARS:
        raise InvalidRequestError(
            f"every one of bad_words must be at most {MAX_BAD_WORD_CHARS} characters long, got {longest}.", param="bad_words"
        )
    total = sum(map(len, words))
    if total > MAX_BAD_WORDS_CHARS:
        raise InvalidRequestError(f"bad_words together may have at most {MAX_BAD_WORDS_CHARS} characters, got {total}.", param="bad_words")


_FLAGS = ("ignore_eos", "detokenize", "skip_special_tokens", "spaces_between_special_tokens", "include_stop_str_in_output")


def _items(name: str, value: object, what: str) -> list[object]:
    if not isinstance(value, list | tuple):
        raise InvalidRequestError(f"{name} must be {what}, got {show(value)}.", param=name)
    return list(value)


def _token_ids(name: str, value: object) -> list[int]:
    """A list that may name a whole vocabulary, and is checked several times on a request's way: by two passes in C where it is sound."""
    ids: list[Any] = _items(name, value, "a list of token ids")
    if {*map(type, ids)} == {int} and min(ids) >= 0 and max(ids) <= MAX_INT:
        return ids
    return [integer(name, item, 0, what=f"every id of {name}") for item in ids]


def _bias(value: Any) -> float:
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if is_number and value == value:  # no NaN
        # Bounded first: an integer may be too large for a float.
        return float(min(max(value, -MAX_BIAS), MAX_BIAS))
    raise InvalidRequestError(f"every value of logit_bias must be a number, got {show(value)}.", param="logit_bias")


def _string(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise InvalidRequestError(f"every string of {name} must be a string, got {show(value)}.", param=name)
    if not value:
        raise InvalidRequestError(f"{name} must not hold an empty string, got ''.", param=name)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidRequestError(f"{name} must be valid Unicode, got {show(value)} with a lone surrogate.", param=name) from None
    return value
