"""What repetition, frequency and presence penalties need to know of a request's tokens so far."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from octavo.protocol.sampling import SamplingParams

Floats = npt.NDArray[np.float32]


class PenaltyState:
    """The distinct tokens of one request and how often each was generated.

    A decode step adds one token in O(1); applying costs O(distinct tokens). The prompt's tokens are held only if a repetition penalty
    needs them. Counts are integers and each logit is changed on its own, so a state rebuilt from the tokens after a preemption
    gives the same bits as one that grew.
    """

    def __init__(self, sampling: SamplingParams, num_prompt_tokens: int) -> None:
        self._repetition = np.float32(sampling.repetition_penalty)
        self._frequency = np.float32(sampling.frequency_penalty)
        self._presence = np.float32(sampling.presence_penalty)
        self._num_prompt_tokens = num_prompt_tokens
        self._seen = 0
        self._slots: dict[int, int] = {}
        self._ids = np.zeros(64, np.int64)
        self._counts = np.zeros(64, np.float32)

    def update(self, token_ids: Sequence[int] | npt.NDArray[np.int32], length: int) -> None:
        """Take in `token_ids[:length]`, of which those before the last call's length are known already."""
        if length < self._seen:
            self._seen = 0
            self._slots.clear()
            self._counts[:] = 0
        if self._seen < self._num_prompt_tokens:
            end = min(self._num_prompt_tokens, length)
            if self._repetition != 1.0:
                for token_id in dict.fromkeys(_plain(token_ids, self._seen, end)):
                    self._slot(token_id)
            self._seen = end
        for token_id in _plain(token_ids, self._seen, length):
            slot = self._slot(token_id)  # may replace the arrays
            self._counts[slot] += 1
        self._seen = max(self._seen, length)

    def changes(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """The distinct tokens, and how often each was generated (0 for one of the prompt alone); valid until the next `update`."""
        used = len(self._slots)
        return self._ids[:used], self._counts[:used]

    def apply(self, logits: Floats) -> None:
        """Change one row of logits [vocab] in place, as vLLM does.

        Repetition (Keskar et al. 2019, arXiv:1909.05858) divides a positive logit and multiplies another, for tokens of prompt and output;
        frequency (times the count) and presence (once) are then subtracted for tokens of the output.
        """
        ids, counts = self.changes()
        values = logits[ids]
        if self._repetition != 1.0:
            values = np.where(values > 0, values / self._repetition, values * self._repetition)
        values -= self._frequency * counts
        values -= self._presence * (counts > 0)
        logits[ids] = values

    def _slot(self, token_id: int) -> int:
        slot = self._slots.setdefault(token_id, len(self._slots))
        if slot == len(self._ids):
            self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
            self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
        self._ids[slot] = token_id
        return slot


def _plain(token_ids: Sequence[int] | npt.NDArray[np.int32], start: int, end: int) -> list[int]:
    part = token_ids[start:end]
    return part.tolist() if isinstance(part, np.ndarray) else list(part)
