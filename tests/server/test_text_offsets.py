"""Where tokens are in a text: of every kind of tokenizer, whatever characters they cut, and however they come."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from octavo.api.sample import Sample
from octavo.loading.open import open_checkpoint
from octavo.protocol.sampling import SamplingParams
from octavo.protocol.wire import EngineOutput
from octavo.server.logprobs import TextOffsets, prompt_offsets
from octavo.text.tokenizer import Tokenizer, load_tokenizer, tokenizer_from_folder

TEXTS = [
    "The cat sat.",
    "👩‍👩‍👧‍👦 and 🏳️‍🌈 and 👍🏽",
    "안녕하세요, 한글은 어때요?",
    "é e\u0301 ñ n\u0303 Z\u0361\u0489",
    "日本語と中文, ไทย, हिन्दी",
    " leading, trailing  ",
    "\x00\x7f\u200b\ufeff",
]
MODELS = ["tiny-llama", "tiny-qwen2", "tiny-mistral", "gguf-tiny-llama/tiny-llama-Q8_0.gguf", "gguf-tiny-qwen2/tiny-qwen2-Q4_0.gguf"]


@pytest.fixture(scope="module", params=MODELS)
def tokenizer(request: pytest.FixtureRequest, fixtures_dir: Path) -> Tokenizer:
    path = fixtures_dir / request.param
    if path.is_dir():
        return tokenizer_from_folder(path)
    with open_checkpoint(path) as checkpoint:
        return load_tokenizer(checkpoint)


def streamed(tokenizer: Tokenizer, prompt: list[int], ids: list[int], sizes: random.Random, **params: object) -> str:
    """A sample's text as its pieces come, each after some more tokens."""
    sample = Sample(0, tokenizer, prompt, SamplingParams(**params))  # type: ignore[arg-type]
    pieces = []
    while ids:
        count = sizes.randrange(1, 4)
        given, ids = ids[:count], ids[count:]
        sample.push(EngineOutput("x", given, finish_reason=None if ids else "length"))
        output = sample.take()
        pieces.append(output.text if output is not None else "")
        if sample.finished:
            break
    assert "".join(pieces) == sample.output().text
    return "".join(pieces)


@pytest.mark.parametrize("text", TEXTS)
def test_characters_are_never_split(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text, False)
    whole = tokenizer.decode(ids)
    # The bytes that logprobs tell of are those of the text, but for a space that a tokenizer puts first.
    assert b"".join(map(tokenizer.token_bytes, ids)).decode().lstrip(" ") == whole.lstrip(" ")
    for seed in range(3):
        assert streamed(tokenizer, [], list(ids), random.Random(seed)) == whole
    if tokenizer.decode(tokenizer.encode(text, False)) == text:
        assert "\ufffd" not in whole
        # From the middle of a character on, what the prompt holds of it counts.
        for cut in range(1, len(ids)):
            rest = streamed(tokenizer, ids[:cut], list(ids[cut:]), random.Random(cut))
            assert tokenizer.decode(ids[:cut], whole=False) + rest == text


@pytest.mark.parametrize("skip", [True, False])
def test_offsets_of_random_tokens_fit_the_text(tokenizer: Tokenizer, skip: bool) -> None:
    made = random.Random(11)
    for _ in range(40):
        ids = [made.randrange(tokenizer.vocab_size) for _ in range(made.randrange(1, 40))]
        cut = made.randrange(len(ids))
        text = streamed(tokenizer, ids[:cut], list(ids[cut:]), made, skip_special_tokens=skip)
        offsets = TextOffsets(tokenizer, ids[:cut], skip_special_tokens=skip)
        places = [offsets.advance(token_id) for token_id in ids[cut:]]
        assert places == sorted(places)
        for token_id, place in zip(ids[cut:], places, strict=True):
            data = tokenizer.token_bytes(token_id)
            if skip and token_id in tokenizer.special_ids:
                continue
            # A token of whole characters that follows whole characters is there, letter by letter.
            if data.isascii() and "\ufffd" not in text[place : place + len(data)]:
                assert text[place : place + len(data)] in (data.decode(), data.decode().lstrip(" "))


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("skip", [True, False])
def test_offsets_of_a_prompt_that_was_sent_as_text(tokenizer: Tokenizer, text: str, skip: bool) -> None:
    special = tokenizer.eos_token or ""
    sent = f"{text}{special}{text}"
    ids = tokenizer.encode(sent)
    if tokenizer.decode(tokenizer.encode(sent, False), False) != sent:
        pytest.skip("this tokenizer does not keep the text as it is")
    places = prompt_offsets(tokenizer, ids, sent, skip_special_tokens=skip)
    (place,) = [place for token_id, place in zip(ids, places, strict=True) if token_id == tokenizer.eos_token_id][-1:]
    assert place == len(text)
    for token_id, start, end in zip(ids, places, [*places[1:], len(sent)], strict=True):
        if token_id not in tokenizer.special_ids and (data := tokenizer.token_bytes(token_id)).isascii():
            assert sent[start:end] in (data.decode(), data.decode().lstrip(" "))


@pytest.mark.parametrize("stop", ["👧", "글은", "e\u0301", "と中", "t sat", "👩‍👧"])
def test_stop_strings_that_straddle_tokens_and_characters(tokenizer: Tokenizer, stop: str) -> None:
    for text in TEXTS:
        ids = tokenizer.encode(text, False)
        whole = tokenizer.decode(ids)
        for seed in range(3):
            found = streamed(tokenizer, [], list(ids), random.Random(seed), stop=stop)
            assert found == whole.partition(stop)[0]
