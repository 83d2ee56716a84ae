from __future__ import annotations

import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from patience import patient

from octavo.text.stop import StopChecker

STOPS = st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=4)


def expected(text: str, stops: list[str], include: bool) -> tuple[str, str | None]:
    """The meaning, written plainly: the text grows one character at a time and ends when it ends with a stop string."""
    for end in range(1, len(text) + 1):
        for stop in stops:
            if text[:end].endswith(stop):
                return text[: end if include else end - len(stop)], stop
    return text, None


def run(pieces: list[str], stops: list[str], include: bool = False) -> tuple[str, str | None]:
    checker = StopChecker(stops, include)
    shown, stopped = "", None
    for piece in pieces:
        emitted, stopped = checker.push(piece)
        shown += emitted
    return shown + checker.flush(), stopped


@given(pieces=st.lists(st.text("abc", max_size=6), max_size=8), stops=STOPS, include=st.booleans())
@example(pieces=["a", "abab", "b"], stops=["abb", "bab"], include=False)
@example(pieces=["abab"], stops=["abab", "ab"], include=True)
def test_any_split_gives_the_same(pieces: list[str], stops: list[str], include: bool) -> None:
    assert run(pieces, stops, include) == expected("".join(pieces), stops, include)


@given(text=st.text("ab", max_size=12), stops=STOPS)
def test_only_what_may_become_a_stop_string_is_held(text: str, stops: list[str]) -> None:
    checker = StopChecker(stops)
    shown = ""
    for place, char in enumerate(text, 1):
        emitted, stopped = checker.push(char)
        shown += emitted
        if stopped is not None:
            break
        held = text[len(shown) : place]
        longest = max((k for k in range(place + 1) for stop in stops if k < len(stop) and text[:place].endswith(stop[:k])), default=0)
        assert len(held) == longest


def test_a_stop_string_may_span_pieces() -> None:
    checker = StopChecker(["</end>"])
    assert checker.push("text <") == ("text ", None)
    assert checker.push("/e") == ("", None)
    assert checker.push("nd> more") == ("", "</end>")
    assert checker.push("more") == ("", "</end>")
    assert checker.flush() == ""


def test_what_was_held_comes_out_when_it_is_no_stop_string() -> None:
    checker = StopChecker(["</end>"])
    assert checker.push("a </e") == ("a ", None)
    assert checker.push("m>") == ("</em>", None)
    assert checker.push("</") == ("", None)
    assert checker.flush() == "</"


def test_the_stop_string_stays_when_asked() -> None:
    assert run(["one\n", "\ntwo"], ["\n\n"], include=True) == ("one\n\n", "\n\n")
    assert run(["one\n", "\ntwo"], ["\n\n"]) == ("one", "\n\n")


def test_of_stop_strings_that_end_together_the_first_given_counts() -> None:
    assert run(["say hello"], ["lo", "hello"]) == ("say hel", "lo")
    assert run(["say hello"], ["hello", "lo"]) == ("say ", "hello")


def test_unchecked_text_goes_through() -> None:
    checker = StopChecker(["ab"])
    assert checker.push("xa") == ("x", None)
    assert checker.push("b", check=False) == ("ab", None)
    assert checker.push("ab") == ("", "ab")


def test_no_stop_strings_hold_nothing() -> None:
    assert StopChecker().push("anything") == ("anything", None)
    with pytest.raises(ValueError, match="empty"):
        StopChecker(["a", ""])


def test_long_texts_are_searched_once() -> None:
    checker = StopChecker(["never", "to be", "found"])
    start = time.perf_counter()
    shown = sum(len(checker.push("a few words to ")[0]) for _ in range(100_000))
    assert shown + len(checker.flush()) == 1_500_000
    # About a second; searching the whole text each time would take hours.
    assert time.perf_counter() - start < patient(30)


def test_much_that_is_held_makes_no_character_slow() -> None:
    stops = ["a" * 100_000, *(f"a{'b' * 100_000}{number}" for number in range(30)), *("a" * 1000 + f"c{number}" for number in range(30))]
    checker = StopChecker(stops)
    start = time.perf_counter()
    assert all(checker.push("aaaa") == ("", None) for _ in range(2_000))
    assert checker.push("c") == ("a" * 7_000, None)
    assert checker.push("7")[1] == "a" * 1000 + "c7"
    # About 0.3 s; comparing all that is held with each stop string at each place would take an hour.
    assert time.perf_counter() - start < patient(30)


@given(text=st.text("ab", max_size=40), stops=st.lists(st.text("ab", min_size=1, max_size=12), min_size=1, max_size=3))
def test_repetitive_stop_strings(text: str, stops: list[str]) -> None:
    assert run(list(text), stops) == run([text], stops) == expected(text, stops, False)
