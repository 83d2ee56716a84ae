"""A sliding window: how far back a model's tokens see, and so how much of a sequence the cache must keep."""

from __future__ import annotations

from dataclasses import dataclass

# More tokens than a sequence can have.
NO_END = 1 << 40


@dataclass(frozen=True, slots=True)
class Window:
    """Each token sees `size` tokens, itself included, in every layer; a step computes at most `max_step` tokens of a sequence."""

    size: int
    max_step: int

    def first_place(self, position: int, block_size: int) -> int:
        """The place of the first block that a token at `position`, or any after it, sees."""
        return max(0, position - self.size + 1) // block_size

    def most_blocks(self, block_size: int, step: int | None = None) -> int:
        """Blocks that a sequence holds at most, however long it is, while a step computes `step` of its tokens, by default `max_step`."""
        # Of any alignment. A full block stays until the next one is full, whose parent it is, even where the window is shorter.
        tokens = max(self.size - 1, block_size) + (self.max_step if step is None else step)
        return (tokens + 2 * block_size - 2) // block_size


def longest_held(block_size: int, num_blocks: int, window: Window | None, num_window_blocks: int = 0) -> int | None:
    """Tokens of the longest sequence that a cache holds; None for any number. With `num_window_blocks` the window bounds only what the
    sequence has of these, and all of it must be held in the others."""
    bounds = [num_blocks * block_size] if window is None or num_window_blocks else []
    in_window = num_window_blocks or num_blocks
    if window is not None and in_window < window.most_blocks(block_size, 1):
        bounds.append(in_window * block_size)
    return min(bounds, default=None)
