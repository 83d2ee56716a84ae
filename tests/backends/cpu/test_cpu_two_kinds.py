"""Blocks of their own for the layers that see a window: the same bits as with blocks of all layers, on both backends."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cpu_models import Config, Model, Sequence, random_tokens, step_of

from octavo.backends.base import StepInputs
from octavo.backends.cpu.backend import CpuBackend
from octavo.backends.reference.backend import ReferenceBackend

native = pytest.importorskip("octavo._native", reason="Octavo was installed without a C++ compiler")

ISAS = native.available_isas()
WINDOW, BLOCKS, OWN = 18, 12, 9
MODEL = Model(Config("BF16", 64, heads=4, kv_heads=2, head_dim=32, intermediate=72, vocabulary=83, layers=4, window=WINDOW, gemma=True))
(TOKENS,) = random_tokens([120], 83)


def compiled(backend: str, *, own: int = 0) -> Any:
    if backend == "reference":
        program = ReferenceBackend(threads=2).compile(MODEL.graph, MODEL.weights.__getitem__, lambda done: None)
        program.allocate_kv_cache(BLOCKS, 16, own)
        return program
    program = CpuBackend(2, backend).compile(MODEL.graph, MODEL.weights.__getitem__, lambda done: None)
    program.allocate_kv_cache(BLOCKS, 16, own)
    return program


def steps(*, own: bool) -> list[StepInputs]:
    """The sequence in chunks; its window's blocks are in another order, and those that the window has passed are gone."""
    sequence = Sequence(TOKENS, [5, 9, 2, 7, 0, 11, 4, 1])
    places = np.array([3, 8, 0, 6, 2, 7, 1, 4], np.int32)
    made = []
    for count in (33, 1, 40, 1, 45):
        step = step_of([(sequence, count)])
        if own:
            table = places[None, : step.block_tables.shape[1]].copy()
            table[:, : max(0, sequence.done - WINDOW + 1) // 16] = -4
            step = replace(step, window_tables=table)
        made.append(step)
        sequence.done += count
    return made


@pytest.mark.parametrize("backend", ["reference", *ISAS])
def test_two_kinds_of_blocks_give_the_bits_of_one(backend: str) -> None:
    one, two = compiled(backend), compiled(backend, own=OWN)
    wanted = [one.run(step).tobytes() for step in steps(own=False)]
    assert [two.run(step).tobytes() for step in steps(own=True)] == wanted
    # Swapped out and in, block by block, and the last token once more.
    whole, window = two.kv_bytes_per_block(16), two.kv_bytes_per_window_block(16)
    assert window == whole // 2 == one.kv_bytes_per_window_block(16)
    assert (len(one.read_block(3)), len(two.read_block(3)), len(two.read_block(BLOCKS + 3))) == (whole, whole - window, window)
    contents = {block: two.read_block(block) for block in range(BLOCKS + OWN)}
    step = step_of([(Sequence(TOKENS, [5, 9, 2, 7, 0, 11, 4, 1], done=119), 1)])
    step = replace(step, window_tables=np.array([[-1] * 6 + [1, 4]], np.int32))
    again = two.run(step).tobytes()
    two.copy_blocks([(4, 3, 16), (BLOCKS + 4, BLOCKS + 5, 8)])
    assert two.read_block(3) == contents[4]
    for block, content in contents.items():
        two.write_block(block, content)
    assert two.run(step).tobytes() == again
    for wrong in (contents[0][:-1], b""):
        with pytest.raises(ValueError, match="bytes"):
            two.write_block(BLOCKS, wrong)
    one.close()
    two.close()


@pytest.mark.parametrize("isa", ISAS[-1:])
def test_tables_that_do_not_fit_the_blocks_are_refused(isa: str) -> None:
    one, two = compiled(isa), compiled(isa, own=OWN)
    plain, own = steps(own=False)[0], steps(own=True)[0]
    assert own.window_tables is not None
    for program, step, message in (
        (one, own, "tables of two kinds"),
        (two, plain, "tables of two kinds"),
        (two, replace(own, window_tables=own.window_tables + OWN), "out of range"),
        (two, replace(own, window_tables=own.window_tables[:, :-1].copy()), "differ in shape"),
    ):
        with pytest.raises(ValueError, match=message):
            program.run(step)
    with pytest.raises(ValueError, match="other layers"):
        two.copy_blocks([(0, BLOCKS, 4)])
    for block in (-1, BLOCKS + OWN):
        with pytest.raises(ValueError, match="out of range"):
            two.read_block(block)
    one.close()
    two.close()
    windowless = Model(Config("BF16", 32, 1, 1, 16, 32, layers=1)).compile(isa, blocks=1)
    with pytest.raises(ValueError, match="no layer sees a window"):
        windowless._native.allocate_cache(4, 16, 4)
    windowless.close()
