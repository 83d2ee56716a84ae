"""Which tokens each row of a step may choose, worked out on a thread of its own while the program computes."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from octavo.protocol.errors import InvalidRequestError
from octavo.protocol.vocabulary import Vocabulary
from octavo.structured_output.compiler import GrammarCompiler
from octavo.structured_output.matcher import Words, mask_of, mask_words
from octavo.worker.sampler import SampleFailed, SamplingRow


class TokenMasks:
    """Makes the masks of rows that have a grammar, or other fields that leave tokens out."""

    def __init__(self, vocab_size: int, max_compiled: int) -> None:
        self._vocab_size = vocab_size
        self._max_compiled = max_compiled
        self._compiler: GrammarCompiler | None = None
        self._thread: ThreadPoolExecutor | None = None

    def use_vocabulary(self, vocabulary: Vocabulary) -> None:
        """Has to come before the first row with a grammar."""
        self._compiler = GrammarCompiler(vocabulary, self._vocab_size, self._max_compiled)

    def begin(self, rows: Sequence[SamplingRow]) -> PendingMasks | None:
        """Begins with the masks of those of `rows` that have a grammar; None if none does. The others have their masks at once.

        Positions and tokens must be set."""
        for row in rows:
            if row.fixed_mask is None and (row.sampling.allowed_token_ids or row.bad_words):
                row.fixed_mask = self._fixed(row)
                row.mask = row.fixed_mask
        masked = [row for row in rows if row.grammar is not None]
        if not masked:
            return None
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="octavo-masks")
        return PendingMasks(self._thread.submit(self._make, masked))

    def close(self) -> None:
        """Ends the thread."""
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None

    def _make(self, rows: list[SamplingRow]) -> None:
        masks = np.empty((len(rows), mask_words(self._vocab_size)), np.int32)
        # Asking each mask for its address takes as long as a simple grammar does.
        start, step = masks.ctypes.data, masks.strides[0]
        for index, (row, mask) in enumerate(zip(rows, masks, strict=True)):
            try:
                self._fill(row, mask, start + index * step)
                row.mask = mask
            except InvalidRequestError as error:
                row.failure = SampleFailed(error.message, invalid=True)
            except BaseException as error:  # a panic of the library is no Exception; other rows must not die of it
                row.failure = SampleFailed(f"structured_outputs: {type(error).__name__}: {error}")

    def _fill(self, row: SamplingRow, mask: Words, address: int) -> None:
        if row.matcher is None:
            if self._compiler is None:
                raise RuntimeError("a grammar came before the vocabulary")
            row.matcher = self._compiler.matcher(row.grammar or "")
        row.matcher.fill(row.token_ids[row.num_prompt_tokens : row.position], mask, address)
        if row.fixed_mask is not None:
            mask &= row.fixed_mask
        if row.needs_min_tokens:
            longer = mask & ~mask_of(row.end_token_ids, self._vocab_size)
            # A text that can't go on ends all the same.
            if longer.any():
                mask[:] = longer

    def _fixed(self, row: SamplingRow) -> Words:
        allowed = row.sampling.allowed_token_ids
        mask = mask_of(range(self._vocab_size) if allowed is None else allowed, self._vocab_size)
        return mask & ~mask_of([word[0] for word in row.bad_words if len(word) == 1], self._vocab_size)


class PendingMasks:
    """Masks that are being made."""

    def __init__(self, done: Future[None]) -> None:
        self._done = done

    def finish(self) -> None:
        """Waits until each of the rows has its `mask`, or a `failure`."""
        self._done.result()
