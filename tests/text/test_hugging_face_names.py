"""The tokenizer under the names of a Hugging Face one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from octavo.protocol.errors import InvalidRequestError
from octavo.text.tokenizer import Tokenizer

HELLO = [{"role": "user", "content": "Hello"}]
PROMPT = "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
NAMES = ["tiny-llama", "tiny-mistral", "gguf-tiny-qwen2"]


@pytest.fixture(params=NAMES)
def tokenizer(request: pytest.FixtureRequest, tokenizer_of: Callable[[str], Tokenizer]) -> Tokenizer:
    return tokenizer_of(request.param)


@pytest.fixture
def llama(tokenizer_of: Callable[[str], Tokenizer]) -> Tokenizer:
    return tokenizer_of("tiny-llama")


def test_a_conversation_becomes_a_prompt_or_its_ids(llama: Tokenizer) -> None:
    assert llama.apply_chat_template(HELLO, tokenize=False, add_generation_prompt=True) == PROMPT
    ids = llama.apply_chat_template(HELLO, tokenize=True, add_generation_prompt=True)
    assert ids == llama.encode(PROMPT, add_special_tokens=False)
    both = llama.apply_chat_template(HELLO, tokenize=True, return_dict=True, padding=False, return_tensors=None)
    assert both == {"input_ids": ids, "attention_mask": [1] * len(ids)}
    assert llama.apply_chat_template(HELLO, tokenize=False, add_generation_prompt=False) == PROMPT.removesuffix("<|im_start|>assistant\n")


def test_only_the_call_itself_can_ask_for_ids(llama: Tokenizer) -> None:
    with pytest.raises(InvalidRequestError, match=r"chat_template_kwargs\.tokenize: the model's chat template does not read it"):
        llama.render_chat(HELLO, tokenize=True)


def test_called_it_gives_ids_and_a_mask(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("The cat")
    assert tokenizer("The cat") == {"input_ids": ids, "attention_mask": [1] * len(ids)}
    assert tokenizer("The cat").input_ids == ids
    bare = tokenizer.encode("a", add_special_tokens=False)
    several = tokenizer(["a", "The cat"], add_special_tokens=False, truncation=False)
    assert several["input_ids"] == [bare, tokenizer.encode("The cat", add_special_tokens=False)]
    assert [len(mask) for mask in several.attention_mask] == [len(found) for found in several["input_ids"]]


def test_what_would_shape_the_ids_is_refused_by_name(llama: Tokenizer) -> None:
    for name, value in (("padding", True), ("truncation", "longest_first"), ("max_length", 8), ("return_tensors", "pt")):
        for call in (lambda **asked: llama("x", **asked), lambda **asked: llama.apply_chat_template(HELLO, **asked)):
            with pytest.raises(InvalidRequestError, match=f"^{name}: .* is not supported"):
                call(**{name: value})
    with pytest.raises(TypeError, match="no argument 'pading'"):
        llama("x", pading=False)
    with pytest.raises(InvalidRequestError, match=r"^text: must be a string or a list of strings"):
        llama([1, 2])  # type: ignore[list-item]
    with pytest.raises(AttributeError, match="input_ids and attention_mask, not token_type_ids"):
        _ = llama("x").token_type_ids
    assert not hasattr(llama, "save_pretrained")


def test_tokens_and_ids_turn_into_each_other(tokenizer: Tokenizer) -> None:
    vocabulary = tokenizer.get_vocab()
    assert len(tokenizer) == len(vocabulary) == tokenizer.vocab_size
    ids = tokenizer.encode("The cat", add_special_tokens=False)
    tokens = tokenizer.convert_ids_to_tokens(ids)
    assert tokens == tokenizer.tokenize("The cat") == [tokenizer.spelling(each) for each in ids]
    assert tokenizer.convert_tokens_to_ids(tokens) == ids == [vocabulary[token] for token in tokens]
    assert tokenizer.convert_tokens_to_ids(tokens[0]) == ids[0]
    assert tokenizer.convert_ids_to_tokens(ids[0]) == tokens[0]
    assert tokenizer.convert_tokens_to_ids("no such token") == tokenizer.unk_token_id
    assert tokenizer.convert_ids_to_tokens(tokenizer.vocab_size) is None
    end = tokenizer.eos_token_id
    assert tokenizer.convert_ids_to_tokens([end, *ids], skip_special_tokens=True) == tokens
    assert tokenizer.convert_ids_to_tokens([end, *ids])[0] == tokenizer.eos_token


def test_several_are_decoded_as_each_alone(tokenizer: Tokenizer) -> None:
    end = tokenizer.eos_token_id
    rows = [[*tokenizer.encode("The cat"), end], tokenizer.encode("a")]
    assert tokenizer.batch_decode(rows) == ["The cat", "a"]
    assert tokenizer.batch_decode(rows, skip_special_tokens=False) == [tokenizer.decode(row, False) for row in rows]
    assert tokenizer.batch_decode(rows, skip_special_tokens=False)[0].endswith(tokenizer.eos_token or "?")


def test_named_tokens(tokenizer_of: Callable[[str], Tokenizer]) -> None:
    for name in NAMES:
        tokenizer = tokenizer_of(name)
        for token, token_id in ((tokenizer.pad_token, tokenizer.pad_token_id), (tokenizer.unk_token, tokenizer.unk_token_id)):
            assert (token is None) == (token_id is None)
            assert token is None or tokenizer.spelling(token_id) == token
    assert [tokenizer_of(name).pad_token for name in NAMES] == ["<|pad|>", "<pad>", "<|pad|>"]
    assert [tokenizer_of(name).unk_token for name in NAMES] == [None, "<unk>", None]
