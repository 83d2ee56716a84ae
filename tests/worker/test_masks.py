"""Masks of one step: made aside, each row's failure its own."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from grammar_text import END, OTHER_END, ROWS, vocabulary

from octavo.protocol.sampling import SamplingParams
from octavo.structured_output.compiler import GrammarCompiler
from octavo.structured_output.matcher import mask_of
from octavo.worker.masks import TokenMasks
from octavo.worker.sampler import Sampled, SampleFailed, SamplingRow
from octavo.worker.stepping import InNumpy


class PanicException(BaseException):
    """As a panic of Rust code arrives."""


class Panicking:
    def fill(self, *arguments: Any) -> None:
        raise PanicException("index out of bounds")


@pytest.fixture
def masks() -> Iterator[TokenMasks]:
    made = TokenMasks(ROWS, 8)
    made.use_vocabulary(vocabulary())
    yield made
    made.close()


def row_of(tokens: bytes = b"", **fields: Any) -> SamplingRow:
    """Two tokens of a prompt, and those of the output."""
    ids = [1, 2, *tokens]
    params = {name: fields.pop(name) for name in ("min_tokens", "allowed_token_ids") if name in fields}
    return SamplingRow(SamplingParams(max_tokens=99, **params), 0, len(ids), ids, 2, [END, OTHER_END], **fields)


def tokens_of(row: SamplingRow) -> set[int]:
    assert row.mask is not None
    return set(np.flatnonzero(np.unpackbits(row.mask.view(np.uint8), bitorder="little")).tolist())


def test_rows_without_a_grammar_wait_for_nothing(masks: TokenMasks) -> None:
    plain, allowed, banned = row_of(), row_of(allowed_token_ids=[3, 9]), row_of(bad_words=[[5], [6, 7]])
    assert masks.begin([plain, allowed, banned]) is None
    assert plain.mask is None
    assert tokens_of(allowed) == {3, 9}
    assert set(range(ROWS)) - tokens_of(banned) == {5}


def test_each_row_goes_on_from_its_own_output(masks: TokenMasks) -> None:
    rows = [row_of(grammar='start: "ab"'), row_of(b"a", grammar='start: "ab"'), row_of(b"ab", grammar='start: "ab"'), row_of()]
    pending = masks.begin(rows)
    assert pending is not None
    pending.finish()
    assert [tokens_of(row) for row in rows[:3]] == [{ord("a")}, {ord("b")}, {END, OTHER_END}]
    assert rows[3].mask is None


def test_fields_meet(masks: TokenMasks) -> None:
    early = row_of(b"a", grammar="start: /[abc]+/", min_tokens=2)
    late = row_of(b"ab", grammar="start: /[abc]+/", min_tokens=2)
    forced = row_of(b"a", grammar='start: "a"', min_tokens=2)
    narrow = row_of(grammar="start: /[abc]+/", allowed_token_ids=[ord("b"), ord("x")], bad_words=[[ord("c")]])
    pending = masks.begin([early, late, forced, narrow])
    assert pending is not None
    pending.finish()
    letters = {ord(letter) for letter in "abc"}
    assert [tokens_of(row) for row in (early, late)] == [letters, letters | {END, OTHER_END}]
    assert [tokens_of(row) for row in (forced, narrow)] == [{END, OTHER_END}, {ord("b")}]


def test_what_fails_fails_alone(masks: TokenMasks) -> None:
    broken, wrong, fine = row_of(grammar='start: "a"'), row_of(b"x", grammar='start: "a"'), row_of(grammar='start: "a"')
    broken.matcher = Panicking()  # type: ignore[assignment]
    pending = masks.begin([broken, wrong, fine])
    assert pending is not None
    pending.finish()
    assert broken.failure == SampleFailed("structured_outputs: PanicException: index out of bounds")
    assert wrong.failure is not None
    assert wrong.failure.invalid
    assert wrong.failure.reason.startswith("structured_outputs: the text can't go on: ")
    assert not wrong.failure.reason.endswith(">")
    assert fine.failure is None
    assert tokens_of(fine) == {ord("a")}


def test_masks_are_made_while_the_program_runs(masks: TokenMasks) -> None:
    made = threading.Event()

    class Noting:
        def fill(self, output: Any, mask: Any, address: int) -> None:
            mask[:] = mask_of([7], ROWS)
            made.set()

    class Waiting:
        def run(self, step: Any) -> np.ndarray[Any, Any]:
            assert made.wait(60), "no mask came while the program ran"
            return np.zeros((1, ROWS), np.float32)

    row = row_of(grammar="start: /a/")
    row.matcher = Noting()  # type: ignore[assignment]
    assert InNumpy(Waiting(), ROWS).run(None, [row], masks.begin([row])) == [Sampled(7)]  # type: ignore[arg-type]


def test_a_panic_of_the_compiler_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    def panic(self: GrammarCompiler, grammar: str) -> None:
        raise PanicException("unreachable")

    monkeypatch.setattr(GrammarCompiler, "_compile", panic)
    with pytest.raises(ValueError, match=r"can't be used: llguidance fails on it \(unreachable\)"):
        GrammarCompiler(vocabulary(), ROWS).check('start: "a"')
