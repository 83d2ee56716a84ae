"""How much text one token can stand for at most, so that a text that fits into no context is known without tokenizing it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import tokenizers
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

# Composition to NFC makes at most 9 bytes into 3 (U+2126 U+0313 U+0300 U+0345 into U+1FAA, three letters into a Hangul syllable).
_NFC_FACTOR = 4
_LOSSLESS_SPLITS = frozenset({"ByteLevel", "Metaspace", "Digits", "Split"})


def longest_token(backend: tokenizers.Tokenizer) -> int | None:
    """The most bytes of UTF-8 that one token of `backend` can stand for, or None if it is not sure that there is a bound.

    There is one where every byte of a text is in some token: for byte pairs down to single bytes, behind steps that drop nothing.
    """
    model = backend.model
    if not isinstance(model, BPE) or backend.truncation is not None:
        return None
    added = backend.get_added_tokens_decoder().values()
    # Such a token swallows all the whitespace beside it.
    if any(token.lstrip or token.rstrip for token in added):
        return None
    factor = 1
    for step in _steps(backend.normalizer, "normalizers"):
        if step["type"] == "NFC":
            factor = _NFC_FACTOR
        elif step["type"] != "Prepend" and not _grows(step):
            return None
    splits = list(_steps(backend.pre_tokenizer, "pretokenizers"))
    if any(step["type"] not in _LOSSLESS_SPLITS or step.get("behavior") == "Removed" for step in splits):
        return None
    vocabulary = backend.get_vocab(with_added_tokens=False)
    by_bytes = any(step["type"] == "ByteLevel" for step in splits)
    alphabet = ByteLevel.alphabet() if by_bytes else [f"<0x{byte:02X}>" for byte in range(256)]
    if not (by_bytes or model.byte_fallback) or any(each not in vocabulary for each in alphabet):
        return None
    # A byte is one character where all of them are spelled so.
    longest = max(map(len, vocabulary) if by_bytes else (len(spelling.encode()) for spelling in vocabulary))
    return factor * max([longest, *(len(token.content.encode()) for token in added)])


def _steps(part: Any, nested: str) -> Iterator[dict[str, Any]]:
    """The steps of a normalizer or pre-tokenizer, those of sequences one by one."""
    if part is None:
        return
    waiting = [json.loads(part.__getstate__())]
    while waiting:
        step = waiting.pop(0)
        if step["type"] == "Sequence":
            waiting = [*step[nested], *waiting]
        else:
            yield step


def _grows(step: dict[str, Any]) -> bool:
    """Whether it replaces a string by one that is no shorter."""
    pattern = step.get("pattern", {}).get("String", "") if step["type"] == "Replace" else ""
    return 0 < len(pattern.encode()) <= len(step["content"].encode())
