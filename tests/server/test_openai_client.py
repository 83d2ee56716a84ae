"""OpenAI's own Python client against a live server over the fake model."""

from __future__ import annotations

import asyncio

import openai
import pytest
from fake_llm import REPLY, FakeLLM
from live_server import LiveServer

from octavo.config.server import ServerOptions

MESSAGES = [{"role": "user", "content": "Hi"}]


@pytest.fixture
async def keyed(llm: FakeLLM):
    async with LiveServer(llm, ServerOptions(api_key=("secret",))) as server:
        yield server


@pytest.fixture
async def remote(keyed: LiveServer):
    async with openai.AsyncOpenAI(base_url=f"{keyed.url}/v1", api_key="secret", max_retries=0, timeout=10) as client:
        yield client


async def test_async_chat(remote: openai.AsyncOpenAI) -> None:
    reply = await remote.chat.completions.create(model="fake-model", messages=MESSAGES, logprobs=True, top_logprobs=2)
    choice = reply.choices[0]
    assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", REPLY, "stop")
    assert choice.logprobs.content[0].top_logprobs[0].token == "!"
    assert reply.usage.prompt_tokens_details.cached_tokens == 1


async def test_async_chat_stream(remote: openai.AsyncOpenAI) -> None:
    stream = await remote.chat.completions.create(
        model="fake-model", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == REPLY
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].usage.completion_tokens == len(REPLY.encode()) + 1


async def test_stream_helper(remote: openai.AsyncOpenAI) -> None:
    async with remote.chat.completions.stream(model="fake-model", messages=MESSAGES) as stream:
        async for _ in stream:
            pass
        assert (await stream.get_final_completion()).choices[0].message.content == REPLY


async def test_answer_can_be_sent_back_as_history(remote: openai.AsyncOpenAI, llm: FakeLLM) -> None:
    reply = await remote.chat.completions.create(model="fake-model", messages=MESSAGES)
    await remote.chat.completions.create(
        model="fake-model", messages=[*MESSAGES, reply.choices[0].message, {"role": "user", "content": "More"}], max_tokens=1
    )
    assert llm.rendered[1]["messages"][1] == {"role": "assistant", "content": REPLY}


async def test_async_completions(remote: openai.AsyncOpenAI) -> None:
    reply = await remote.completions.create(model="fake-model", prompt=["a", "b"], max_tokens=5, logprobs=1, echo=False)
    assert [choice.text for choice in reply.choices] == [REPLY[:5]] * 2
    assert reply.choices[0].logprobs.tokens == list(REPLY[:5])
    stream = await remote.completions.create(model="fake-model", prompt="a", max_tokens=5, stream=True)
    assert "".join([chunk.choices[0].text async for chunk in stream]) == REPLY[:5]


async def test_sync_client(keyed: LiveServer) -> None:
    def work() -> None:
        with openai.OpenAI(base_url=f"{keyed.url}/v1", api_key="secret", max_retries=0, timeout=10) as client:
            assert client.chat.completions.create(model="fake-model", messages=MESSAGES).choices[0].message.content == REPLY
            assert client.completions.create(model="fake-model", prompt=[72], max_tokens=2).choices[0].text == REPLY[:2]
            chat = client.chat.completions.create(model="fake-model", messages=MESSAGES, stream=True)
            assert "".join(chunk.choices[0].delta.content or "" for chunk in chat) == REPLY
            stream = client.completions.create(model="fake-model", prompt="a", max_tokens=3, stream=True)
            assert "".join(chunk.choices[0].text for chunk in stream) == REPLY[:3]
            assert client.models.list().data[0].id == "fake-model"
            assert client.models.retrieve("fake-model").id == "fake-model"

    await asyncio.to_thread(work)


async def test_errors_are_the_clients_own(remote: openai.AsyncOpenAI, keyed: LiveServer, llm: FakeLLM) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        await remote.chat.completions.create(model="fake-model", messages=MESSAGES, temperature=-1)
    assert bad.value.param == "temperature"
    with pytest.raises(openai.NotFoundError) as missing:
        await remote.completions.create(model="gpt-9", prompt="a")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as long:
        await remote.completions.create(model="fake-model", prompt="x" * 500)
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.AuthenticationError):
        await remote.with_options(api_key="wrong").models.list()
    llm.fail_after = 3
    with pytest.raises(openai.APIError, match="not finite"):
        async for _ in await remote.completions.create(model="fake-model", prompt="a", stream=True):
            pass
    llm.fail_after = None
    llm.die()
    with pytest.raises(openai.InternalServerError) as dead:
        await remote.completions.create(model="fake-model", prompt="a")
    assert dead.value.status_code == 503


async def test_many_streams_at_once(remote: openai.AsyncOpenAI, llm: FakeLLM) -> None:
    llm.delay = 0.001

    async def read() -> str:
        stream = await remote.chat.completions.create(model="fake-model", messages=MESSAGES, stream=True)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    assert await asyncio.gather(*(read() for _ in range(32))) == [REPLY] * 32


async def test_closing_a_stream_early_aborts(remote: openai.AsyncOpenAI, llm: FakeLLM, until) -> None:
    llm.endless, llm.delay = True, 0.01
    stream = await remote.chat.completions.create(model="fake-model", messages=MESSAGES, stream=True)
    async for _ in stream:
        break
    await stream.close()
    await until(lambda: llm.calls[0].closed, 1.0)
    assert not llm.calls[0].finished
