from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from octavo.protocol.errors import InvalidRequestError, ModelLoadError, UnsupportedModelError
from octavo.text.tokenizer import Tokenizer, load_tokenizer, tokenizer_from_folder

FOLDERS = ["tiny-llama", "tiny-llama3-rope", "tiny-mistral", "tiny-qwen2"]
ALL = [*FOLDERS, "gguf-tiny-llama", "gguf-tiny-qwen2"]
TokenizerOf = Callable[[str], Tokenizer]


@pytest.mark.parametrize("name", ALL)
def test_prompts_become_the_expected_ids_and_back(name: str, tokenizer_of: TokenizerOf, expected_of: Callable[[str], Any]) -> None:
    tokenizer = tokenizer_of(name)
    prompts = expected_of(name)["prompts"]
    assert len(prompts) == 4
    for prompt in prompts:
        chat = prompt["name"].startswith("chat")
        ids = tokenizer.encode(prompt["text"], add_special_tokens=not chat)
        assert ids == prompt["input_ids"], prompt["name"]
        if not chat:
            assert tokenizer.decode(ids) == prompt["text"]


@pytest.mark.model
def test_the_default_model_reads_as_llama_cpp_does(smollm2: Tokenizer, expected_of: Callable[[str], Any]) -> None:
    expected = expected_of("smollm2")
    assert len(expected["prompts"]) == 12
    for prompt in expected["prompts"]:
        assert smollm2.encode(prompt["text"]) == prompt["input_ids"], prompt["name"]
        assert smollm2.decode(prompt["input_ids"], skip_special_tokens=False) == prompt["text"]
        if "messages" in prompt:
            assert smollm2.apply_chat_template(prompt["messages"]) == prompt["text"]
    perplexity = expected["perplexity"]
    assert smollm2.encode(perplexity["text"]) == perplexity["token_ids"]
    assert smollm2.decode(perplexity["token_ids"]) == perplexity["text"]


@pytest.mark.model
def test_the_default_model_knows_its_special_tokens(smollm2: Tokenizer) -> None:
    assert (smollm2.bos_token_id, smollm2.eos_token_id) == (1, 2)
    assert (smollm2.bos_token, smollm2.eos_token) == ("<|im_start|>", "<|im_end|>")
    assert smollm2.eos_token_ids == (2, 0)
    assert smollm2.vocab_size == 49152
    assert smollm2.special_ids == frozenset(range(17))


@pytest.mark.parametrize("name", ALL)
def test_text_that_spells_a_special_token_is_that_token(name: str, tokenizer_of: TokenizerOf) -> None:
    tokenizer = tokenizer_of(name)
    ids = tokenizer.encode("a<|im_end|>b", add_special_tokens=False)
    end = tokenizer.encode("<|im_end|>", add_special_tokens=False)
    assert len(end) == 1
    assert end[0] in ids
    assert end[0] in tokenizer.special_ids
    assert "<|im_end|>" in tokenizer.decode(ids, skip_special_tokens=False)
    assert "<|im_end|>" not in tokenizer.decode(ids)


def test_special_tokens_are_added_only_when_asked(tokenizer_of: TokenizerOf) -> None:
    tokenizer = tokenizer_of("tiny-mistral")
    plain = tokenizer.encode("Hello", add_special_tokens=False)
    assert tokenizer.encode("Hello") == [tokenizer.bos_token_id, *plain]
    assert tokenizer.encode("") == [tokenizer.bos_token_id]


def test_tokens_show_their_exact_bytes(tokenizer_of: TokenizerOf) -> None:
    byte_level, metaspace = tokenizer_of("tiny-llama"), tokenizer_of("tiny-mistral")
    for tokenizer in (byte_level, metaspace):
        ids = tokenizer.encode("안 x", add_special_tokens=False)
        assert b"".join(map(tokenizer.token_bytes, ids)).lstrip() == "안 x".encode()
    first = byte_level.encode("안", add_special_tokens=False)[0]
    assert byte_level.token_bytes(first) == b"\xec"
    assert byte_level.token_text(first) == r"bytes:\xec"
    the = metaspace.encode("the", add_special_tokens=False)[0]
    assert (metaspace.spelling(the), metaspace.token_text(the)) == ("▁the", " the")
    byte = metaspace.encode("\x01", add_special_tokens=False)[-1]
    assert (metaspace.spelling(byte), metaspace.token_bytes(byte)) == ("<0x01>", b"\x01")


@pytest.mark.parametrize("name", ALL)
def test_ids_beyond_the_vocabulary_give_nothing(name: str, tokenizer_of: TokenizerOf) -> None:
    tokenizer = tokenizer_of(name)
    for token_id in (-1, tokenizer.vocab_size, 2**40):
        assert not tokenizer.is_valid_id(token_id)
        assert tokenizer.token_bytes(token_id) == b""
        assert tokenizer.decode([token_id]) == ""
    assert tokenizer.is_valid_id(0)
    assert tokenizer.is_valid_id(tokenizer.vocab_size - 1)


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-mistral"])
def test_a_lone_surrogate_is_refused(name: str, tokenizer_of: TokenizerOf) -> None:
    with pytest.raises(InvalidRequestError, match="surrogate"):
        tokenizer_of(name).encode("a\ud800b")


def test_a_checkpoint_folder_is_read_by_its_format(fixtures_dir: Path) -> None:
    checkpoint = SimpleNamespace(format="safetensors", path=fixtures_dir / "tiny-qwen2", metadata={})
    assert load_tokenizer(cast(Any, checkpoint)).vocab_size == 512


