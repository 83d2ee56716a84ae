"""How a request wants its continuations searched."""

from __future__ import annotations

import msgspec

from octavo.protocol.checks import flag, integer, number, show
from octavo.protocol.errors import InvalidRequestError

MAX_BEAM_WIDTH = 16_384
# The length of any context, raised to it, is still a float.
MAX_LENGTH_PENALTY = 10.0


class BeamSearchParams(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """Names, order and defaults are vLLM's; `early_stopping` and what a search gives are transformers' (`docs/sampling.md`).

    `beam_width` sequences are followed at once, and as many are returned; each has at most `max_tokens` tokens. A finished one counts its
    summed logprobs divided by its number of tokens to the power of `length_penalty`. `early_stopping` True ends with `beam_width` finished
    ones; False when the best running one, at its present length, counts no more than the last of these; "never" only when none could come
    to count more. `temperature` is there because vLLM has it: 0 and 1 both mean the model's own probabilities, and nothing else is taken.

    Raises InvalidRequestError, with `param` naming the field, for a value of the wrong type or outside its limits.
    """

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    temperature: float = 0.0
    length_penalty: float = 1.0
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    early_stopping: bool | str = False

    def __post_init__(self) -> None:
        self.beam_width = integer("beam_width", self.beam_width, 1, MAX_BEAM_WIDTH)
        self.max_tokens = integer("max_tokens", self.max_tokens, 1)
        self.length_penalty = number("length_penalty", self.length_penalty, -MAX_LENGTH_PENALTY, MAX_LENGTH_PENALTY)
        for name in ("ignore_eos", "include_stop_str_in_output", "skip_special_tokens"):
            flag(name, getattr(self, name))
        if isinstance(self.temperature, bool) or self.temperature not in (0, 1):
            raise InvalidRequestError(
                f"temperature must be 0 or 1 in beam search, which draws nothing, got {show(self.temperature)}.", param="temperature"
            )
        if not isinstance(self.early_stopping, bool) and self.early_stopping != "never":
            raise InvalidRequestError(
                f'early_stopping must be true, false or "never", got {show(self.early_stopping)}.', param="early_stopping"
            )

    def clone(self) -> BeamSearchParams:
        """An independent copy, with every field checked again, for it may have been assigned to since."""
        return msgspec.structs.replace(self)
