"""What a step's sampling hands to a program that samples by itself, and what it gets back: plain arrays and lists."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

# How one row is sampled: as `octavo.protocol.sampling.SamplingParams` says, with the random number's key. temperature 0 takes the highest
# logit; top_k 0 is off; `logprobs` is the number of most likely tokens wanted beside the chosen one, −1 for no logprobs at all; `changes`
# and `biases` are how many of the step's changes and biases are this row's, and `mask` is which of its masks, −1 for none. A `given` token,
# −1 for none, is not chosen: only its logprobs are wanted.
ROW = np.dtype(
    [
        ("seed", np.uint64),
        ("position", np.int64),
        ("top_p", np.float64),
        ("temperature", np.float32),
        ("min_p", np.float32),
        ("repetition", np.float32),
        ("frequency", np.float32),
        ("presence", np.float32),
        ("top_k", np.int32),
        ("logprobs", np.int32),
        ("changes", np.int32),
        ("given", np.int32),
        ("biases", np.int32),
        ("mask", np.int32),
    ],
    align=True,
)

# In a count's place: the token can't be chosen.
FORBIDDEN = -1


class NoToken(IntEnum):
    """Why a row has no token; stands in the token's place."""

    NAN = -1
    INFINITY = -2
    NOTHING = -3
    MASKED = -4
    OVERFLOW = -5


@dataclass(frozen=True, slots=True)
class SamplingInputs:
    """A ROW for each row of logits, and the tokens whose logits change before anything is chosen, row after row.

    `changed_counts` says how often the token of `changed_ids` at the same place was generated, 0 for one of the prompt alone (both bring
    the row's penalties, of which only repetition looks at the prompt), or FORBIDDEN. Before that `biases` are added to the logits of
    `biased_ids`, row after row, and nothing can be chosen that a row's mask leaves out: `masks` `[masks, words]` have bit i of word w for
    token 32 · w + i. Ids lie in the vocabulary.
    """

    rows: npt.NDArray[np.void]
    changed_ids: npt.NDArray[np.int32]
    changed_counts: npt.NDArray[np.int32]
    biased_ids: npt.NDArray[np.int32]
    biases: npt.NDArray[np.float32]
    masks: npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class SamplingOutputs:
    """A token id, or a NoToken, for each row. For each row that wants logprobs, in order, also its token's logprob and rank, and one after
    another the ids and logprobs of its most likely tokens (as many as it wants, but no more than there are), in falling order."""

    token_ids: list[int]
    logprobs: list[float]
    ranks: list[int]
    top_ids: list[int]
    top_logprobs: list[float]
