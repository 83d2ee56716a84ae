"""A text under a grammar, over a vocabulary of bytes and a few longer tokens."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from octavo.protocol.vocabulary import Vocabulary
from octavo.structured_output.matcher import GrammarMatcher, mask_words

END, OTHER_END, CALL = 256, 257, 258
# Every byte, two end tokens, a special token, and tokens of several bytes, one of them twice.
WORDS = [b"tr", b"true", b'{"', b'":', b"hello", b" ", "é".encode(), b"yes", b"yes"]
SIZE = CALL + 1 + len(WORDS)
ROWS = SIZE + 40  # a model may have logits for more than its tokenizer has tokens


def vocabulary() -> Vocabulary:
    tokens = [bytes([byte]) for byte in range(256)] + [b"<end>", b"<also end>", b"<call>", *WORDS]
    return Vocabulary(tokens, [END, OTHER_END, CALL], [END, OTHER_END])


class Text:
    """A text under a grammar: which tokens may come."""

    def __init__(self, matcher: GrammarMatcher) -> None:
        self._matcher = matcher
        self._ids: list[int] = []

    def add(self, ids: Iterable[int]) -> Text:
        for token in ids:
            assert token in self.next(), (token, self._ids)
            self._ids.append(token)
        return self

    def next(self) -> set[int]:
        mask = np.empty(mask_words(ROWS), np.int32)
        self._matcher.fill(self._ids, mask)
        bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
        assert not bits[SIZE:].any()
        return set(np.flatnonzero(bits).tolist())

    @property
    def may_end(self) -> bool:
        ends = self.next() & {END, OTHER_END}
        assert ends in (set(), {END, OTHER_END})
        return bool(ends)

    def takes(self, text: str) -> bool:
        """Whether the whole text, byte by byte, is one of the grammar."""
        for token in text.encode():
            if token not in self.next():
                return False
            self._ids.append(token)
        return self.may_end