def _copy(source: Path, target: Path, *, tokenizer: dict[str, Any] | None = None, config: dict[str, Any] | None = None) -> Path:
    """A folder with the source's tokenizer, whose two files are changed by the given keys."""
    for name, change in (("tokenizer.json", tokenizer), ("tokenizer_config.json", config)):
        content = json.loads((source / name).read_text("utf-8")) | (change or {})
        (target / name).write_text(json.dumps(content), "utf-8")
    return target


def test_saved_truncation_and_padding_never_apply(fixtures_dir: Path, tmp_path: Path) -> None:
    saved = {
        "truncation": {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0},
        "padding": {
            "strategy": {"Fixed": 64},
            "direction": "Right",
            "pad_to_multiple_of": None,
            "pad_id": 3,
            "pad_type_id": 0,
            "pad_token": "<|pad|>",
        },
    }
    tokenizer = tokenizer_from_folder(_copy(fixtures_dir / "tiny-llama", tmp_path, tokenizer=saved))
    assert tokenizer.decode(tokenizer.encode("a longer text than four tokens")) == "a longer text than four tokens"


def test_add_bos_token_counts_where_there_is_no_post_processor(fixtures_dir: Path, tmp_path: Path) -> None:
    flags = {"add_bos_token": True, "add_eos_token": True}
    source = fixtures_dir / "tiny-llama"
    assert tokenizer_from_folder(_copy(source, tmp_path, config=flags)).encode("a")[0] != 0
    bare = tokenizer_from_folder(_copy(source, tmp_path, tokenizer={"post_processor": None}, config=flags))
    assert bare.encode("a") == [0, *bare.encode("a", add_special_tokens=False), 2]


def test_special_tokens_come_as_text_or_objects_from_either_file(fixtures_dir: Path, tmp_path: Path) -> None:
    folder = _copy(fixtures_dir / "tiny-llama", tmp_path, config={"bos_token": None, "eos_token": {"content": "<|im_end|>"}})
    (folder / "special_tokens_map.json").write_text('{"bos_token": {"content": "<|im_start|>"}, "eos_token": "<|pad|>"}')
    tokenizer = tokenizer_from_folder(folder)
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.eos_token_ids) == ("<|im_start|>", "<|im_end|>", (2,))


def test_template_files_win_over_the_configuration(fixtures_dir: Path, tmp_path: Path) -> None:
    templates = [{"name": "default", "template": "one"}, {"name": "tool_use", "template": "two"}]
    folder = _copy(fixtures_dir / "tiny-llama", tmp_path, config={"chat_template": templates})
    tokenizer = tokenizer_from_folder(folder)
    assert (tokenizer.chat_template, tokenizer.named_templates) == ("one", {"tool_use": "two"})
    (folder / "chat_template.json").write_text('{"chat_template": "three"}')
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "rag.jinja").write_text("four")
    (folder / "chat_template.jinja").write_text("five")
    tokenizer = tokenizer_from_folder(folder)
    assert (tokenizer.chat_template, tokenizer.named_templates) == ("five", {"tool_use": "two", "rag": "four"})


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("tokenizer.json", "{", "tokenizer.json can't be read as a tokenizer"),
        ("tokenizer_config.json", "[]", "tokenizer_config.json does not hold a JSON object"),
        ("tokenizer_config.json", "{", "tokenizer_config.json is not readable JSON"),
        ("tokenizer_config.json", '{"eos_token": 7}', "eos_token is neither a string nor an object"),
        ("tokenizer_config.json", '{"eos_token": "<gone>"}', "eos_token '<gone>' is not in the vocabulary"),
        ("tokenizer_config.json", '{"chat_template": [1]}', "chat_template is neither a string nor a list"),
    ],
)
def test_broken_files_are_named(fixtures_dir: Path, tmp_path: Path, file: str, content: str, message: str) -> None:
    folder = _copy(fixtures_dir / "tiny-llama", tmp_path)
    (folder / file).write_text(content)
    with pytest.raises(ModelLoadError, match=message) as caught:
        tokenizer_from_folder(folder)
    assert str(folder) in caught.value.message


def test_other_tokenizer_files_alone_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"has no tokenizer\.json"):
        tokenizer_from_folder(tmp_path)
    (tmp_path / "tokenizer.model").write_bytes(b"\n")
    with pytest.raises(UnsupportedModelError, match=r"tokenizer\.model only"):
        tokenizer_from_folder(tmp_path)


@pytest.mark.parametrize(
    "decoder", [None, {"type": "WordPiece", "prefix": "##", "cleanup": True}, {"type": "BPEDecoder", "suffix": "</w>"}]
)
def test_decoders_that_look_at_neighbours_are_refused_by_name(fixtures_dir: Path, tmp_path: Path, decoder: dict[str, Any] | None) -> None:
    folder = _copy(fixtures_dir / "tiny-llama", tmp_path, tokenizer={"decoder": decoder})
    with pytest.raises(UnsupportedModelError, match="decoder" if decoder is None else decoder["type"]):
        tokenizer_from_folder(folder)


def test_a_metaspace_decoder_drops_the_first_space_only(fixtures_dir: Path, tmp_path: Path) -> None:
    decoder = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    tokenizer = tokenizer_from_folder(_copy(fixtures_dir / "tiny-mistral", tmp_path, tokenizer={"decoder": decoder}))
    ids = tokenizer.encode("the key is the name", add_special_tokens=False)
    assert tokenizer.decode(ids) == "the key is the name"
