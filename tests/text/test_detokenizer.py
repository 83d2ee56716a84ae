from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from patience import patient
from tokenizers import Tokenizer as Backend

from octavo.text.detokenizer import IncrementalDetokenizer
from octavo.text.tokenizer import Tokenizer

TokenizerOf = Callable[[str], Tokenizer]
FIXTURES = Path(__file__).parents[1] / "fixtures"
# Valid ids, and a few that are no token.
IDS = st.lists(st.integers(0, 800), max_size=40)


@cache
def backend(name: str) -> Backend:
    return Backend.from_file(str(FIXTURES / name / "tokenizer.json"))


def stream(tokenizer: Tokenizer, ids: list[int], prompt: list[int] | None = None, skip: bool = True) -> tuple[list[str], str]:
    detokenizer = IncrementalDetokenizer(tokenizer, prompt or [], skip)
    pieces = [detokenizer.push([token_id]) for token_id in ids]
    # What a whole text ends with, and an output leaves out: U+FFFD for half a character.
    return pieces, detokenizer._assembler.finish()


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-qwen2", "tiny-mistral"])
@given(ids=IDS, skip=st.booleans(), cuts=st.lists(st.integers(0, 40), max_size=5))
def test_pieces_add_up_to_the_whole(name: str, ids: list[int], skip: bool, cuts: list[int], tokenizer_of: TokenizerOf) -> None:
    tokenizer = tokenizer_of(name)
    pieces, rest = stream(tokenizer, ids, skip=skip)
    whole = tokenizer.decode(ids, skip_special_tokens=skip)
    assert "".join(pieces) + rest == whole
    assert set(rest) <= {"�"}
    assert len(rest) < 4
    detokenizer = IncrementalDetokenizer(tokenizer, [], skip)
    bounds = [0, *sorted(cuts), len(ids)]
    chunks = [ids[a:b] for a, b in pairwise(bounds)]
    assert "".join(map(detokenizer.push, chunks)) == tokenizer.decode(ids, skip, whole=False) == "".join(pieces)


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-qwen2"])
@given(ids=IDS, skip=st.booleans())
def test_byte_level_text_is_what_the_tokenizers_library_gives(name: str, ids: list[int], skip: bool, tokenizer_of: TokenizerOf) -> None:
    pieces, rest = stream(tokenizer_of(name), ids, skip=skip)
    assert "".join(pieces) + rest == backend(name).decode(ids, skip_special_tokens=skip)


@given(ids=IDS, skip=st.booleans())
@example(ids=[0x0A + 6, 0xFF + 6, 300], skip=True)
def test_metaspace_text_is_what_the_tokenizers_library_gives_for_whole_characters(
    ids: list[int], skip: bool, tokenizer_of: TokenizerOf
) -> None:
    """For bytes that are not UTF-8 that library replaces the whole run of bytes, sound ones included; Octavo only what is broken."""
    theirs = backend("tiny-mistral").decode(ids, skip_special_tokens=skip)
    pieces, rest = stream(tokenizer_of("tiny-mistral"), ids, skip=skip)
    ours = "".join(pieces) + rest
    if "�" not in ours or "�" not in theirs:
        assert ours == theirs


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-mistral"])
@given(prompt=st.text(max_size=20), output=st.text(max_size=20), data=st.data())
def test_output_is_the_text_after_the_prompt(name: str, prompt: str, output: str, data: st.DataObject, tokenizer_of: TokenizerOf) -> None:
    tokenizer = tokenizer_of(name)
    ids = tokenizer.encode(prompt + output)
    start = data.draw(st.integers(0, len(ids)))
    pieces, rest = stream(tokenizer, ids[start:], ids[:start])
    whole, before = tokenizer.decode(ids), tokenizer.decode(ids[:start]).rstrip("�")
    if whole.startswith(before):
        assert whole.endswith("".join(pieces) + rest)
        assert before + "".join(pieces) + rest == whole


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-mistral"])
def test_half_characters_wait(name: str, tokenizer_of: TokenizerOf) -> None:
    tokenizer = tokenizer_of(name)
    ids = tokenizer.encode("😀", add_special_tokens=False)[-4:]
    pieces, rest = stream(tokenizer, ids, tokenizer.encode("a"))
    assert (pieces, rest) == (["", "", "", "😀"], "")
    assert stream(tokenizer, ids[:3], tokenizer.encode("a")) == (["", "", ""], "�")
    # A character that the prompt began ends in the output.
    assert stream(tokenizer, ids[2:], [*tokenizer.encode("a"), *ids[:2]]) == (["", "😀"], "")


def test_broken_bytes_are_replaced_as_soon_as_they_are_known_to_be(tokenizer_of: TokenizerOf) -> None:
    tokenizer = tokenizer_of("tiny-mistral")
    byte = {tokenizer.token_bytes(i): i for i in range(6, 262)}
    broken = [byte[b"\xe4"], byte[b"\xbd"], byte[b"A"], byte[b"\xff"]]
    assert stream(tokenizer, broken) == (["", "", "�A", "�"], "")


def test_a_leading_space_is_dropped_at_the_start_only(tokenizer_of: TokenizerOf) -> None:
    tokenizer = tokenizer_of("tiny-mistral")
    the = tokenizer.encode("the", add_special_tokens=False)
    assert stream(tokenizer, the * 2) == (["the", " the"], "")
    assert stream(tokenizer, the, the) == ([" the"], "")
    # A prompt of special tokens alone has no text.
    assert stream(tokenizer, the, [1, 1]) == (["the"], "")


def test_special_tokens_show_only_when_asked(tokenizer_of: TokenizerOf) -> None:
    tokenizer = tokenizer_of("tiny-llama")
    ids = tokenizer.encode("a<|im_end|>b")
    assert stream(tokenizer, ids)[0] == ["a", "", "b"]
    assert stream(tokenizer, ids, skip=False)[0] == ["a", "<|im_end|>", "b"]


def test_special_tokens_in_a_row_can_stand_as_they_are_written(fixtures_dir: Path, tmp_path: Path) -> None:
    from octavo.text.tokenizer import tokenizer_from_folder

    text = (fixtures_dir / "tiny-mistral" / "tokenizer.json").read_text("utf-8").replace("<|im_start|>", "▁<start>")
    (tmp_path / "tokenizer.json").write_text(text, "utf-8")
    tokenizer = tokenizer_from_folder(tmp_path)
    spaced = IncrementalDetokenizer(tokenizer, [300], False, True)
    plain = IncrementalDetokenizer(tokenizer, [300], False, False)
    assert spaced.push([5, 4, 4]) == "<|im_end|> <start> <start>"
    assert plain.push([4, 4, 5]) == " <start>▁<start><|im_end|>"


def test_a_long_output_takes_constant_time_a_token(tokenizer_of: TokenizerOf) -> None:
    tokenizer = tokenizer_of("tiny-mistral")
    ids = tokenizer.encode("the key is the name. ") * 20_000
    detokenizer = IncrementalDetokenizer(tokenizer, ids)
    start = time.perf_counter()
    for token_id in ids[:100_000]:
        detokenizer.push([token_id])
    # About 0.1 s; decoding the whole again each time would take hours.
    assert time.perf_counter() - start < patient(10)
