"""What a checkpoint says of its tokenizer, in one shape for every format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import tokenizers


@dataclass(frozen=True, slots=True)
class TokenizerParts:
    """The pieces that a `Tokenizer` is made of.

    `backend` splits and merges; its post-processor, if any, adds the special tokens of tokenizer.json. `prefix_ids` and `suffix_ids` are
    added around a text by formats that state them as flags. `eos_token_ids` are all tokens that end an answer. `vocab_size` is one more
    than the highest id. `template_variables` are the names such as `bos_token` that a chat template may use.
    """

    backend: tokenizers.Tokenizer
    vocab_size: int
    bos_token_id: int | None = None
    eos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    prefix_ids: tuple[int, ...] = ()
    suffix_ids: tuple[int, ...] = ()
    chat_template: str | None = None
    named_templates: Mapping[str, str] = field(default_factory=dict)
    template_variables: Mapping[str, str] = field(default_factory=dict)
