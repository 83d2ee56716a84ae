"""Which full blocks running sequences are about to compute."""

from __future__ import annotations

from octavo.kvcache.block_hash import BlockKeys


class InFlight:
    """Blocks whose tokens are known and whose keys and values will be in the cache within the next steps, each with the sequence that
    computes it. Another sequence that needs one of them next had better wait than compute it, too."""

    __slots__ = ("_by_digest",)

    def __init__(self) -> None:
        self._by_digest: dict[bytes, tuple[BlockKeys, int]] = {}

    def __len__(self) -> int:
        return len(self._by_digest)

    def add(self, keys: BlockKeys, first: int, end: int) -> None:
        """The sequence of `keys` is going to compute its blocks from `first` up to `end`. O(blocks)."""
        keys.extend(end)
        for index in range(first, end):
            self._by_digest.setdefault(keys.digests[index], (keys, index))

    def remove(self, keys: BlockKeys, first: int, end: int) -> None:
        """It has computed them, or will not. O(blocks)."""
        for index in range(first, end):
            found = self._by_digest.get(keys.digests[index])
            if found is not None and found[0] is keys:
                del self._by_digest[keys.digests[index]]

    def has(self, keys: BlockKeys, index: int) -> bool:
        """Whether some sequence is computing block `index` of the sequence of `keys`.

        Besides the digest only the block itself is compared. Different contents before it would need a collision of digests, and cost no
        more than a wait that ends with the other sequence's prompt.
        """
        found = self._by_digest.get(keys.digests[index])
        if found is None:
            return False
        other, place = found
        return place == index and other.contents[place] == keys.contents[index] and other.scope == keys.scope
