"""The tokenizer files of a Hugging Face model folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers

from octavo.protocol.errors import ModelLoadError, UnsupportedModelError
from octavo.text.failures import TokenizersError, library_failures
from octavo.text.parts import TokenizerParts

_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")
# What a tokenizer may be kept in when there is no tokenizer.json.
_OTHER_FORMATS = ("tokenizer.model", "spiece.model", "tekken.json", "tiktoken.model", "vocab.json", "vocab.txt")


def parts_from_folder(folder: Path) -> TokenizerParts:
    """See `octavo.text.tokenizer.tokenizer_from_folder`."""
    backend = _read_backend(folder)
    config_file = folder / "tokenizer_config.json"
    config = _read_json(config_file)
    named = _named_tokens(_read_json(folder / "special_tokens_map.json"), folder / "special_tokens_map.json")
    named |= _named_tokens(config, config_file)
    bos, eos = (_id_of(backend, named.get(name), name, config_file) for name in ("bos_token", "eos_token"))
    template, templates = _chat_templates(folder, config, config_file)
    bare = backend.post_processor is None
    return TokenizerParts(
        backend=backend,
        vocab_size=max(backend.get_vocab(with_added_tokens=True).values()) + 1,
        bos_token_id=bos,
        eos_token_id=eos,
        eos_token_ids=() if eos is None else (eos,),
        prefix_ids=(bos,) if bare and config.get("add_bos_token") and bos is not None else (),
        suffix_ids=(eos,) if bare and config.get("add_eos_token") and eos is not None else (),
        chat_template=template,
        named_templates=templates,
        template_variables=named,
    )


def _read_backend(folder: Path) -> tokenizers.Tokenizer:
    path = folder / "tokenizer.json"
    if not path.is_file():
        for name in _OTHER_FORMATS:
            if (folder / name).is_file():
                raise UnsupportedModelError(f"{folder} has its tokenizer in {name} only; Octavo needs a tokenizer.json")
        raise ModelLoadError(f"{folder} has no tokenizer.json")
    try:
        with library_failures():
            backend = tokenizers.Tokenizer.from_file(str(path))
    except TokenizersError as error:
        raise ModelLoadError(f"{path} can't be read as a tokenizer: {error}") from error
    # A request's text is never cut or padded, whatever the file was saved with.
    backend.no_truncation()
    backend.no_padding()
    if backend.get_vocab_size() == 0:
        raise ModelLoadError(f"{path} has an empty vocabulary")
    return backend


def _read_json(path: Path) -> dict[str, Any]:
    """The object in a file, or nothing where there is no file."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelLoadError(f"{path} is not readable JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelLoadError(f"{path} does not hold a JSON object")
    return value


def _named_tokens(config: Mapping[str, Any], path: Path) -> dict[str, str]:
    """The spellings of bos_token and the like, which a file gives as a string or as an object with `content`."""
    named: dict[str, str] = {}
    for name in _NAMED_TOKENS:
        match config.get(name):
            case None:
                continue
            case str(spelling) | {"content": str(spelling)}:
                named[name] = spelling
            case _:
                raise ModelLoadError(f"{path}: {name} is neither a string nor an object with content")
    return named


def _id_of(backend: tokenizers.Tokenizer, spelling: str | None, name: str, path: Path) -> int | None:
    if spelling is None:
        return None
    token_id: int | None = backend.token_to_id(spelling)
    if token_id is None:
        raise ModelLoadError(f"{path}: {name} {spelling!r} is not in the vocabulary of tokenizer.json")
    return token_id


def _chat_templates(folder: Path, config: Mapping[str, Any], config_file: Path) -> tuple[str | None, dict[str, str]]:
    """The default template and the named ones. A file of its own wins over tokenizer_config.json, as in transformers."""
    named: dict[str, str] = {}
    default: str | None = None
    for path, value in ((config_file, config), (folder / "chat_template.json", _read_json(folder / "chat_template.json"))):
        match value.get("chat_template"):
            case None:
                continue
            case str(text):
                default = text
            case [*entries] if all(_is_named_template(entry) for entry in entries):
                named |= {entry["name"]: entry["template"] for entry in entries}
            case _:
                raise ModelLoadError(f"{path}: chat_template is neither a string nor a list of objects with name and template")
    default = named.pop("default", None) or default
    if (folder / "chat_template.jinja").is_file():
        default = _read_text(folder / "chat_template.jinja")
    for path in sorted(filter(Path.is_file, (folder / "additional_chat_templates").glob("*.jinja"))):
        named[path.stem] = _read_text(path)
    return default or None, named


def _is_named_template(entry: Any) -> bool:
    return isinstance(entry, dict) and isinstance(entry.get("name"), str) and isinstance(entry.get("template"), str)


def _read_text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"{path} can't be read: {error}") from error
