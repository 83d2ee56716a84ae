"""Fields of /v1/chat/completions and /tokenize that say how a conversation is written out."""

from __future__ import annotations

import threading
from typing import Any

import httpx
import pytest
from chat_stream import USER, ask, ask_both, ask_chunks
from error_shape import check
from fake_llm import FakeLLM
from test_chat_tools import TOOLS

MINE = {"role": "assistant", "content": [{"type": "text", "text": "Once upon "}]}


async def test_the_last_message_is_continued(client: httpx.AsyncClient, llm: FakeLLM) -> None:
    await ask(client, messages=[USER, MINE], continue_final_message=True)
    assert llm.rendered[-1]["continue_final_message"] is True
    assert llm.rendered[-1]["add_generation_prompt"] is False
    await ask(client, messages=[USER, MINE], continue_final_message=False)
    assert "continue_final_message" not in llm.rendered[-1]
    assert llm.rendered[-1]["add_generation_prompt"] is True


async def test_the_continued_message_may_be_repeated(client: httpx.AsyncClient, llm: FakeLLM) -> None:
    fields = {"messages": [USER, MINE], "continue_final_message": True}
    assert (await ask_both(client, echo=True, **fields))["message"]["content"] == "Once upon " + llm.reply
    assert (await ask_both(client, echo=False, **fields))["message"]["content"] == llm.reply
    chunks = await ask_chunks(client, echo=True, **fields)
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": "Once upon "}


async def test_what_is_continued_keeps_its_role(client: httpx.AsyncClient, llm: FakeLLM) -> None:
    message = (await ask_both(client, continue_final_message=True, echo=True))["message"]
    assert (message["role"], message["content"]) == ("user", "Hi" + llm.reply)


async def test_a_trusted_template(connect, llm: FakeLLM) -> None:
    await ask(connect(trust_request_chat_template=True), chat_template="{{ messages }}")
    assert llm.rendered[-1]["chat_template"] == "{{ messages }}"


async def test_a_template_of_a_request_never_runs_on_the_event_loop(connect, llm: FakeLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = []
    render = llm.render_chat

    def noting(*args: Any, **kwargs: Any) -> str:
        threads.append(threading.current_thread())
        return render(*args, **kwargs)

    monkeypatch.setattr(llm, "render_chat", noting)
    client = connect(trust_request_chat_template=True)
    await ask(client)
    await ask(client, chat_template="{{ messages }}")
    assert [thread is threading.main_thread() for thread in threads] == [True, False]


async def test_documents_need_a_template_that_reads_them(connect, llm: FakeLLM) -> None:
    documents = [{"title": "a", "text": "b"}]
    llm.tokenizer.chat_template = "{% for d in documents %}{{ d }}{% endfor %}"
    await ask(connect(), documents=documents)
    assert llm.rendered[-1]["documents"] == documents
    client = connect(trust_request_chat_template=True)
    check(
        await client.post("/v1/chat/completions", json={"messages": [USER], "documents": documents, "chat_template": "x"}), 400, "documents"
    )
    await ask(connect(chat_template="{# x #}"), documents=[])


@pytest.mark.parametrize(
    ("template", "effort", "given"),
    [
        ("{{ reasoning_effort }}", "high", {"reasoning_effort": "high"}),
        ("{{ reasoning_effort }}", "none", {"reasoning_effort": "none"}),
        ("{% if enable_thinking %}{% endif %}", "low", {"enable_thinking": True}),
        ("{% if enable_thinking %}{% endif %}", "none", {"enable_thinking": False}),
        ("{# plain #}", "none", {}),
        ("{{ reasoning_effort }}", None, {}),
    ],
)
async def test_effort_in_the_words_of_the_template(connect, llm: FakeLLM, template: str, effort: str | None, given: dict) -> None:
    await ask(connect(chat_template=template), reasoning_effort=effort)
    rendered = llm.rendered[-1]
    assert {name: rendered[name] for name in ("reasoning_effort", "enable_thinking") if name in rendered} == given


async def test_tokenize_takes_the_same_fields(connect, llm: FakeLLM) -> None:
    llm.tokenizer.chat_template = "{{ documents }}{{ reasoning_effort }}{{ tools }}"
    client = connect(trust_request_chat_template=True)
    fields = {"documents": [{"text": "b"}], "reasoning_effort": "low", "tools": TOOLS, "continue_final_message": True}
    reply = await client.post("/tokenize", json={"messages": [USER, MINE], **fields})
    assert reply.status_code == 200, reply.text
    assert llm.rendered[-1].items() >= {**fields, "add_generation_prompt": False}.items()
    for name, value in fields.items():
        check(await client.post("/tokenize", json={"prompt": "Hi", name: value}), 400, name, "messages")
    await client.post("/tokenize", json={"messages": [USER], "chat_template": "{{ 1 }}"})
    assert llm.rendered[-1]["chat_template"] == "{{ 1 }}"
