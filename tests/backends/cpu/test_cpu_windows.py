"""What a window has passed is never read: its blocks are another sequence's, whose numbers are none."""

from __future__ import annotations

import numpy as np
import pytest
from cpu_models import Config, Model, Sequence, advance, random_tokens, step_of

from octavo.quantization.tensor import CheckpointTensor

native = pytest.importorskip("octavo._native", reason="Octavo was installed without a C++ compiler")

ISAS = native.available_isas()


def windowed(window: int | None) -> Model:
    """Token 0 is NaN, and token 1 infinite."""
    made = Model(Config("Q8_0", 64, heads=4, kv_heads=2, head_dim=32, intermediate=96, kinds={"embed": "F32"}, window=window))
    table = made.weights["embed"].data.copy().view(np.float32)
    table[0, 5], table[1, 60] = np.nan, -np.inf
    made.weights["embed"] = CheckpointTensor("embed", "F32", table.shape, table.view(np.uint8))
    return made


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(
    ("block_size", "window", "chunk"), [(16, 16, 1), (16, 40, 7), (16, 150, 23), (32, 1, 5), (32, 130, 64), (128, 17, 90)]
)
def test_another_sequence_writes_what_is_no_number_where_the_window_has_been(
    isa: str, threads: int, block_size: int, window: int, chunk: int
) -> None:
    model, length = windowed(window), 400
    (tokens,) = (3 + each % (model.config.vocabulary - 3) for each in random_tokens([length], model.config.vocabulary))
    count = -(-length // block_size)
    program = model.compile(isa, threads=threads, blocks=count + 1, block_size=block_size)
    wanted = advance(program, [(Sequence(tokens, list(range(count))), length)], block_size)[0].tobytes()
    sound, sick = Sequence(tokens, list(range(count))), Sequence(np.arange(length) % 2, [count])
    given = []
    while sound.done < length:
        for place in range(max(0, sound.done - window + 1) // block_size):
            if sound.blocks[place] >= 0:
                sick.blocks.append(sound.blocks[place])
                sound.blocks[place] = -1
        chunks = [(sound, min(chunk, length - sound.done))]
        fresh = min(len(sick.blocks) * block_size, length) - sick.done
        if fresh:
            chunks.append((sick, fresh))
        given.append(advance(program, chunks, block_size)[0])
    assert np.concatenate(given).tobytes() == wanted
    assert sick.done > block_size
    program.close()


@pytest.mark.parametrize("window", [None, 20])
def test_only_blocks_that_no_token_sees_may_be_gone(window: int | None) -> None:
    model = windowed(window)
    program = model.compile(ISAS[0], blocks=8)
    sequence = Sequence(np.full(100, 5), list(range(7)))
    advance(program, [(sequence, 80)])
    # Tokens 80 and 81 see 61 to 81, which lie in blocks 3 to 5.
    for gone in range(1, 5):
        sequence.blocks[:gone] = [-1] * gone
        step = step_of([(sequence, 2)])
        if window is not None and gone <= 3:
            assert np.isfinite(program.run(step)).all()
        else:
            with pytest.raises(ValueError, match="a block id is out of range"):
                program.run(step)
    program.close()
