"""Logprobs in OpenAI's two shapes, parallel lists for completions and one object a token for chat, and in vLLM's for prompts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from octavo.protocol.outputs import Logprob, PositionLogprobs
from octavo.server.responses import ChatLogprob, ChatLogprobs, CompletionLogprobs, PromptLogprob, PromptLogprobs, TopLogprob
from octavo.text.detokenizer import IncrementalDetokenizer
from octavo.text.tokenizer import Tokenizer

# JSON has no infinity: a token that a mask or underflow ruled out gets vLLM's stand-in.
LOWEST = -9999.0
# How a token is written.
Spell = Callable[[int], str]


def finite(logprob: float) -> float:
    """`logprob` as JSON can carry it."""
    return LOWEST if math.isnan(logprob) else max(logprob, LOWEST)


def spelling(tokenizer: Tokenizer, *, as_ids: bool) -> Spell:
    """Tokens as their text, or as `token_id:ID`."""
    return (lambda token_id: f"token_id:{token_id}") if as_ids else tokenizer.token_text


class TextOffsets:
    """Where each token of a text starts, in characters; a character counts where its last byte comes. What is left out of the text, such as
    special tokens, has no length. The text begins after `prompt_ids`, which take `start` characters."""

    def __init__(
        self, tokenizer: Tokenizer, prompt_ids: Sequence[int] = (), *, skip_special_tokens: bool, spaces: bool = True, start: int = 0
    ) -> None:
        self._detokenizer = IncrementalDetokenizer(tokenizer, prompt_ids, skip_special_tokens, spaces)
        self._length = start

    def advance(self, token_id: int) -> int:
        """The offset at which this token starts, which is the next one."""
        offset = self._length
        self._length += len(self._detokenizer.push([token_id]))
        return offset


def prompt_offsets(tokenizer: Tokenizer, prompt_ids: Sequence[int], text: str | None, *, skip_special_tokens: bool) -> list[int]:
    """Where each token of a prompt starts in its `text`, or, if that is None, in what its tokens read as."""
    before, after, skip = 0, 0, skip_special_tokens
    if text is not None:
        # A text reads as it was sent, special tokens that it spells included; those that were put around it have no place in it.
        plain = tokenizer.encode(text, False)
        places = range(len(prompt_ids) - len(plain) + 1)
        found = next((place for place in places if list(prompt_ids[place : place + len(plain)]) == plain), None)
        if found is not None:
            before, after, skip = found, len(prompt_ids) - found - len(plain), False
    offsets = TextOffsets(tokenizer, skip_special_tokens=skip)
    inside = [offsets.advance(token_id) for token_id in prompt_ids[before : len(prompt_ids) - after]]
    return [0] * before + inside + [len(text or "")] * after


def completion_logprobs(positions: Sequence[PositionLogprobs], spell: Spell, offset: Callable[[int], int]) -> CompletionLogprobs:
    """The legacy shape of `positions`, of which each lists first the token that is there, at the `offset` of that."""
    result = CompletionLogprobs([], [], [], [])
    for position in positions:
        strings: dict[str, float] = {}
        for index, (token_id, logprob) in enumerate(position.items()):
            text = spell(token_id)
            if index == 0:
                result.text_offset.append(offset(token_id))
                result.tokens.append(text)
                result.token_logprobs.append(finite(logprob.logprob))
            # Two ids may read alike; the likelier one stands.
            strings[text] = max(finite(logprob.logprob), strings.get(text, LOWEST))
        result.top_logprobs.append(strings)
    return result


def echoed_logprobs(
    prompt_ids: Sequence[int], positions: Sequence[PositionLogprobs | None], count: int, spell: Spell, offsets: list[int]
) -> CompletionLogprobs:
    """The legacy shape of a prompt's `positions`, with the `count` most likely tokens at each; nothing is known of the first."""
    given = iter(offsets[1:])
    known = [first(position, count) for position in positions if position is not None]
    result = CompletionLogprobs([offsets[0]], [None], [spell(prompt_ids[0])], [None])
    return joined(result, completion_logprobs(known, spell, lambda _: next(given)))


def joined(one: CompletionLogprobs, other: CompletionLogprobs) -> CompletionLogprobs:
    """`one`, followed by `other`."""
    for name in CompletionLogprobs.__struct_fields__:
        getattr(one, name).extend(getattr(other, name))
    return one


def first(position: PositionLogprobs, count: int) -> PositionLogprobs:
    """The token that is there, and the `count` most likely ones."""
    (there, logprob), *others = position.items()
    return {there: logprob} | {token_id: other for token_id, other in others if other.rank is not None and other.rank <= count}


def prompt_logprobs(positions: Sequence[PositionLogprobs | None] | None, count: int) -> PromptLogprobs:
    """vLLM's shape of a prompt's `positions`, with the `count` most likely tokens at each."""
    return [
        None
        if position is None
        else {
            str(token_id): PromptLogprob(finite(logprob.logprob), logprob.rank, logprob.decoded_token)
            for token_id, logprob in first(position, count).items()
        }
        for position in positions or ()
    ]


def chat_logprobs(positions: list[PositionLogprobs], tokenizer: Tokenizer, count: int, *, as_ids: bool = False) -> ChatLogprobs:
    """The chat shape of `positions`, with the `count` most likely tokens at each."""
    content = []
    spell = spelling(tokenizer, as_ids=as_ids)
    for position in positions:
        sampled, logprob = next(iter(position.items()))
        top = [_top(token_id, candidate, tokenizer, spell) for token_id, candidate in _most_likely(position, count)]
        content.append(ChatLogprob(spell(sampled), finite(logprob.logprob), list(tokenizer.token_bytes(sampled)), top))
    return ChatLogprobs(content)


def _most_likely(position: PositionLogprobs, count: int) -> list[tuple[int, Logprob]]:
    # The sampled token comes first in a position and may rank below the others; sorting is stable for ties.
    ranked = sorted(position.items(), key=lambda item: (-item[1].logprob, item[1].rank or 0))
    return ranked[:count]


def _top(token_id: int, logprob: Logprob, tokenizer: Tokenizer, spell: Spell) -> TopLogprob:
    return TopLogprob(spell(token_id), finite(logprob.logprob), list(tokenizer.token_bytes(token_id)))
