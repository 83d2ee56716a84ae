"""Grammars ready to be followed, kept for the next request that brings the same one."""

from __future__ import annotations

import threading
from collections import OrderedDict
from functools import partial
from typing import TYPE_CHECKING

from octavo.protocol.errors import InvalidRequestError
from octavo.protocol.vocabulary import Vocabulary
from octavo.structured_output.deep_stack import call_deep
from octavo.structured_output.matcher import NO_DETAILS, GrammarMatcher

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer

# Grammars that are kept.
MAX_COMPILED = 128
# States that a grammar's lexer may come to have, at one to two kB each. All texts of a grammar share its lexer, which is made anew when it
# has that many.
MAX_LEXER_STATES = 20_000
LONGEST_REASON = 500
# What a grammar forces is left to the model to spell: only so are the tokens that it may take a property of the text alone.
_NO_FORCING = '\n%llguidance {"no_forcing": true}'


class GrammarCompiler:
    """Compiles grammars for one vocabulary, of which `vocab_size` tokens have logits and one at least ends a text. Threads may share it.
    llguidance's own tables of the vocabulary are made at the first grammar."""

    def __init__(self, vocabulary: Vocabulary, vocab_size: int, max_compiled: int = MAX_COMPILED) -> None:
        self._vocabulary = vocabulary
        self._vocab_size = vocab_size
        self._end_ids = [token for token in vocabulary.end_ids if token < vocab_size]
        if not self._end_ids:
            raise ValueError("a text that nothing ends can't be held to a grammar")
        self._max_compiled = max_compiled
        self._compiled: OrderedDict[str, LLMatcher] = OrderedDict()
        self._lock = threading.Lock()
        self._making_tables = threading.Lock()
        self._tokenizer: LLTokenizer | None = None
        self._limits: LLParserLimits | None = None

    def __len__(self) -> int:
        """Grammars that are kept."""
        return len(self._compiled)

    def matcher(self, grammar: str) -> GrammarMatcher:
        """A matcher at the beginning of a text. Raises InvalidRequestError, with the reason, for a grammar that can't be compiled, or that
        has no text."""
        compiled = self._of(grammar)
        return GrammarMatcher(compiled.deep_copy(), self._end_ids, self._vocab_size, partial(self._renewed, grammar, compiled))

    def check(self, grammar: str) -> None:
        """Raises what `matcher` raises."""
        self._of(grammar)

    def _renewed(self, grammar: str, spent: LLMatcher) -> LLMatcher:
        """Another matcher at the beginning of a text, with a lexer that is not the one of `spent`."""
        return self._of(grammar, spent).deep_copy()

    def _of(self, grammar: str, spent: LLMatcher | None = None) -> LLMatcher:
        with self._lock:
            found = self._compiled.get(grammar)
            if found is not None and found is not spent:
                self._compiled.move_to_end(grammar)
                return found
        # Others may ask for what is compiled meanwhile.
        try:
            compiled = call_deep(partial(self._compile, grammar))
        except Exception:
            raise
        except BaseException as error:  # a panic of the library is no Exception
            raise InvalidRequestError(f"can't be used: llguidance fails on it ({error})", param="structured_outputs") from None
        with self._lock:
            self._compiled[grammar] = compiled
            if len(self._compiled) > self._max_compiled:
                self._compiled.popitem(last=False)
        return compiled

    def _compile(self, grammar: str) -> LLMatcher:
        from llguidance import LLMatcher

        with self._making_tables:
            tokenizer, limits = self._tables()
        matcher = LLMatcher(tokenizer, grammar + _NO_FORCING, log_level=0, limits=limits)
        if not matcher.is_error():
            # A grammar without any text is found out by the first mask only.
            first = matcher.deep_copy()
            first.compute_bitmask()
            if not first.is_error():
                return matcher
            matcher = first
        raise InvalidRequestError(f"can't be used: {_reason(matcher.get_error())}", param="structured_outputs")

    def _tables(self) -> tuple[LLTokenizer, LLParserLimits]:
        if self._tokenizer is None or self._limits is None:
            from llguidance import LLParserLimits, LLTokenizer

            self._limits = LLParserLimits(max_lexer_states=MAX_LEXER_STATES, verbose_errors=False)
            self._tokenizer = LLTokenizer(
                _TokenBytes(self._vocabulary, self._vocab_size),  # type: ignore[arg-type]
                n_vocab=self._vocab_size,
                eos_token=self._end_ids,
            )
        return self._tokenizer, self._limits


class _TokenBytes:
    """A vocabulary as LLTokenizer takes it, which looks for these attributes."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary, vocab_size: int) -> None:
        tokens = vocabulary.tokens[:vocab_size]
        self.tokens = tokens + [b""] * (vocab_size - len(tokens))
        self.special_token_ids = [token for token in vocabulary.special_ids if token < vocab_size]
        self.eos_token_id = next(token for token in vocabulary.end_ids if token < vocab_size)
        self._of_bytes = {spelling: token for token, spelling in enumerate(self.tokens) if len(spelling) == 1}

    def __call__(self, text: str) -> list[int]:
        """Some way to spell the text, byte by byte; asked for only by grammars that switch forcing on."""
        return [self._of_bytes[bytes([byte])] for byte in text.encode() if bytes([byte]) in self._of_bytes]


def _reason(error: str) -> str:
    """What llguidance says, without what was added to the grammar, and cut where it quotes too much of it."""
    if "NoExtension" in error:
        return "no text matches it"
    lines = [line for line in error.splitlines() if _NO_FORCING.strip() not in line and NO_DETAILS not in line]
    text = "\n".join(lines).strip()
    return text if len(text) <= LONGEST_REASON else text[:LONGEST_REASON] + " …"
