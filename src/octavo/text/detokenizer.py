"""Output tokens to text, as they come."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from octavo.text.tokenizer import TextAssembler, Tokenizer


class IncrementalDetokenizer:
    """Turns one request's output tokens into text that is final when it leaves.

    All that `push` returns is `tokenizer.decode(prompt_ids + ids, whole=False)` without the prompt's text. No half character leaves: bytes
    wait until they make one, or until it is clear that they never will (then U+FFFD), and what still waits at the end is left out. Takes
    constant time a token, however long the prompt or the output.

    `spaces_between_special_tokens=False` gives an added token that follows another as it is written, without the space that a decoder
    may make of it (vLLM's meaning).
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_ids: Sequence[int] = (),
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
    ) -> None:
        self._assembler = TextAssembler(tokenizer, skip_special_tokens)
        self._added = frozenset() if skip_special_tokens or spaces_between_special_tokens else tokenizer.added_ids
        self._tokenizer = tokenizer
        self._after_added = False
        self._assembler.feed(_tail_with_text(tokenizer, prompt_ids, tokenizer.special_ids if skip_special_tokens else frozenset()))

    def push(self, token_ids: Iterable[int]) -> str:
        """The text that these tokens complete, which may be none."""
        if not self._added:
            return self._assembler.feed(token_ids)
        return "".join(map(self._push_one, token_ids))

    def _push_one(self, token_id: int) -> str:
        after_added, self._after_added = self._after_added, token_id in self._added
        spelling = self._tokenizer.spelling(token_id)
        if after_added and self._after_added and spelling is not None:
            return self._assembler.feed_raw(spelling)
        return self._assembler.feed([token_id])


def _tail_with_text(tokenizer: Tokenizer, prompt_ids: Sequence[int], skipped: frozenset[int]) -> Sequence[int]:
    """The end of the prompt that decides how the output starts: enough bytes to hold a half character, and any leading space."""
    needed = max(4, tokenizer.pieces.leading_strip + 1)
    start = len(prompt_ids)
    while start and needed > 0:
        start -= 1
        if prompt_ids[start] not in skipped:
            needed -= len(tokenizer.token_bytes(prompt_ids[start]))
    return prompt_ids[start:]
