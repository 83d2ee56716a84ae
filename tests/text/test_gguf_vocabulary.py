from __future__ import annotations

import json
import logging
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.protocol.errors import ModelLoadError, UnsupportedModelError
from octavo.text.pieces import _BYTE_OF
from octavo.text.pretokenizers import PRE_TYPES
from octavo.text.tokenizer import Tokenizer, tokenizer_from_gguf

SOURCE = Path("toy.gguf")
MERGES = ["h e", "l l", "he ll", "hell o", "Ġ w", "1 2", "12 3", "Ġ Ġ"]
KINDS = {"<unk>": 2, "<|im_start|>": 3, "<|im_end|>": 3, "<think>": 4}


def byte_level(**changes: Any) -> dict[str, Any]:
    """The metadata of a small byte-level vocabulary; a change to None takes a key out."""
    tokens = [*KINDS, *_BYTE_OF, *(merge.replace(" ", "") for merge in MERGES)]
    keys = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": tokens,
        "token_type": [KINDS.get(token, 1) for token in tokens],
        "merges": MERGES,
        "bos_token_id": 1,
        "eos_token_id": 2,
    } | changes
    return {f"tokenizer.ggml.{key}": value for key, value in keys.items() if value is not None}


def read(**changes: Any) -> Tokenizer:
    return tokenizer_from_gguf(byte_level(**changes), SOURCE)


def words(tokenizer: Tokenizer, text: str) -> list[str]:
    return [tokenizer.token_text(token_id) for token_id in tokenizer.encode(text, add_special_tokens=False)]


def test_byte_level_text_is_merged_and_comes_back() -> None:
    tokenizer = read()
    assert words(tokenizer, "hello w") == ["hello", " w"]
    for text in ("hello  wörld 안녕 😀\r\n\t123", "", "<think>hello<|im_end|>"):
        assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=False) == text


def test_user_defined_tokens_are_whole_but_not_special() -> None:
    tokenizer = read()
    ids = tokenizer.encode("a<think>b<|im_end|>", add_special_tokens=False)
    assert [tokenizer.spelling(i) for i in ids] == ["a", "<think>", "b", "<|im_end|>"]
    assert tokenizer.decode(ids) == "a<think>b"
    assert {tokenizer.spelling(i) for i in tokenizer.special_ids} == {"<unk>", "<|im_start|>", "<|im_end|>"}


def test_flags_say_which_tokens_go_around_a_text() -> None:
    assert read().encode("a")[0] != 1
    both = read(add_bos_token=True, add_eos_token=True)
    assert both.encode("a") == [1, *both.encode("a", add_special_tokens=False), 2]


def test_some_pre_tokenizers_add_a_bos_by_default() -> None:
    assert read(pre="llama-bpe").encode("a")[0] == 1
    assert read(pre="llama-bpe", add_bos_token=False).encode("a")[0] != 1
    assert read(pre="llama-bpe", bos_token_id=None).encode("a") == read().encode("a")


def test_pre_tokenizers_cut_digits_as_they_should() -> None:
    assert words(read(pre="gpt-2"), "123") == ["123"]
    assert words(read(pre="smollm"), "123") == ["1", "2", "3"]
    assert words(read(pre="qwen2"), "123") == ["1", "2", "3"]
    assert words(read(pre="llama-bpe"), "123") == ["123"]


@pytest.mark.parametrize(
    ("pre", "text", "expected"),
    [
        ("gpt-2", "I'll go  to 1234 a\n\n b", ["I", "'ll", " go", " ", " to", " 1234", " a", "\n\n", " b"]),
        ("smollm", "I'll go  to 1234!", ["I", "'ll", " go", " ", " to", " ", "1", "2", "3", "4", "!"]),
        ("llama-bpe", "I'LL go  to 1234\n\n b", ["I", "'LL", " go", " ", " to", " ", "123", "4", "\n\n", " b"]),
        ("qwen2", "I'LL (go) 12\n b", ["I", "'LL", " (", "go", ")", " ", "1", "2", "\n", " b"]),
        ("tekken", "helloWorld's 12", ["hello", "World", "'s", " ", "1", "2"]),
        ("gpt-4o", "helloWorld's 1234", ["hello", "World's", " ", "123", "4"]),
        ("deepseek-v3", "#include 1234 中文a", ["#include", " ", "123", "4", " ", "中文", "a"]),
        ("default", "a+b 1234", ["a", "+", "b", " ", "123", "4"]),
    ],
)
def test_pre_tokenizers_cut_words(pre: str, text: str, expected: list[str]) -> None:
    cut = PRE_TYPES[pre].pre_tokenizer().pre_tokenize_str(text)
    assert [text[start:end] for _, (start, end) in cut] == expected


