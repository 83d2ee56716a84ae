"""What is known of a text's tokens by its length alone."""

from __future__ import annotations

import pytest
import tokenizers
from tokenizers import normalizers, pre_tokenizers
from tokenizers.models import BPE, WordLevel

from octavo.text.longest_token import longest_token

BYTES = {character: index for index, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
TEXTS = ["", "a", " " * 3000, "the " * 500, "\u2126\u0313\u0300\u0345" * 300, "한글🙂\n" * 200, "▁" * 500, "</s><s>" * 50, "\x00\xff" * 99]


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-mistral", "tiny-qwen2"])
def test_a_text_has_at_least_as_many_tokens(tokenizer_of, name: str) -> None:
    tokenizer = tokenizer_of(name)
    for text in TEXTS:
        assert tokenizer.least_tokens(text) <= len(tokenizer.encode(text, add_special_tokens=False))
    assert tokenizer.least_tokens("x" * 10**6) > 2000


def byte_level(normalizer: object = None, split: object = None) -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(BPE(BYTES | {"ĠĠĠĠ": 256}, []))
    backend.normalizer = normalizer
    backend.pre_tokenizer = split or pre_tokenizers.ByteLevel()
    return backend


def test_bytes_of_the_longest_token() -> None:
    assert longest_token(byte_level()) == 4
    assert longest_token(byte_level(normalizers.NFC())) == 16
    assert longest_token(byte_level(normalizers.Sequence([normalizers.Prepend("x"), normalizers.Replace("a", "bb")]))) == 4
    backend = byte_level()
    backend.add_tokens(["a longer é"])
    assert longest_token(backend) == 11


@pytest.mark.parametrize(
    "backend",
    [
        byte_level(normalizers.Strip()),
        byte_level(normalizers.NFKC()),
        byte_level(normalizers.Replace("aa", "b")),
        byte_level(normalizers.Replace(tokenizers.Regex("a+"), "bbbb")),
        byte_level(split=pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.ByteLevel()])),
        byte_level(split=pre_tokenizers.Sequence([pre_tokenizers.Split(" ", "removed"), pre_tokenizers.ByteLevel()])),
        byte_level(split=pre_tokenizers.Digits()),
        tokenizers.Tokenizer(BPE({"a": 0}, [])),
        tokenizers.Tokenizer(BPE({"a": 0}, [], byte_fallback=True)),
        tokenizers.Tokenizer(WordLevel({"a": 0}, unk_token="a")),
    ],
)
def test_nothing_is_known_where_text_may_vanish(backend: tokenizers.Tokenizer) -> None:
    assert longest_token(backend) is None


def test_nothing_is_known_where_a_token_swallows_the_space_beside_it() -> None:
    backend = byte_level()
    backend.add_tokens([tokenizers.AddedToken("<mask>", lstrip=True)])
    assert longest_token(backend) is None
