"""LLM.chat: conversations through the model's template."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from model_copy import copy_model

from octavo import LLM, SamplingParams
from octavo.protocol.errors import ConfigError, InvalidRequestError

GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
HELLO = [{"role": "user", "content": "Hello"}]
LONGER = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Who are you?"}]
SHOUT = "{% for m in messages %}{{ m['content'] | upper }}{% if loud is defined %}{{ loud }}{% endif %}{% endfor %}"


def test_one_conversation(llm: LLM) -> None:
    (output,) = llm.chat(HELLO, GREEDY, use_tqdm=False)
    assert output.prompt == "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    assert output.prompt_token_ids == llm.get_tokenizer().encode(output.prompt, add_special_tokens=False)
    assert len(output.outputs[0].token_ids) == 8


def test_the_answer_is_that_of_the_rendered_prompt(llm: LLM, fixtures_dir: Path) -> None:
    expected = json.loads((fixtures_dir / "tiny-llama" / "expected.json").read_text())["prompts"][0]
    messages = [{"role": "system", "content": "You are a helpful assistant."}, {"role": "user", "content": "What is 2 + 2?"}]
    (output,) = llm.chat(messages, SamplingParams(temperature=0, max_tokens=32, ignore_eos=True), use_tqdm=False)
    assert output.prompt == expected["text"]
    assert output.prompt_token_ids == expected["input_ids"]
    assert output.outputs[0].token_ids == expected["output_ids"]


def test_the_template_alone_writes_special_tokens(fixtures_dir: Path) -> None:
    with LLM(str(fixtures_dir / "tiny-mistral"), quiet=True) as llm:
        (output,) = llm.chat(HELLO, GREEDY, use_tqdm=False)
        encode, bos = llm.get_tokenizer().encode, llm.get_tokenizer().bos_token_id
    assert output.prompt_token_ids == encode(output.prompt, add_special_tokens=False) != encode(output.prompt)
    assert output.prompt_token_ids.count(bos) == 1


def test_several_conversations(llm: LLM) -> None:
    params = [SamplingParams(temperature=0, max_tokens=count) for count in (2, 5)]
    outputs = llm.chat([HELLO, LONGER], params, use_tqdm=False)
    assert [len(output.outputs[0].token_ids) for output in outputs] == [2, 5]
    assert [output.prompt_token_ids for output in outputs] == [
        llm.chat(conversation, GREEDY, use_tqdm=False)[0].prompt_token_ids for conversation in (HELLO, LONGER)
    ]


def test_without_a_generation_prompt(llm: LLM) -> None:
    (output,) = llm.chat(HELLO, GREEDY, use_tqdm=False, add_generation_prompt=False)
    assert output.prompt == "<|im_start|>user\nHello<|im_end|>\n"


def test_the_last_message_is_continued(llm: LLM) -> None:
    messages = [*HELLO, {"role": "assistant", "content": "Once upon"}]
    (output,) = llm.chat(messages, GREEDY, use_tqdm=False, add_generation_prompt=False, continue_final_message=True)
    assert output.prompt == "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\nOnce upon"
    with pytest.raises(InvalidRequestError, match="continue_final_message"):
        llm.chat(messages, GREEDY, use_tqdm=False, continue_final_message=True)


def test_the_template_is_told_of_tools(llm: LLM) -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    (output,) = llm.chat(HELLO, GREEDY, use_tqdm=False, tools=tools, chat_template="{{ tools | tojson }}")
    assert output.prompt == json.dumps(tools)
    with pytest.raises(InvalidRequestError, match="can't set tools"):
        llm.chat(HELLO, GREEDY, use_tqdm=False, chat_template_kwargs={"tools": tools})


def test_what_the_template_does_not_read_is_refused(llm: LLM) -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    for fields, param in (
        ({"tools": tools}, "tools"),
        ({"chat_template_kwargs": {"documents": [{"text": "a"}]}}, "documents"),
        ({"chat_template_kwargs": {"loud": True}}, "chat_template_kwargs.loud"),
    ):
        with pytest.raises(InvalidRequestError) as caught:
            llm.chat(HELLO, GREEDY, use_tqdm=False, **fields)
        assert caught.value.param == param
    llm.chat(HELLO, GREEDY, use_tqdm=False, tools=[], chat_template_kwargs={"documents": [], "loud": None})


def test_a_template_for_one_call(llm: LLM) -> None:
    (output,) = llm.chat(HELLO, GREEDY, use_tqdm=False, chat_template=SHOUT, chat_template_kwargs={"loud": "!"})
    assert output.prompt == "HELLO!"
    assert llm.chat(HELLO, GREEDY, use_tqdm=False)[0].prompt != "HELLO"


@pytest.mark.parametrize("as_file", [True, False])
def test_a_template_for_every_call(tiny_llama: Path, tmp_path: Path, as_file: bool) -> None:
    (tmp_path / "shout.jinja").write_text(SHOUT)
    with LLM(str(tiny_llama), chat_template=str(tmp_path / "shout.jinja") if as_file else SHOUT, quiet=True) as llm:
        assert llm.chat(HELLO, GREEDY, use_tqdm=False)[0].prompt == "HELLO"
        assert llm.chat(HELLO, GREEDY, use_tqdm=False, chat_template="x")[0].prompt == "x"


def test_a_template_that_does_not_parse(tiny_llama: Path, llm: LLM) -> None:
    with pytest.raises(ConfigError, match="chat_template"):
        LLM(str(tiny_llama), chat_template="{% for", quiet=True)
    with pytest.raises(InvalidRequestError, match="does not parse"):
        llm.chat(HELLO, GREEDY, use_tqdm=False, chat_template="{% for")


def test_a_model_without_a_template(tiny_llama: Path, tmp_path: Path) -> None:
    model = copy_model(tiny_llama, tmp_path / "model", tokenizer_config={"chat_template": None})
    with LLM(str(model), quiet=True) as llm:
        with pytest.raises(InvalidRequestError, match="has no chat template"):
            llm.chat(HELLO, GREEDY, use_tqdm=False)
        assert llm.chat(HELLO, GREEDY, use_tqdm=False, chat_template=SHOUT)[0].prompt == "HELLO"


@pytest.mark.parametrize("name", ["messages", "add_generation_prompt", "chat_template"])
def test_template_variables_that_are_taken(llm: LLM, name: str) -> None:
    with pytest.raises(InvalidRequestError, match=name) as caught:
        llm.chat(HELLO, GREEDY, use_tqdm=False, chat_template_kwargs={name: "x"})
    assert caught.value.param == "chat_template_kwargs"


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([], "messages is empty"),
        ([[]], "messages is empty"),
        ([HELLO, []], "messages is empty"),
        ("Hello", "messages must be a list"),
        ([{"content": "Hello"}], "role: is required"),
        ([{"role": "robot", "content": "Hello"}], r"messages\[0\]\.role: must be one of system, .*, not 'robot'"),
        ([[{"role": "robot", "content": "Hello"}]], r"messages\[0\]\.role: must be one of "),
        ({"role": "user", "content": "Hello"}, "messages must be a list of messages or a list of such lists, not one message"),
        ("Hello", "messages must be a list .*, not str"),
        (5, "messages must be a list .*, not int"),
        ([HELLO, {"role": "user", "content": "x"}], "messages must be a list"),
        ([HELLO, 5], "messages must be a list"),
        ([{"role": "user"}], "content"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}], "image_url"),
        ([{"role": "user", "content": "x " * 600}], "512"),
    ],
)
def test_refused_messages(llm: LLM, messages: Any, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        llm.chat(messages, GREEDY, use_tqdm=False)
    assert llm.chat(HELLO, GREEDY, use_tqdm=False)[0].finished