@pytest.mark.parametrize("pre", sorted(PRE_TYPES))
@given(text=st.text(max_size=40))
def test_no_pre_tokenizer_loses_text(pre: str, text: str) -> None:
    tokenizer = read(pre=pre)
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False), skip_special_tokens=False) == text


def test_a_missing_pre_tokenizer_is_the_default_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        tokenizer = read(pre=None)
    assert "toy.gguf" in caplog.text
    assert words(tokenizer, "1231") == ["123", "1"]


def test_every_token_that_ends_a_turn_is_an_end_token() -> None:
    tokens = [*byte_level()["tokenizer.ggml.tokens"], "<|eot_id|>", "<|endoftext|>", "custom"]
    first = len(tokens) - 3
    tokenizer = read(tokens=tokens, token_type=None, eos_token_id=first + 1, eot_token_id=first + 2)
    assert tokenizer.eos_token_ids == (first + 1, first + 2, 2, first)
    assert set(tokenizer.eos_token_ids) <= tokenizer.special_ids


def test_empty_tokens_are_holes() -> None:
    tokens = [*byte_level()["tokenizer.ggml.tokens"], "", ""]
    tokenizer = read(tokens=tokens, token_type=None)
    assert tokenizer.vocab_size == len(tokens)
    assert tokenizer.decode([len(tokens) - 1]) == ""


def test_named_templates_are_kept() -> None:
    metadata = byte_level() | {"tokenizer.chat_template": "one", "tokenizer.chat_template.tool_use": "two"}
    tokenizer = tokenizer_from_gguf(metadata, SOURCE)
    assert (tokenizer.chat_template, tokenizer.named_templates) == ("one", {"tool_use": "two"})


@pytest.mark.parametrize(
    ("changes", "key", "message"),
    [
        ({"model": None}, "model", "is missing"),
        ({"tokens": None}, "tokens", "is missing"),
        ({"tokens": []}, "tokens", "is not a list of strings"),
        ({"tokens": ["a", 1]}, "tokens", "is not a list of strings"),
        ({"tokens": ["a", "a"], "token_type": None}, "tokens", "holds 'a' twice"),
        ({"token_type": [1]}, "token_type", "has 1 entries for"),
        ({"token_type": "x"}, "token_type", "is not a list of numbers"),
        ({"merges": None}, "merges", "is missing"),
        ({"merges": ["ab"]}, "merges", "has 'ab' at 0"),
        ({"merges": ["a b c"]}, "merges", "has 'a b c' at 0"),
        ({"merges": ["q q"]}, "merges", "does not fit the vocabulary"),
        ({"bos_token_id": 5000}, "bos_token_id", "is 5000"),
        ({"eos_token_id": -1}, "eos_token_id", "is -1"),
        ({"eot_token_id": "x"}, "eot_token_id", "is 'x'"),
        ({"eos_token_id": True}, "eos_token_id", "is True"),
        ({"add_bos_token": True, "bos_token_id": None}, "add_bos_token", "is set but"),
        ({"add_bos_token": "false"}, "add_bos_token", "is 'false', not true or false"),
    ],
)
def test_garbled_metadata_names_file_and_key(changes: dict[str, Any], key: str, message: str) -> None:
    with pytest.raises(ModelLoadError) as caught:
        read(**changes)
    assert caught.value.message.startswith(f"toy.gguf: tokenizer.ggml.{key} {message}")


