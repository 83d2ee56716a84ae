"""A worker's own copy of a request."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from octavo.worker.sampler import SamplingRow


class GrowingArray:
    """int32 values that are appended to in amortised O(1) and read without a copy."""

    def __init__(self, values: list[int]) -> None:
        self._data = np.array(values, np.int32)
        self._size = len(values)

    def __len__(self) -> int:
        return self._size

    @property
    def view(self) -> npt.NDArray[np.int32]:
        """What it holds; valid until the next `extend`."""
        return self._data[: self._size]

    def values(self, start: int, end: int) -> list[int]:
        """Those from `start` up to `end`, all of which it holds."""
        part: list[int] = self._data[start:end].tolist()
        return part

    def copy(self) -> GrowingArray:
        """An independent copy."""
        other = GrowingArray([])
        other._data, other._size = self._data.copy(), self._size
        return other

    def append(self, value: int) -> None:
        """Appends one value."""
        if self._size == len(self._data):
            self.extend([value])
        else:
            self._data[self._size] = value
            self._size += 1

    def extend(self, values: list[int]) -> None:
        """Appends `values`."""
        size = self._size + len(values)
        if size > len(self._data):
            grown = np.empty(max(size, 2 * len(self._data)), np.int32)
            grown[: self._size] = self.view
            self._data = grown
        self._data[self._size : size] = values
        self._size = size


class Pool:
    """What the hidden states of a prompt of `num_tokens` tokens come to: `kind` "mean" is their mean, "last" the last token's.

    The sum is taken in float64, token after token, so that it has the same bits however the prompt is cut into steps.
    """

    def __init__(self, kind: str, num_tokens: int) -> None:
        self.num_tokens = num_tokens
        self._mean = kind == "mean"
        self._sum: npt.NDArray[np.float64] | None = None

    def wanted(self, first: int, last: int) -> range:
        """Those of the tokens from `first` up to `last` whose states are wanted."""
        return range(first if self._mean else max(first, self.num_tokens - 1), last)

    def add(self, states: npt.NDArray[np.float32]) -> None:
        """Takes in the next of them, `[tokens, hidden size]`."""
        for state in states:
            self._sum = state.astype(np.float64) if self._sum is None else self._sum + state

    def result(self) -> npt.NDArray[np.float32]:
        """The vector, once all are in."""
        if self._sum is None:
            raise RuntimeError("nothing was pooled")
        return (self._sum / (self.num_tokens if self._mean else 1)).astype(np.float32)


@dataclass(slots=True)
class WorkerRequest:
    """Tokens, blocks and progress of one request on this worker; `row` is what the sampler needs of it. A `beam` takes no token by itself.
    Where the model's layers are of two kinds, `window_block_ids` are the blocks of those that see a window. Logprobs of the prompt are told
    as `prompt_row` says, if there is one. A request with a `pool` wants its prompt's hidden states, and no token."""

    request_id: str
    token_ids: GrowingArray
    num_computed: int
    block_ids: GrowingArray
    row: SamplingRow
    beam: bool = False
    prompt_row: SamplingRow | None = None
    pool: Pool | None = None
    window_block_ids: GrowingArray = field(default_factory=lambda: GrowingArray([]))

    def replace_block(self, place: int, block_id: int) -> None:
        """Another block at a place of its table, or at ~place of its window's."""
        if place >= 0:
            self.block_ids.view[place] = block_id
        else:
            self.window_block_ids.view[~place] = block_id

    def rows_told(self, count: int) -> int:
        """How many of its next `count` tokens come before one of the prompt whose logprobs are wanted: the first of them."""
        if self.prompt_row is None:
            return 0
        return max(0, min(count, self.row.num_prompt_tokens - 1 - self.num_computed))

    def told_rows(self, count: int) -> list[SamplingRow]:
        """What the sampler needs to tell of these."""
        row, first = self.prompt_row, self.num_computed + 1
        if row is None:
            return []
        tokens = self.token_ids.values(first, first + self.rows_told(count))
        return [replace(row, position=position, given=token_id) for position, token_id in enumerate(tokens, first)]

    def fork(self, request_id: str) -> WorkerRequest:
        """A request of another name that has come as far."""
        tokens = self.token_ids.copy()
        row = replace(self.row, token_ids=tokens.view, penalties=None)
        in_window = self.window_block_ids.copy()
        return WorkerRequest(request_id, tokens, self.num_computed, self.block_ids.copy(), row, self.beam, window_block_ids=in_window)
