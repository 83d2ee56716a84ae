"""The vocabulary in a GGUF file's metadata, made into a tokenizer.

Keys: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Two models are read: `gpt2` (byte-level BPE with merges) and `llama`
(SentencePiece BPE, where the pair whose piece scores highest merges first).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers

from octavo.loading.wording import one_line
from octavo.protocol.errors import ModelLoadError, UnsupportedModelError
from octavo.text.parts import TokenizerParts
from octavo.text.pieces import METASPACE
from octavo.text.pretokenizers import PRE_TYPES

logger = logging.getLogger(__name__)

_PREFIX = "tokenizer.ggml."
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 1, 2, 3, 4, 6
# Files often state one end token only; these spell the others that chat models end a turn with.
_END_SPELLINGS = (
    "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<|endoftext|>", "<|end_of_text|>", "<|return|>", "<|call|>", "<end_of_turn>",
    "<end_of_utterance>", "<EOT>", "<｜end▁of▁sentence｜>",
)  # fmt: skip


def parts_from_gguf(metadata: Mapping[str, Any], source: Path) -> TokenizerParts:
    """See `octavo.text.tokenizer.tokenizer_from_gguf`."""
    vocabulary = _read_vocabulary(metadata, source)
    model = metadata.get(_PREFIX + "model")
    if model == "gpt2":
        backend, adds_bos = _byte_level_bpe(vocabulary)
        default_ids: dict[str, int | None] = {}
    elif model == "llama":
        backend, adds_bos = _sentencepiece_bpe(vocabulary), True
        default_ids = {"bos": 1, "eos": 2, "unknown": 0}
    elif model is None:
        raise vocabulary.fault("model", "is missing")
    else:
        raise UnsupportedModelError(f"{source} has a tokenizer of model {model!r}; Octavo reads gpt2 (byte-level BPE) and llama")
    bos = vocabulary.special_id("bos", default_ids.get("bos"))
    eos = vocabulary.special_id("eos", default_ids.get("eos"))
    ends = _end_ids(vocabulary, eos)
    backend.add_special_tokens([_added(vocabulary.tokens[i], True) for i in vocabulary.special_ids(ends)])
    backend.add_tokens([_added(token, False) for token in vocabulary.of_kind(_USER_DEFINED) if vocabulary.ids[token] not in ends])
    named = {"bos_token": bos, "eos_token": eos, "unk_token": vocabulary.special_id("unknown", default_ids.get("unknown"))}
    named["pad_token"] = vocabulary.special_id("padding", None)
    template, templates = _chat_templates(metadata, vocabulary)
    return TokenizerParts(
        backend=backend,
        vocab_size=len(vocabulary.tokens),
        bos_token_id=bos,
        eos_token_id=eos,
        eos_token_ids=ends,
        prefix_ids=vocabulary.added_id("bos", bos, adds_bos),
        suffix_ids=vocabulary.added_id("eos", eos, False),
        chat_template=template,
        named_templates=templates,
        template_variables={name: vocabulary.tokens[i] for name, i in named.items() if i is not None},
    )


@dataclass(frozen=True, slots=True)
class _Vocabulary:
    """The tokens by id, their kinds (GGUF's token_type), and the id of each spelling. An empty spelling has no id: nothing produces it."""

    metadata: Mapping[str, Any]
    source: Path
    tokens: list[str]
    kinds: list[int]
    ids: dict[str, int]

    def fault(self, key: str, what: str) -> ModelLoadError:
        return _fault(self.source, key, what)

    def special_id(self, name: str, default: int | None) -> int | None:
        value = self.metadata.get(f"{_PREFIX}{name}_token_id")
        if value is None:
            return default if default is not None and default < len(self.tokens) else None
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < len(self.tokens):
            raise self.fault(f"{name}_token_id", f"is {value!r}, which is no id of a vocabulary of {len(self.tokens)} tokens")
        return value

    def added_id(self, name: str, token_id: int | None, default: bool) -> tuple[int, ...]:
        """The tokens that `add_bos_token` or `add_eos_token` puts around a text."""
        wanted = self.metadata.get(f"{_PREFIX}add_{name}_token")
        if wanted is not None and not isinstance(wanted, bool):
            raise self.fault(f"add_{name}_token", f"is {one_line(repr(wanted))}, not true or false")
        if wanted and token_id is None:
            raise self.fault(f"add_{name}_token", f"is set but {_PREFIX}{name}_token_id is missing")
        chosen = default if wanted is None else wanted
        return (token_id,) if chosen and token_id is not None else ()

    def of_kind(self, *kinds: int) -> list[str]:
        return [token for token, kind in zip(self.tokens, self.kinds, strict=True) if kind in kinds and token]

    def special_ids(self, ends: tuple[int, ...]) -> list[int]:
        marked = {i for i, kind in enumerate(self.kinds) if kind in (_CONTROL, _UNKNOWN)} | set(ends)
        return sorted(i for i in marked if self.tokens[i])


def _fault(source: Path, key: str, what: str) -> ModelLoadError:
    return ModelLoadError(f"{source}: {_PREFIX}{key} {what}")


def _read_vocabulary(metadata: Mapping[str, Any], source: Path) -> _Vocabulary:
    tokens = _strings(metadata, "tokens", source)
    ids = {token: i for i, token in enumerate(tokens) if token}
    if len(ids) != sum(map(bool, tokens)):
        twice = next(token for i, token in enumerate(tokens) if token and ids[token] != i)
        raise _fault(source, "tokens", f"holds {twice!r} twice")
    kinds = metadata.get(_PREFIX + "token_type")
    kinds = [_NORMAL] * len(tokens) if kinds is None else _numbers(kinds, "token_type", len(tokens), source)
    return _Vocabulary(metadata, source, tokens, [int(kind) for kind in kinds], ids)


def _strings(metadata: Mapping[str, Any], key: str, source: Path) -> list[str]:
    values = metadata.get(_PREFIX + key)
    if values is None:
        raise _fault(source, key, "is missing")
    if not isinstance(values, list) or not values or not all(isinstance(value, str) for value in values):
        raise _fault(source, key, "is not a list of strings")
    return values


def _numbers(values: Any, key: str, count: int, source: Path) -> list[float]:
    """`values` (a list or an array) as numbers, one for each of `count` tokens."""
    values = values.tolist() if hasattr(values, "tolist") else values
    if not isinstance(values, list) or not all(isinstance(value, (int, float)) and math.isfinite(value) for value in values):
        raise _fault(source, key, "is not a list of numbers")
    if len(values) != count:
        raise _fault(source, key, f"has {len(values)} entries for {count} tokens")
    return values


def _added(token: str, special: bool) -> AddedToken:
    return AddedToken(token, special=special, normalized=False)


def _byte_level_bpe(vocabulary: _Vocabulary) -> tuple[tokenizers.Tokenizer, bool]:
    """The backend, and whether its pre-tokenizer's models add a BOS by default."""
    name = vocabulary.metadata.get(_PREFIX + "pre")
    if name is None:
        logger.warning("%s has no %spre; text is cut as llama.cpp's default does, which may not be how the model was trained",
                       vocabulary.source, _PREFIX)  # fmt: skip
        name = "default"
    pre_type = PRE_TYPES.get(name) if isinstance(name, str) else None
    if pre_type is None:
        raise UnsupportedModelError(
            f"{vocabulary.source} has {_PREFIX}pre {one_line(repr(name))}, a pre-tokenizer that Octavo has no code for"
        )
    merges = []
    for rank, merge in enumerate(_strings(vocabulary.metadata, "merges", vocabulary.source)):
        left, _, right = merge.partition(" ")
        if not left or not right or " " in right:
            raise vocabulary.fault("merges", f"has {merge!r} at {rank}, which is not two tokens with a space between")
        merges.append((left, right))
    try:
        model = models.BPE(vocab=vocabulary.ids, merges=merges, ignore_merges=pre_type.whole_words)
    except Exception as error:  # the library raises plain Exception
        raise vocabulary.fault("merges", f"does not fit the vocabulary: {error}") from error
    backend = tokenizers.Tokenizer(model)
    backend.pre_tokenizer = pre_type.pre_tokenizer()
    backend.decoder = decoders.ByteLevel()
    return backend, pre_type.adds_bos


def _sentencepiece_bpe(vocabulary: _Vocabulary) -> tokenizers.Tokenizer:
    missing = [f"<0x{byte:02X}>" for byte in range(256) if f"<0x{byte:02X}>" not in vocabulary.ids]
    if missing:
        raise UnsupportedModelError(f"{vocabulary.source} has a llama vocabulary without the byte token {missing[0]}")
    model = models.BPE(vocab=vocabulary.ids, merges=_score_merges(vocabulary), byte_fallback=True, fuse_unk=True)
    backend = tokenizers.Tokenizer(model)
    prefixed = vocabulary.metadata.get(_PREFIX + "add_space_prefix", True)
    escape = normalizers.Replace(" ", METASPACE)
    backend.normalizer = normalizers.Sequence([normalizers.Prepend(METASPACE), escape]) if prefixed else escape
    strip = [decoders.Strip(" ", 1, 0)] if prefixed else []
    backend.decoder = decoders.Sequence([decoders.Replace(METASPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip])
    return backend


def _score_merges(vocabulary: _Vocabulary) -> list[tuple[str, str]]:
    """The merges that give what SentencePiece gives: every way to make a piece of two others, the best-scoring piece first.

    SentencePiece breaks a tie between two pieces by position, which a list of merges can't say, so equal scores are refused. Between
    two ways to make one piece that overlap in the text (which takes a run of repeats) the shorter left part wins here, as in Hugging
    Face's converted tokenizers.
    """
    scores = vocabulary.metadata.get(_PREFIX + "scores")
    if scores is None:
        raise vocabulary.fault("scores", "is missing")
    scores = _numbers(scores, "scores", len(vocabulary.tokens), vocabulary.source)
    ways: list[tuple[float, int, str, str]] = []
    owner: dict[float, str] = {}
    for token, kind, score in zip(vocabulary.tokens, vocabulary.kinds, scores, strict=True):
        # The other kinds are cut out of the text before any merge.
        if kind in (_UNKNOWN, _CONTROL, _BYTE) or (kind == _USER_DEFINED and METASPACE not in token):
            continue
        if kind == _NORMAL and (strange := [char for char in token if char not in vocabulary.ids]):
            raise UnsupportedModelError(
                f"{vocabulary.source}: {_PREFIX}tokens has {token!r} but no token for {strange[0]!r}, so merges can't spell it"
            )
        cuts = [cut for cut in range(1, len(token)) if token[:cut] in vocabulary.ids and token[cut:] in vocabulary.ids]
        if cuts and owner.setdefault(score, token) != token:
            raise UnsupportedModelError(
                f"{vocabulary.source}: {_PREFIX}scores gives {owner[score]!r} and {token!r} the same score, so the order of merges is lost"
            )
        ways.extend((-score, cut, token[:cut], token[cut:]) for cut in cuts)
    ways.sort(key=lambda way: way[:2])
    return [(left, right) for _, _, left, right in ways]


def _end_ids(vocabulary: _Vocabulary, eos: int | None) -> tuple[int, ...]:
    """Every token that ends an answer: the stated ones first, then those known by their spelling."""
    stated = [eos, vocabulary.special_id("eot", None), vocabulary.special_id("eom", None)]
    spelled = [vocabulary.ids.get(spelling) for spelling in _END_SPELLINGS]
    if "<|return|>" in vocabulary.ids and "<|call|>" in vocabulary.ids:
        # gpt-oss: <|end|> closes a message, after which the answer may go on.
        spelled = [i for i in spelled if i != vocabulary.ids.get("<|end|>")]
    return tuple(dict.fromkeys(i for i in [*stated, *spelled] if i is not None))


def _chat_templates(metadata: Mapping[str, Any], vocabulary: _Vocabulary) -> tuple[str | None, dict[str, str]]:
    key = "tokenizer.chat_template"
    template = metadata.get(key)
    named = {name.removeprefix(key + "."): text for name, text in metadata.items() if name.startswith(key + ".")}
    for text in [template, *named.values()]:
        if text is not None and not isinstance(text, str):
            raise ModelLoadError(f"{vocabulary.source}: {key} is not a string")
    return template or None, named
