"""Following a text: ends, special tokens, and the same masks however the tokens came."""

from __future__ import annotations

import random

import numpy as np
import pytest
from grammar_text import CALL, END, OTHER_END, ROWS, WORDS, Text, vocabulary

from octavo.protocol.vocabulary import Vocabulary
from octavo.structured_output.compiler import GrammarCompiler
from octavo.structured_output.matcher import mask_of, mask_words


def word(text: bytes) -> int:
    return CALL + 1 + WORDS.index(text)


def test_every_spelling_of_what_may_come_is_allowed(compiler: GrammarCompiler) -> None:
    twice = {CALL + 1 + index for index, text in enumerate(WORDS) if text == b"yes"}
    assert Text(compiler.matcher('start: "yes"')).next() == {ord("y"), *twice}
    assert len(twice) == 2
    # Also where the grammar forces the next bytes: which tokens spell them is the model's choice.
    assert Text(compiler.matcher('start: "true"')).next() == {ord("t"), word(b"tr"), word(b"true")}


def test_half_a_character_is_no_end(compiler: GrammarCompiler) -> None:
    text = Text(compiler.matcher("start: /[é]+/"))
    assert text.next() == {0xC3, word("é".encode())}
    assert not text.add([0xC3]).may_end
    assert text.next() == {0xA9}
    assert text.add([0xA9]).may_end


def test_a_text_ends_where_it_may_and_then_for_good(compiler: GrammarCompiler) -> None:
    text = Text(compiler.matcher("start: /[a-c]+/"))
    assert not text.may_end
    assert text.add(b"ab").may_end
    assert text.add([OTHER_END]).next() == {END, OTHER_END}
    assert text.add([END, END]).next() == {END, OTHER_END}


def test_special_tokens_are_no_text(compiler: GrammarCompiler) -> None:
    assert CALL not in Text(compiler.matcher(r"start: /(.|\n)*/")).next()
    assert CALL not in Text(compiler.matcher('start: "<call>"')).next()
    assert Text(compiler.matcher(f'start: <[{CALL}]> "x"')).next() == {CALL}
    assert Text(compiler.matcher(f'start: <[{CALL}]> "x"')).add([CALL, ord("x")]).may_end


@pytest.mark.parametrize("grammar", ['start: %json {"type": "object"}', r"start: /([a-z]+ ?)*[.]/", 'start: "a" start | "b"'])
def test_masks_depend_on_the_tokens_alone(compiler: GrammarCompiler, grammar: str) -> None:
    """One matcher takes token by token, others all at once, as after a preemption, and others follow texts of their own in between."""
    made = random.Random(3)
    steps = compiler.matcher(grammar)
    ids: list[int] = []
    for _ in range(40):
        mask, again, other = (np.zeros(mask_words(ROWS), np.int32) for _ in range(3))
        steps.fill(ids, mask)
        compiler.matcher(grammar).fill(ids, again)
        compiler.matcher(grammar).fill([], other)
        assert np.array_equal(mask, again)
        choices = sorted(set(np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()))
        assert choices
        ids.append(made.choice(choices))


def test_grammars_are_kept_up_to_a_number() -> None:
    compiler = GrammarCompiler(vocabulary(), ROWS, max_compiled=2)
    for text in ("a", "b", "c", "c", "b"):
        compiler.check(f'start: "{text}"')
        assert len(compiler) <= 2
    assert len(compiler) == 2


def test_a_lexer_that_other_texts_have_filled_is_made_anew(monkeypatch: pytest.MonkeyPatch, compiler: GrammarCompiler) -> None:
    """Each text needs less than half of the states that there may be, and all texts of a grammar share its lexer."""
    monkeypatch.setattr("octavo.structured_output.compiler.MAX_LEXER_STATES", 300)
    narrow = GrammarCompiler(vocabulary(), ROWS)
    grammar = "start: /(a|b)*a(a|b){10}/"
    made = random.Random(1)
    for _ in range(8):
        matcher, plenty, ids = narrow.matcher(grammar), compiler.matcher(grammar), []
        for _ in range(90):
            mask, same = (np.zeros(mask_words(ROWS), np.int32) for _ in range(2))
            matcher.fill(ids, mask)
            plenty.fill(ids, same)
            assert np.array_equal(mask, same)
            ids.append(made.choice(b"ab"))
    assert len(narrow) == 1


def test_a_model_without_an_end_token_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing ends"):
        GrammarCompiler(Vocabulary([b"a"], [], [7]), 3)


def test_a_vocabulary_of_more_tokens_than_logits() -> None:
    """The tokens that the model can't choose are not there."""
    text = Text(GrammarCompiler(Vocabulary([b"a", b"", b"b", b"ab"], [1], [1, 9]), 3).matcher("start: /[ab]+/"))
    mask = np.zeros(1, np.int32)
    text._matcher.fill([0], mask)
    assert mask[0] == 0b111


def test_masks_of_tokens() -> None:
    assert mask_of([0, 33, 99], 40).tolist() == [1, 2]
    assert mask_of([31], 32).tolist() == [-(2**31)]
