"""Logprobs in OpenAI's two shapes: parallel lists for completions, one object a token for chat."""

from __future__ import annotations

import codecs
import math

from octavo.protocol.outputs import Logprob, PositionLogprobs
from octavo.server.context import Tokenizer
from octavo.server.responses import ChatLogprob, ChatLogprobs, CompletionLogprobs, TopLogprob

# JSON has no infinity: a token that a mask or underflow ruled out gets vLLM's stand-in.
LOWEST = -9999.0


def finite(logprob: float) -> float:
    """`logprob` as JSON can carry it."""
    return LOWEST if math.isnan(logprob) else max(logprob, LOWEST)


def token_string(data: bytes) -> str:
    """A token's bytes as text, or OpenAI's `bytes:\\xNN…` form when they are not whole characters."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


class TextOffsets:
    """Where each token starts in a choice's text, in characters; a character counts where its last byte comes."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._length = 0

    def advance(self, data: bytes) -> int:
        """The offset at which a token of these bytes starts."""
        offset = self._length
        self._length += len(self._decoder.decode(data))
        return offset


def completion_logprobs(positions: list[PositionLogprobs], tokenizer: Tokenizer, offsets: TextOffsets) -> CompletionLogprobs:
    """The legacy shape of `positions`, of which each lists the sampled token first."""
    result = CompletionLogprobs([], [], [], [])
    for position in positions:
        strings: dict[str, float] = {}
        for index, (token_id, logprob) in enumerate(position.items()):
            data = tokenizer.token_bytes(token_id)
            text = token_string(data)
            if index == 0:
                result.text_offset.append(offsets.advance(data))
                result.tokens.append(text)
                result.token_logprobs.append(finite(logprob.logprob))
            # Two ids may read alike; the likelier one stands.
            strings[text] = max(finite(logprob.logprob), strings.get(text, LOWEST))
        result.top_logprobs.append(strings)
    return result


def chat_logprobs(positions: list[PositionLogprobs], tokenizer: Tokenizer, count: int) -> ChatLogprobs:
    """The chat shape of `positions`, with the `count` most likely tokens at each."""
    content = []
    for position in positions:
        sampled, logprob = next(iter(position.items()))
        data = tokenizer.token_bytes(sampled)
        top = [_top(token_id, candidate, tokenizer) for token_id, candidate in _most_likely(position, count)]
        content.append(ChatLogprob(token_string(data), finite(logprob.logprob), list(data), top))
    return ChatLogprobs(content)


def _most_likely(position: PositionLogprobs, count: int) -> list[tuple[int, Logprob]]:
    # The sampled token comes first in a position and may rank below the others; sorting is stable for ties.
    ranked = sorted(position.items(), key=lambda item: (-item[1].logprob, item[1].rank or 0))
    return ranked[:count]


def _top(token_id: int, logprob: Logprob, tokenizer: Tokenizer) -> TopLogprob:
    data = tokenizer.token_bytes(token_id)
    return TopLogprob(token_string(data), finite(logprob.logprob), list(data))
