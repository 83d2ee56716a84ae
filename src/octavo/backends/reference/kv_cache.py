"""Keys and values in the cache's type: what is written of a number, and what is read for it. This defines each type for every backend.

- float32: the number itself.
- bfloat16, float16: rounded to nearest even. What float16 can't hold is infinite.
- int8: a token's key, or value, of one KV head has a scale, max|x| / 127, and is rounded to whole multiples of it, ties to even. One with
  a number that is none, or is infinite, is none as a whole; one whose largest is at most 2^-100 is zero.
- fp8: E4M3 without infinities, without a scale, rounded to nearest even; what lies beyond ±448 becomes that. A token's key, or value, of
  one KV head with a number that is none is none as a whole.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Array = npt.NDArray[Any]

FP8_LARGEST = np.float32(448)


class Format(Protocol):
    """A type of the cache."""

    @property
    def dtype(self) -> npt.DTypeLike:
        """Of what is stored."""
        ...

    @property
    def scaled(self) -> bool:
        """Whether a row has a scale."""
        ...

    def encode(self, x: Floats) -> tuple[Array, Floats | None]:
        """Rows `[…, head_dim]` as they are stored, with the scale `[…]` of each if the type has scales."""
        ...

    def decode(self, values: Array, scales: Floats | None) -> Floats:
        """What was stored, as float32."""
        ...


class Plain:
    """A float that numpy has."""

    scaled = False

    def __init__(self, dtype: npt.DTypeLike) -> None:
        self.dtype = dtype

    def encode(self, x: Floats) -> tuple[Array, Floats | None]:
        """To nearest even."""
        return x.astype(self.dtype), None

    def decode(self, values: Array, scales: Floats | None) -> Floats:
        """Exact."""
        return values.astype(np.float32)


class Bfloat16:
    """The upper half of a float32, in uint16."""

    dtype = np.uint16
    scaled = False

    def encode(self, x: Floats) -> tuple[Array, Floats | None]:
        """To nearest even; NaN stays NaN."""
        bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
        rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
        return np.where(np.isnan(x), (bits >> np.uint32(16)) | np.uint32(0x40), rounded).astype(np.uint16), None

    def decode(self, values: Array, scales: Floats | None) -> Floats:
        """Exact."""
        return (values.astype(np.uint32) << np.uint32(16)).view(np.float32)


class Int8:
    """Whole numbers from −127 to 127 with a float32 scale a row."""

    dtype = np.int8
    scaled = True

    def encode(self, x: Floats) -> tuple[Array, Floats | None]:
        """To the nearest multiple of max|x| / 127."""
        most = np.abs(x).max(axis=-1)
        usable = np.isfinite(most) & (most > np.float32(2.0**-100))
        inverse = np.divide(np.float32(127), most, out=np.zeros_like(most), where=usable)
        whole = np.rint(np.where(usable[..., None], x, np.float32(0)) * inverse[..., None])
        scales = np.where(usable, most / np.float32(127), np.where(np.isfinite(most), np.float32(0), np.float32(np.nan)))
        return whole.astype(np.int8), scales.astype(np.float32)

    def decode(self, values: Array, scales: Floats | None) -> Floats:
        """The multiple, rounded to float32 once."""
        assert scales is not None
        return values.astype(np.float32) * scales[..., None]


def _fp8_values() -> Floats:
    """What each of the 256 codes means: sign, 4 bits of exponent (bias 7), 3 of mantissa."""
    code = np.arange(256)
    exponent, mantissa = code >> 3 & 15, code & 7
    magnitude = np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent - 10.0))
    magnitude[(code & 127) == 127] = np.nan
    return np.where(code < 128, magnitude, -magnitude).astype(np.float32)


class Fp8:
    """E4M3, in uint8."""

    dtype = np.uint8
    scaled = False
    values = _fp8_values()

    def encode(self, x: Floats) -> tuple[Array, Floats | None]:
        """To nearest even, within ±448."""
        none = np.isnan(x)
        magnitude = np.minimum(np.abs(np.where(none, np.float32(0), x)), FP8_LARGEST)
        # Three bits behind the leading one, and below 2^-6 no finer than there.
        spacing = np.where(magnitude < 2.0**-6, -9, np.frexp(magnitude)[1] - 4)
        steps = np.rint(np.ldexp(magnitude, -spacing))  # 8 to 16; less below 2^-6
        code = (steps + 8 * (spacing + 9)).astype(np.uint8)
        signed = code | np.where(np.signbit(x), 128, 0).astype(np.uint8)
        return np.where(none.any(axis=-1, keepdims=True), np.uint8(127), signed), None

    def decode(self, values: Array, scales: Floats | None) -> Floats:
        """Exact."""
        return self.values[values]


FORMATS: dict[str, Format] = {
    "float32": Plain(np.float32),
    "bfloat16": Bfloat16(),
    "float16": Plain(np.float16),
    "int8": Int8(),
    "fp8": Fp8(),
}


class Side:
    """The keys, or the values, of one layer.

    `values` `[blocks, block_size, kv_heads, head_dim]` in the format's type, and `scales` `[blocks, block_size, kv_heads]` if it has some.
    """

    def __init__(self, kind: Format, num_blocks: int, block_size: int, kv_heads: int, head_dim: int) -> None:
        self._format = kind
        self.values: Array = np.zeros((num_blocks, block_size, kv_heads, head_dim), kind.dtype)
        self.scales: Floats | None = np.zeros((num_blocks, block_size, kv_heads), np.float32) if kind.scaled else None

    @property
    def arrays(self) -> list[Array]:
        """All that it holds, blocks first."""
        return [self.values] if self.scales is None else [self.values, self.scales]

    @property
    def block_size(self) -> int:
        """Tokens of a block."""
        return int(self.values.shape[1])

    def write(self, slots: npt.NDArray[np.int64], x: Floats) -> None:
        """Stores rows `x` `[tokens, kv_heads · head_dim]` in their slots."""
        shape = self.values.shape[2:]
        for array, written in zip(self.arrays, self._format.encode(x.reshape(-1, *shape)), strict=False):
            array.reshape(-1, *array.shape[2:])[slots] = written

    def take(self, blocks: npt.NDArray[np.int32]) -> Floats:
        """Blocks `[…]` as float32 `[…, block_size, kv_heads, head_dim]`."""
        return self._format.decode(self.values[blocks], None if self.scales is None else self.scales[blocks])

    def copy(self, source: int, destination: int, num_tokens: int) -> None:
        """The first tokens of a block to another, whose others become zero."""
        for array in self.arrays:
            array[destination, :num_tokens] = array[source, :num_tokens]
            array[destination, num_tokens:] = 0


def bytes_per_token(kind: Format, kv_heads: int, head_dim: int) -> int:
    """Bytes of a token's keys and values in one layer."""
    return 2 * kv_heads * (head_dim * int(np.dtype(kind.dtype).itemsize) + 4 * kind.scaled)
