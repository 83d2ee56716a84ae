"""The tokenizer: text to token ids and back, and the chat template that came with it."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from octavo.loading.checkpoint import Checkpoint
from octavo.protocol.errors import InvalidRequestError, UnsupportedModelError
from octavo.protocol.vocabulary import Vocabulary
from octavo.text.chat_template import RESERVED, choose_template, render_chat, variables_of
from octavo.text.failures import TokenizersError, library_failures
from octavo.text.folder import parts_from_folder
from octavo.text.gguf_vocabulary import parts_from_gguf
from octavo.text.hugging_face_names import HuggingFaceNames
from octavo.text.longest_token import longest_token
from octavo.text.parts import TokenizerParts
from octavo.text.pieces import piece_decoder
from octavo.text.template_reads import check_variables

# Characters that take milliseconds at most.
SHORT_TEXT = 16 * 1024


class Tokenizer(HuggingFaceNames):
    """A model's tokenizer on Hugging Face's `tokenizers`, whatever format it came in. Safe to share between threads.

    `vocab_size` is one more than the highest id (transformers leaves added tokens out); a model's embedding may have more rows.
    `eos_token_ids` holds every token that ends an answer as the tokenizer has it; a generation_config may add more. `special_ids` are the
    tokens that `skip_special_tokens` leaves out.
    """

    def __init__(self, parts: TokenizerParts, source: Path) -> None:
        """Raises UnsupportedModelError, naming `source`, for a decoder whose effect on a token depends on its neighbours, and for a
        tokenizer that no text gets through."""
        self._backend = parts.backend
        self._parts = parts
        self.pieces = piece_decoder(_decoder_of(parts), source)
        self.vocab_size = parts.vocab_size
        self.bos_token_id = parts.bos_token_id
        self.eos_token_id = parts.eos_token_id
        self.eos_token_ids = parts.eos_token_ids
        self.chat_template = parts.chat_template
        self.named_templates: Mapping[str, str] = parts.named_templates
        added = parts.backend.get_added_tokens_decoder()
        self.added_ids = frozenset(added)
        self.special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        self._bytes: dict[int, bytes] = {}
        try:
            self.encode("")
        except InvalidRequestError as error:
            raise UnsupportedModelError(f"{source}: {error.message}") from error

    @property
    def bos_token(self) -> str | None:
        """The BOS token as it is written, or None."""
        return None if self.bos_token_id is None else self.spelling(self.bos_token_id)

    @property
    def eos_token(self) -> str | None:
        """The EOS token as it is written, or None."""
        return None if self.eos_token_id is None else self.spelling(self.eos_token_id)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`. Text that spells a special token becomes that token, wherever it stands.

        With `add_special_tokens` the model's BOS, EOS and the like are added as its tokenizer says. Raises InvalidRequestError for text
        that is not valid Unicode (a lone surrogate), or that the model's own tokenizer breaks on. Other threads run during a long text.
        """
        try:
            with library_failures():
                ids = self._ids(text, add_special_tokens)
        except TypeError as error:
            raise InvalidRequestError("the text holds a lone surrogate, which is not valid Unicode", param="prompt") from error
        except TokenizersError as error:
            raise InvalidRequestError(f"the model's tokenizer fails on this text: {error}", param="prompt") from error
        return [*self._parts.prefix_ids, *ids, *self._parts.suffix_ids] if add_special_tokens else ids

    def _ids(self, text: str, add_special_tokens: bool) -> list[int]:
        if len(text) <= SHORT_TEXT:
            ids: list[int] = self._backend.encode(text, add_special_tokens=add_special_tokens).ids
        else:
            # Of the library's functions only those for batches let go of the interpreter's lock.
            ids = self._backend.encode_batch([text], add_special_tokens=add_special_tokens)[0].ids
        return ids

    def least_tokens(self, text: str) -> int:
        """No more than the number of tokens that `text` has, without tokenizing it; 0 where nothing is known of it."""
        longest = self._longest
        return 0 if longest is None else -(-len(text.encode("utf-8", "surrogatepass")) // longest)

    @cached_property
    def _longest(self) -> int | None:
        return longest_token(self._backend)

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True, *, whole: bool = True) -> str:
        """The text of `ids`. Bytes that are not UTF-8 become U+FFFD; ids that are no token give nothing. Unless this is the `whole` text,
        half a character at its end is left out: what follows may bring the rest."""
        decoder = TextAssembler(self, skip_special_tokens)
        text = decoder.feed(ids)
        return text + decoder.finish() if whole else text

    def token_text(self, token_id: int) -> str:
        """One token on its own, as a logprob entry shows it: its leading space is kept, and what is no whole character is written in
        OpenAI's form, `bytes:\\xe2\\x80`."""
        data = self.token_bytes(token_id)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)

    def token_bytes(self, token_id: int) -> bytes:
        """The exact bytes that the token adds to a text; none for an id that is no token."""
        known = self._bytes.get(token_id)
        if known is None:
            spelling = self.spelling(token_id)
            known = b"" if spelling is None else self.pieces.to_bytes(spelling, added=token_id in self.added_ids)
            self._bytes[token_id] = known
        return known

    @property
    def special_tokens(self) -> dict[str, int]:
        """The ids of special tokens by their spellings."""
        return {spelling: token for token in sorted(self.special_ids) if (spelling := self.spelling(token)) is not None}

    def vocabulary(self, end_ids: Sequence[int]) -> Vocabulary:
        """Every token as bytes; `end_ids` are the model's end tokens."""
        return Vocabulary([self.token_bytes(token) for token in range(self.vocab_size)], sorted(self.special_ids), list(end_ids))

    def spelling(self, token_id: int) -> str | None:
        """The token as the vocabulary spells it (`Ġthe`, `▁the`, `<0x0A>`), or None for an id that is no token."""
        return self._backend.id_to_token(token_id) if self.is_valid_id(token_id) else None

    def is_valid_id(self, token_id: int) -> bool:
        """Whether the id lies within the tokenizer's vocabulary."""
        return 0 <= token_id < self.vocab_size

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **kwargs: Any,
    ) -> str:
        """The prompt for a conversation, by the model's chat template or the one given. Encode it with `add_special_tokens=False`.
        With `continue_final_message` it ends with the last message's text, for the model to go on.

        `kwargs` are further variables for the template. Raises InvalidRequestError for messages that can't be rendered, with the
        template's own words where it has any, for a variable that it does not read, and for a model without a template.
        """
        template = chat_template or choose_template(self.chat_template, self.named_templates, kwargs)
        check_variables({name: value for name, value in kwargs.items() if name not in RESERVED}, variables_of(template))
        variables = {**self._parts.template_variables, **kwargs}
        return render_chat(
            template,
            messages,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            variables=variables,
        )


