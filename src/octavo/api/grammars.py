"""Structured outputs before the engine: each becomes a grammar, and one that can't be used is refused."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property

from octavo.config.engine import StructuredOutputsConfig
from octavo.protocol.errors import InvalidRequestError
from octavo.protocol.structured_outputs import StructuredOutputsParams
from octavo.protocol.vocabulary import Vocabulary
from octavo.structured_output.compiler import GrammarCompiler
from octavo.structured_output.grammar import grammar_of
from octavo.text.tokenizer import Tokenizer

# Where in the grammar that was made of a schema or an expression the fault is, which its author has never seen.
_WRAPPING = re.compile(r"at \d+\(\d+\): (failed to compile JSON schema: )?|\n +\d+ \| .*", re.DOTALL)


class Grammars:
    """The grammars that requests bring, for a model with logits for `vocab_size` tokens. Threads may share it."""

    def __init__(self, tokenizer: Tokenizer, end_ids: Sequence[int], vocab_size: int, config: StructuredOutputsConfig) -> None:
        self._tokenizer = tokenizer
        self._end_ids = list(end_ids)
        self._vocab_size = vocab_size
        self._config = config

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """What the engine has to know before it gets a grammar."""
        return self._tokenizer.vocabulary(self._end_ids)

    @cached_property
    def _compiler(self) -> GrammarCompiler:
        return GrammarCompiler(self.vocabulary, self._vocab_size, self._config.max_compiled_grammars)

    def grammar(self, params: StructuredOutputsParams) -> str:
        """The grammar of the texts that `params` allow, which the engine will be able to follow. Takes a second at the first call, and as
        long as a new grammar takes to compile at others.

        Raises InvalidRequestError with the reason for a schema, expression or grammar that is wrong, over the limit of size, or uses what
        there is no code for.
        """
        if not any(token < self._vocab_size for token in self._end_ids):
            raise InvalidRequestError(
                "structured_outputs: this model has no end token that could end the text.", param="structured_outputs"
            )
        field = f"structured_outputs.{params.kind}"
        grammar = grammar_of(params)
        size, limit = len(grammar.encode()), self._config.max_grammar_size
        if size > limit:
            raise InvalidRequestError(
                f"{field} makes a grammar of {size} bytes, which is over the limit of {limit} (--max-grammar-size).", param=field
            )
        try:
            self._compiler.check(grammar)
        except InvalidRequestError as error:
            message = error.message if params.grammar is not None else without_grammar(error.message)
            raise InvalidRequestError(f"{field} {message}", param=field) from None
        return grammar


def without_grammar(message: str) -> str:
    """`message`, of a fault in a grammar that was made of something else, without where in the grammar it is."""
    return _WRAPPING.sub("", message)
