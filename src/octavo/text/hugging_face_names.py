"""What programs call a Hugging Face tokenizer by, and where the values differ from transformers'."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from octavo.protocol.errors import InvalidRequestError
from octavo.text.parts import TokenizerParts

# Arguments of transformers' that shape arrays, with the values under which lists of ids stay as they are.
_SHAPING: dict[str, tuple[Any, ...]] = {
    "padding": (None, False, "do_not_pad"),
    "truncation": (None, False, "do_not_truncate"),
    "max_length": (None,),
    "return_tensors": (None,),
}


class Encoding(dict[str, Any]):
    """`input_ids` and `attention_mask`, as keys and as attributes."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"an Encoding has {' and '.join(self)}, not {name}") from None


class HuggingFaceNames(ABC):
    """The names of transformers' tokenizers that Octavo's has besides its own; every other is an AttributeError.

    `len(tokenizer)` is how many tokens there are, added ones too. `tokenizer(text)`, or of a list of texts, has `input_ids` and
    `attention_mask`, as keys and as attributes, in lists of Python's only, and no `token_type_ids`.
    """

    _parts: TokenizerParts
    special_ids: frozenset[int]

    @abstractmethod
    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text."""

    @abstractmethod
    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True, *, whole: bool = True) -> str:
        """The text of token ids."""

    @abstractmethod
    def spelling(self, token_id: int) -> str | None:
        """The token as the vocabulary spells it."""

    @abstractmethod
    def render_chat(self, messages: Sequence[Mapping[str, Any]], **kwargs: Any) -> str:
        """The prompt for a conversation."""

    def apply_chat_template(
        self,
        conversation: Sequence[Mapping[str, Any]],
        *,
        tokenize: bool = False,
        return_dict: bool = False,
        add_generation_prompt: bool = True,
        **kwargs: Any,
    ) -> str | list[int] | Encoding:
        """The prompt for one conversation, or with `tokenize` its token ids, which `return_dict` makes an Encoding of. `kwargs` are as for
        `render_chat`.

        In transformers `tokenize` is True by default, `add_generation_prompt` False and `return_dict` True, a list of conversations is
        taken, and a variable that the template does not read is passed over. `padding`, `truncation`, `max_length` and `return_tensors`
        are taken at the values that ask for nothing. Raises InvalidRequestError.
        """
        variables = _without_shaping(kwargs)
        text = self.render_chat(conversation, add_generation_prompt=add_generation_prompt, **variables)
        if not tokenize:
            return text
        # The template writes the special tokens itself.
        ids = self.encode(text, add_special_tokens=False)
        return _encoding(ids) if return_dict else ids

    def __call__(self, text: str | Sequence[str], *, add_special_tokens: bool = True, **kwargs: Any) -> Encoding:
        """The Encoding of a text, or of several, each a list. Lists of Python's only, and no `token_type_ids`; further arguments are
        `padding`, `truncation`, `max_length` and `return_tensors`, at the values that ask for nothing. Raises InvalidRequestError, and
        TypeError for an argument that is none of these."""
        if unknown := _without_shaping(kwargs):
            raise TypeError(f"a tokenizer takes no argument {next(iter(unknown))!r}")
        if isinstance(text, str):
            return _encoding(self.encode(text, add_special_tokens))
        if not isinstance(text, Sequence) or not all(isinstance(each, str) for each in text):
            raise InvalidRequestError("text: must be a string or a list of strings.", param="text")
        each = [_encoding(self.encode(one, add_special_tokens)) for one in text]
        return Encoding({name: [one[name] for one in each] for name in ("input_ids", "attention_mask")})

    def __len__(self) -> int:
        """How many tokens there are, added ones too."""
        return int(self._parts.backend.get_vocab_size(with_added_tokens=True))

    def get_vocab(self) -> dict[str, int]:
        """The ids of all tokens by their spellings, a new dictionary each time."""
        vocabulary: dict[str, int] = self._parts.backend.get_vocab(with_added_tokens=True)
        return vocabulary

    def tokenize(self, text: str, add_special_tokens: bool = False) -> list[str | None]:
        """The tokens of a text as the vocabulary spells them."""
        return [self.spelling(token_id) for token_id in self.encode(text, add_special_tokens)]

    def batch_decode(self, sequences: Iterable[Iterable[int]], skip_special_tokens: bool = True) -> list[str]:
        """The text of each, as `decode` has it; in transformers `skip_special_tokens` is False by default, here and there."""
        return [self.decode(ids, skip_special_tokens) for ids in sequences]

    def convert_tokens_to_ids(self, tokens: str | Iterable[str]) -> Any:
        """The id of a token as the vocabulary spells it, or the ids of several; of one that there is not, `unk_token_id`."""
        if not isinstance(tokens, str):
            return [self.convert_tokens_to_ids(token) for token in tokens]
        found = self._parts.backend.token_to_id(tokens)
        return self.unk_token_id if found is None else found

    def convert_ids_to_tokens(self, ids: int | Iterable[int], skip_special_tokens: bool = False) -> Any:
        """The token of an id as the vocabulary spells it, or the tokens of several; of an id that is no token, None. Of several,
        `skip_special_tokens` leaves out those that the vocabulary marks as special; transformers goes by the named ones."""
        if isinstance(ids, Iterable):
            return [self.spelling(int(each)) for each in ids if not (skip_special_tokens and int(each) in self.special_ids)]
        return self.spelling(int(ids))

    @property
    def pad_token(self) -> str | None:
        """The padding token as it is written, or None; it can't be set."""
        return self._parts.template_variables.get("pad_token")

    @property
    def pad_token_id(self) -> int | None:
        """The padding token's id, or None."""
        return self._id_of(self.pad_token)

    @property
    def unk_token(self) -> str | None:
        """The token for what the vocabulary can't spell, or None."""
        return self._parts.template_variables.get("unk_token")

    @property
    def unk_token_id(self) -> int | None:
        """The id of `unk_token`, or None."""
        return self._id_of(self.unk_token)

    def _id_of(self, spelling: str | None) -> int | None:
        found: int | None = None if spelling is None else self._parts.backend.token_to_id(spelling)
        return found


def _encoding(ids: list[int]) -> Encoding:
    return Encoding(input_ids=ids, attention_mask=[1] * len(ids))


def _without_shaping(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The rest of the arguments. Raises InvalidRequestError for one that would shape the ids."""
    for name, harmless in _SHAPING.items():
        if not any(arguments.get(name) is each or arguments.get(name) == each for each in harmless):
            raise InvalidRequestError(f"{name}: {arguments[name]!r} is not supported: token ids come as plain lists, whole.", param=name)
    return {name: value for name, value in arguments.items() if name not in _SHAPING}