class TextAssembler:
    """Joins the bytes of tokens into text, token by token; the one definition of what a sequence of ids reads as.

    Text comes out as soon as it is final: half a character waits for its rest. Takes constant time a token.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._skipped = tokenizer.special_ids if skip_special_tokens else frozenset()
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._first = tokenizer.pieces.drop_first_metaspace
        self._strip = tokenizer.pieces.leading_strip

    def feed(self, ids: Iterable[int]) -> str:
        """The text that `ids` complete."""
        return self._plain(b"".join(map(self._bytes_of, ids)))

    def feed_raw(self, text: str) -> str:
        """Takes a token as it is written, untouched by the decoder."""
        self._first = False
        return self._plain(text.encode("utf-8", "replace"))

    def finish(self) -> str:
        """U+FFFD for bytes that no character was made of, if there are any."""
        return self._utf8.decode(b"", True)

    def _bytes_of(self, token_id: int) -> bytes:
        if token_id in self._skipped:
            return b""
        if not self._first:
            return self._tokenizer.token_bytes(token_id)
        spelling = self._tokenizer.spelling(token_id)
        if spelling is None:
            return b""
        self._first = False
        return self._tokenizer.pieces.first_bytes(spelling, added=token_id in self._tokenizer.added_ids)

    def _plain(self, data: bytes) -> str:
        text = self._utf8.decode(data)
        while self._strip and text:
            if text[0] != " ":
                self._strip = 0
                break
            text = text[1:]
            self._strip -= 1
        return text


def load_tokenizer(checkpoint: Checkpoint) -> Tokenizer:
    """The tokenizer that a checkpoint brings. Errors are those of `tokenizer_from_gguf` and `tokenizer_from_folder`."""
    if checkpoint.format == "gguf":
        return tokenizer_from_gguf(checkpoint.metadata, checkpoint.path)
    return tokenizer_from_folder(checkpoint.path)


def tokenizer_from_gguf(metadata: Mapping[str, Any], source: Path) -> Tokenizer:
    """The tokenizer in a GGUF's `tokenizer.ggml.*` keys, as plain Python values (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md).

    Raises ModelLoadError naming `source` and the key for missing or garbled metadata, and UnsupportedModelError for a tokenizer model
    or pre-tokenizer that there is no code for.
    """
    return Tokenizer(parts_from_gguf(metadata, source), source)


def tokenizer_from_folder(folder: Path) -> Tokenizer:
    """The tokenizer in a folder's tokenizer.json, with what tokenizer_config.json and its companions add (Hugging Face's layout).

    Raises ModelLoadError naming the file for one that is missing or garbled, and UnsupportedModelError for a folder that has only a
    SentencePiece file or slow-tokenizer files.
    """
    return Tokenizer(parts_from_folder(folder), folder / "tokenizer.json")


def _decoder_of(parts: TokenizerParts) -> dict[str, Any] | None:
    decoder = parts.backend.decoder
    if decoder is None:
        return None
    state: dict[str, Any] = json.loads(decoder.__getstate__())
    return state
