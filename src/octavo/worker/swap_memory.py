"""The contents of blocks that are swapped out."""

from __future__ import annotations

from octavo.backends.base import Program


class SwapMemory:
    """`num_slots` slots in the host's memory, each of which takes what a block holds. It is taken as slots are first used, and kept."""

    def __init__(self, program: Program, num_slots: int) -> None:
        self._program = program
        self._slots: list[bytes] = [b""] * num_slots

    def move_out(self, moves: list[tuple[int, int]]) -> None:
        """Copies what block holds to slot for each (block, slot), in order."""
        for block_id, slot in moves:
            self._slots[slot] = self._program.read_block(block_id)

    def move_in(self, moves: list[tuple[int, int]]) -> None:
        """Copies what slot holds to block for each (slot, block), in order. The slots keep it: others may want it, too."""
        for slot, block_id in moves:
            self._program.write_block(block_id, self._slots[slot])
