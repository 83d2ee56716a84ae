"""What a window has passed is never read: its blocks are another sequence's, whose keys and values are no numbers."""

from __future__ import annotations

import numpy as np
import pytest
from sequences import GARBAGE, Runner, Shape, random_sequence


@pytest.mark.parametrize("block_size", [1, 16, 64, 128, 256])
@pytest.mark.parametrize("window", [1, 16, 40, 130])
@pytest.mark.parametrize("chunk", [1, 23, 150])
def test_another_sequence_writes_garbage_where_the_window_has_been(block_size: int, window: int, chunk: int) -> None:
    shape = Shape(kv_heads=2, group=3, head_dim=8, window=window)
    length = 300 if chunk > 1 else 150
    sound, sick = random_sequence(1, length, shape), random_sequence(2, length, shape)
    made = np.random.default_rng(3)
    sick.key[:], sick.value[:] = made.choice(GARBAGE, sick.key.shape), made.choice(GARBAGE, sick.value.shape)
    count = -(-length // block_size)
    sound.blocks = list(range(count))
    wanted = Runner([sound], shape, block_size, count).step([(0, 0, length)])[0]
    runner = Runner([sound, sick], shape, block_size, count + 1)
    # Its first block is one of its own; then it takes over what the other one has left.
    sick.blocks, written = [count], 0
    given = []
    for first in range(0, length, chunk):
        for place in range(max(0, first - window + 1) // block_size):
            if sound.blocks[place] >= 0:
                sick.blocks.append(sound.blocks[place])
                sound.blocks[place] = -1
        chunks = [(0, first, min(length, first + chunk))]
        end = min(len(sick.blocks) * block_size, length)
        if end > written:
            chunks.append((1, written, end))
            written = end
        given.append(runner.step(chunks)[0])
    assert np.concatenate(given).tobytes() == wanted.tobytes()
    if length >= 2 * block_size + window + chunk:
        assert written > block_size
    runner.close()
