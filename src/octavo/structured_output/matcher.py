"""How far the text of one request has come in its grammar."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from octavo.protocol.errors import InvalidRequestError

if TYPE_CHECKING:
    from llguidance import LLMatcher

Words = npt.NDArray[np.int32]
# What llguidance ends an error with that it was asked to say no more of.
NO_DETAILS = "<non-verbose/>"


def mask_words(vocab_size: int) -> int:
    """How many int32 words hold one bit for each token."""
    return (vocab_size + 31) // 32


def mask_of(token_ids: Sequence[int], vocab_size: int) -> Words:
    """A mask with the bits of these tokens: bit i of word w is token 32 · w + i. Ids beyond the vocabulary have no bit."""
    bits = np.zeros(mask_words(vocab_size) * 32, np.uint8)
    bits[[token for token in token_ids if token < vocab_size]] = 1
    return np.packbits(bits, bitorder="little").view(np.int32)


class GrammarMatcher:
    """Follows the tokens of one text and says which may come next. What it says depends on the tokens alone, so that one that takes them
    all at once, after a preemption, says what one does that took them one by one.

    Where a text may end the end tokens are among those that may come; after one nothing but end tokens may.
    """

    def __init__(self, matcher: LLMatcher, end_ids: Sequence[int], vocab_size: int, renew: Callable[[], LLMatcher] | None = None) -> None:
        """`renew` gives another `matcher` at the beginning of the text, that has nothing behind it."""
        self._matcher = matcher
        self._renew = renew
        self._end_ids = frozenset(end_ids)
        self._ends = mask_of(end_ids, vocab_size)
        self._taken = 0
        self._ended = False

    def fill(self, output_ids: Sequence[int] | npt.NDArray[np.int32], mask: Words, address: int | None = None) -> None:
        """Writes to `mask` [words], which lies at `address`, which tokens may follow `output_ids`, the text so far, which goes on from what
        the last call had.

        Raises InvalidRequestError with the reason if the grammar takes too much work from here on.
        """
        place = mask.ctypes.data if address is None else address
        self._take(output_ids)
        if not self._ended:
            self._matcher.unsafe_compute_mask_ptr(place, mask.nbytes)
        if self._matcher.is_error() and self._renew is not None:
            # What other texts left in the lexer that they share may be what was too much.
            self._matcher, self._taken = self._renew(), 0
            self._take(output_ids)
            if not self._ended:
                self._matcher.unsafe_compute_mask_ptr(place, mask.nbytes)
        if self._matcher.is_error():
            reason = self._matcher.get_error().removesuffix(NO_DETAILS).strip()
            raise InvalidRequestError(f"structured_outputs: the text can't go on: {reason}", param="structured_outputs")
        if self._ended:
            mask[:] = self._ends

    def _take(self, output_ids: Sequence[int] | npt.NDArray[np.int32]) -> None:
        new = output_ids[self._taken :]
        self._taken = len(output_ids)
        for token in new.tolist() if isinstance(new, np.ndarray) else new:
            if self._ended or token in self._end_ids:
                self._ended = True
            else:
                self._matcher.consume_token(token)
