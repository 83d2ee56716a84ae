"""Text that a model's tokenizer breaks on, and text so long that nobody may wait for it."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from octavo.protocol.errors import InvalidRequestError, ModelLoadError
from octavo.text.tokenizer import SHORT_TEXT, Tokenizer, tokenizer_from_folder

TokenizerOf = Callable[[str], Tokenizer]
HOPELESS = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}
WITHOUT_UNKNOWN = {"type": "WordLevel", "vocab": {"a": 0, "<|endoftext|>": 1, "<|im_end|>": 2}, "unk_token": "[UNK]"}


@pytest.fixture
def changed(fixtures_dir: Path, tmp_path: Path) -> Callable[..., Path]:
    """tiny-llama's tokenizer with keys of tokenizer.json changed."""

    def make(**changes: Any) -> Path:
        for name, change in (("tokenizer.json", changes), ("tokenizer_config.json", {})):
            content = json.loads((fixtures_dir / "tiny-llama" / name).read_text("utf-8")) | change
            (tmp_path / name).write_text(json.dumps(content), "utf-8")
        return tmp_path

    return make


@pytest.mark.parametrize("length", [300, SHORT_TEXT + 300])
def test_a_pattern_that_never_ends_is_an_error_of_the_text(changed: Callable[..., Path], length: int) -> None:
    tokenizer = tokenizer_from_folder(changed(pre_tokenizer=HOPELESS))
    with pytest.raises(InvalidRequestError, match=r"tokenizer fails on this text: .*retry-limit") as caught:
        tokenizer.encode("a" * length + "b")
    assert caught.value.param == "prompt"
    assert tokenizer.encode("a")


@pytest.mark.parametrize("length", [1, SHORT_TEXT + 1])
def test_a_character_that_a_vocabulary_lacks_is_an_error_of_the_text(changed: Callable[..., Path], length: int) -> None:
    tokenizer = tokenizer_from_folder(changed(model=WITHOUT_UNKNOWN, pre_tokenizer=None))
    with pytest.raises(InvalidRequestError, match=r"tokenizer fails on this text: .*UNK"):
        tokenizer.encode("b" * length)


def test_a_file_that_the_library_panics_on_is_named(changed: Callable[..., Path]) -> None:
    folder = changed(normalizer={"type": "Precompiled", "precompiled_charsmap": "AAAA"})
    with pytest.raises(ModelLoadError, match=r"tokenizer\.json can't be read as a tokenizer"):
        tokenizer_from_folder(folder)


def test_a_tokenizer_that_no_text_gets_through_is_named(changed: Callable[..., Path]) -> None:
    begin = {"SpecialToken": {"id": "<s>", "type_id": 0}}
    template = [begin, {"Sequence": {"id": "A", "type_id": 0}}]
    broken = {"type": "TemplateProcessing", "single": template, "pair": template, "special_tokens": {}}
    with pytest.raises(ModelLoadError, match="tokenizer") as caught:
        tokenizer_from_folder(changed(post_processor=broken))
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-mistral", "tiny-qwen2", "gguf-tiny-llama"])
def test_long_text_has_the_ids_that_short_text_has(name: str, tokenizer_of: TokenizerOf) -> None:
    tokenizer = tokenizer_of(name)
    line = "The 3 cats, naïve 안 <|im_end|>\n"
    ids = tokenizer.encode(line * 2000, add_special_tokens=False)
    assert ids == tokenizer._backend.encode(line * 2000, add_special_tokens=False).ids
    with pytest.raises(InvalidRequestError, match="surrogate"):
        tokenizer.encode(line * 2000 + "\ud800")


def test_others_run_while_a_long_text_is_encoded(tokenizer_of: TokenizerOf) -> None:
    """Held throughout, the longest pause of another thread would be nearly all of the time; a busy machine may lengthen one of them, too,
    but not in each of many turns."""
    tokenizer = tokenizer_of("tiny-llama")
    assert any(longest < took / 2 for longest, took in (paused(lambda: tokenizer.encode("hello world " * 80_000)) for _ in range(8)))


def paused(work: Callable[[], object]) -> tuple[float, float]:
    """(the longest pause of another thread meanwhile, how long `work` took), in seconds"""
    turns: list[float] = []
    done = threading.Event()

    def count() -> None:
        while not done.is_set():
            turns.append(time.monotonic())
            time.sleep(0.001)

    other = threading.Thread(target=count)
    other.start()
    try:
        started = time.monotonic()
        work()
        took = time.monotonic() - started
    finally:
        done.set()
        other.join()
    return max((after - before for before, after in itertools.pairwise(turns)), default=took), took