@pytest.mark.parametrize("changes", [{"model": "bert"}, {"model": "t5"}, {"model": "rwkv"}, {"pre": "never-heard-of"}, {"pre": ["gpt-2"]}])
def test_unknown_tokenizers_are_refused_by_name(changes: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedModelError, match=re.escape(str(*changes.values()))):
        read(**changes)


def sentencepiece(fixtures_dir: Path, **changes: Any) -> dict[str, Any]:
    """The metaspace fixture's vocabulary as a GGUF of model `llama` has it: scores fall with the rank of a piece."""
    saved = json.loads((fixtures_dir / "tiny-mistral" / "tokenizer.json").read_text("utf-8"))
    tokens = sorted(saved["model"]["vocab"], key=saved["model"]["vocab"].__getitem__)
    kinds = [2, 3, 3, 3, 3, 3, *[6] * 256, *[1] * (len(tokens) - 262)]
    keys = {"model": "llama", "tokens": tokens, "token_type": kinds, "scores": [-float(i) for i in range(len(tokens))]} | changes
    return {f"tokenizer.ggml.{key}": value for key, value in keys.items() if value is not None}


def merge_by_score(text: str, scores: dict[str, float]) -> list[str]:
    """SentencePiece's BPE as it is defined: join the neighbours whose piece scores highest, the leftmost of equals, until none is left."""
    symbols = list(text)
    while True:
        joined = [(-scores[a + b], place) for place, (a, b) in enumerate(pairwise(symbols)) if a + b in scores]
        if not joined:
            return symbols
        place = min(joined)[1]
        symbols[place : place + 2] = [symbols[place] + symbols[place + 1]]


@given(text=st.text(st.sampled_from('theraintonofcksv. ,AW\n_"é안'), max_size=60))
def test_scores_merge_as_sentencepiece_does(fixtures_dir: Path, text: str) -> None:
    metadata = sentencepiece(fixtures_dir)
    tokenizer = tokenizer_from_gguf(metadata, SOURCE)
    tokens, scores = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.scores"]
    escaped = ("▁" + text.replace(" ", "▁")) if text else ""
    symbols = merge_by_score(escaped, dict(zip(tokens, scores, strict=True)))
    known = set(tokens)
    expected = [piece for s in symbols for piece in ([s] if s in known else [f"<0x{byte:02X}>" for byte in s.encode()])]
    ids = tokenizer.encode(text)
    assert ids[0] == tokenizer.bos_token_id == 1
    assert [tokenizer.spelling(i) for i in ids[1:]] == expected
    assert tokenizer.decode(ids) == text


def test_sentencepiece_without_a_space_prefix(fixtures_dir: Path) -> None:
    tokenizer = tokenizer_from_gguf(sentencepiece(fixtures_dir, add_space_prefix=False, add_bos_token=False), SOURCE)
    ids = tokenizer.encode(" the key")
    assert tokenizer.decode(ids) == " the key"
    assert tokenizer.spelling(tokenizer.encode("the")[0]) != "▁the"


def test_sentencepiece_that_merges_cannot_express_is_refused(fixtures_dir: Path) -> None:
    tokens = sentencepiece(fixtures_dir)["tokenizer.ggml.tokens"]
    with pytest.raises(UnsupportedModelError, match="the same score"):
        tokenizer_from_gguf(sentencepiece(fixtures_dir, scores=[-1000.0] * len(tokens)), SOURCE)
    with pytest.raises(UnsupportedModelError, match="without the byte token <0x41>"):
        tokenizer_from_gguf(sentencepiece(fixtures_dir, tokens=["[A]" if t == "<0x41>" else t for t in tokens]), SOURCE)
    with pytest.raises(UnsupportedModelError, match="no token for 'Ω'"):
        tokenizer_from_gguf(sentencepiece(fixtures_dir, tokens=[*tokens[:-1], "Ωa"]), SOURCE)
    with pytest.raises(ModelLoadError, match="scores is missing"):
        tokenizer_from_gguf(sentencepiece(fixtures_dir, scores=None), SOURCE)
