"""Storage kinds: how many bytes hold how many values.

A kind is a block of `bytes_per_block` bytes that holds `values_per_block` consecutive values of one row. Plain types are blocks of one
value. The names are those of safetensors and of GGUF (ggml-quants.h of llama.cpp), which agree where they overlap.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StorageKind:
    """One storage format: `values_per_block` values in `bytes_per_block` bytes."""

    name: str
    values_per_block: int
    bytes_per_block: int

    def row_bytes(self, values: int) -> int | None:
        """Bytes of a row of `values` values, or None where such a row would end inside a block."""
        blocks, rest = divmod(values, self.values_per_block)
        return None if rest else blocks * self.bytes_per_block


_SIZES: dict[str, tuple[int, int]] = {
    "BOOL": (1, 1),
    "U8": (1, 1),
    "I8": (1, 1),
    "F8_E4M3": (1, 1),
    "F8_E5M2": (1, 1),
    "F8_E8M0": (1, 1),
    "U16": (1, 2),
    "I16": (1, 2),
    "F16": (1, 2),
    "BF16": (1, 2),
    "U32": (1, 4),
    "I32": (1, 4),
    "F32": (1, 4),
    "U64": (1, 8),
    "I64": (1, 8),
    "F64": (1, 8),
    "Q1_0": (128, 18),
    "Q4_0": (32, 18),
    "Q4_1": (32, 20),
    "Q5_0": (32, 22),
    "Q5_1": (32, 24),
    "Q8_0": (32, 34),
    "Q8_1": (32, 40),
    "Q2_K": (256, 84),
    "Q3_K": (256, 110),
    "Q4_K": (256, 144),
    "Q5_K": (256, 176),
    "Q6_K": (256, 210),
    "Q8_K": (256, 292),
    "IQ1_S": (256, 50),
    "IQ1_M": (256, 56),
    "IQ2_XXS": (256, 66),
    "IQ2_XS": (256, 74),
    "IQ2_S": (256, 82),
    "IQ3_XXS": (256, 98),
    "IQ3_S": (256, 110),
    "IQ4_NL": (32, 18),
    "IQ4_XS": (256, 136),
    "TQ1_0": (256, 54),
    "TQ2_0": (256, 66),
    "MXFP4": (32, 17),
    "NVFP4": (64, 36),
}

KINDS: dict[str, StorageKind] = {name: StorageKind(name, values, size) for name, (values, size) in _SIZES.items()}
