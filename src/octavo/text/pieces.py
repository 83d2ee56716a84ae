"""From a token's spelling in the vocabulary to the bytes that it stands for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from octavo.protocol.errors import UnsupportedModelError

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
METASPACE = "▁"


def _byte_level_alphabet() -> dict[str, int]:
    """GPT-2's alphabet: printable Latin-1 stands for itself, each other byte for the next code point from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    shifted = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + rank): byte for rank, byte in enumerate(shifted)}


_BYTE_OF = _byte_level_alphabet()


@dataclass(frozen=True, slots=True)
class PieceDecoder:
    """The decoder of a tokenizer.json, as a map from one token to bytes that needs no neighbours.

    `byte_level`: spellings use GPT-2's byte alphabet. Otherwise `replacements` are applied to the spelling in order, and with
    `byte_fallback` a spelling such as `<0x0A>` is that byte. `leading_strip` spaces are dropped from the start of a whole text, and
    with `drop_first_metaspace` every space of a text's first token is.
    """

    byte_level: bool = False
    byte_fallback: bool = False
    replacements: tuple[tuple[str, str], ...] = ()
    leading_strip: int = 0
    drop_first_metaspace: bool = False

    def to_bytes(self, spelling: str, *, added: bool = False) -> bytes:
        """The bytes of one token as they stand within a text. `added` tokens are spelled as they are written, in any alphabet."""
        if self.byte_level:
            values = None if added else [_BYTE_OF.get(char) for char in spelling]
            if values is None or None in values:
                return spelling.encode("utf-8", "replace")
            return bytes(value for value in values if value is not None)
        for old, new in self.replacements:
            spelling = spelling.replace(old, new)
        if self.byte_fallback and (match := _BYTE_TOKEN.fullmatch(spelling)):
            return bytes([int(match[1], 16)])
        return spelling.encode("utf-8", "replace")

    def first_bytes(self, spelling: str, *, added: bool = False) -> bytes:
        """As `to_bytes`, for a text's first token."""
        return self.to_bytes(spelling.replace(METASPACE, "") if self.drop_first_metaspace else spelling, added=added)


def piece_decoder(decoder: Mapping[str, Any] | None, source: object) -> PieceDecoder:
    """Reads the `decoder` object of a tokenizer.json (Hugging Face tokenizers' format).

    Raises UnsupportedModelError naming `source` and the decoder for one whose effect on a token depends on its neighbours.
    """
    steps = _steps(decoder, source)
    kinds = [step.get("type") for step in steps]
    if kinds == ["ByteLevel"]:
        return PieceDecoder(byte_level=True)
    if kinds == ["Metaspace"]:
        step = steps[0]
        prefixed = step.get("prepend_scheme", "always" if step.get("add_prefix_space", True) else "never") != "never"
        return PieceDecoder(replacements=((step.get("replacement", METASPACE), " "),), drop_first_metaspace=prefixed)
    replacements: list[tuple[str, str]] = []
    fallback = fused = False
    strip = 0
    for step in steps:
        match step:
            case {"type": "Replace", "pattern": {"String": old}, "content": new} if not (fallback or fused):
                replacements.append((old, new))
            case {"type": "ByteFallback"} if not fused:
                fallback = True
            case {"type": "Fuse"}:
                fused = True
            case {"type": "Strip", "content": " ", "start": start, "stop": 0} if fused and not strip:
                strip = start
            case _:
                raise _unsupported(kinds, source)
    if not fused:
        raise _unsupported(kinds, source)
    return PieceDecoder(byte_fallback=fallback, replacements=tuple(replacements), leading_strip=strip)


def _steps(decoder: Mapping[str, Any] | None, source: object) -> list[Mapping[str, Any]]:
    if decoder is None:
        raise UnsupportedModelError(f"{source} has no decoder, so its tokens can't be turned into text")
    if decoder.get("type") != "Sequence":
        return [decoder]
    return [inner for step in decoder["decoders"] for inner in _steps(step, source)]


def _unsupported(kinds: list[Any], source: object) -> UnsupportedModelError:
    return UnsupportedModelError(f"{source} uses a decoder that Octavo has no code for: {', '.join(map(str, kinds))}")
