"""What only real sockets show: vanishing and slow clients, chunked bodies, connections that outlive an error."""

from __future__ import annotations

import asyncio
import json
import socket
import tracemalloc

import pytest
from fake_llm import FakeLLM
from live_server import LiveServer
from patience import patient

from octavo.config.server import ServerOptions

LONG = 10**9


def post(path: str, body: dict, *extra: str) -> bytes:
    data = json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", "Host: octavo", "Content-Type: application/json", f"Content-Length: {len(data)}", *extra, "", ""]
    return "\r\n".join(lines).encode() + data


@pytest.fixture
async def endless(llm: FakeLLM) -> FakeLLM:
    llm.endless, llm.delay = True, 0.001
    llm.max_model_len = llm.info.max_model_len = LONG
    return llm


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("prompt", ["Hi", ["a", "b", "c"]])
async def test_vanished_client_aborts_its_request(live: LiveServer, endless: FakeLLM, until, stream: bool, prompt: object) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", live.port)
    writer.write(post("/v1/completions", {"prompt": prompt, "max_tokens": 10**6, "stream": stream}))
    count = 1 if isinstance(prompt, str) else len(prompt)
    await until(lambda: len(endless.calls) == count and all(call.tokens > 3 for call in endless.calls))
    assert not any(call.closed for call in endless.calls)
    writer.transport.abort()
    await until(lambda: all(call.closed for call in endless.calls), 1.0)
    assert not any(call.finished for call in endless.calls)


@pytest.mark.parametrize("stream", [True, False])
async def test_client_that_vanishes_before_the_first_token(live: LiveServer, llm: FakeLLM, until, stream: bool) -> None:
    llm.hold.clear()
    _, writer = await asyncio.open_connection("127.0.0.1", live.port)
    writer.write(post("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "stream": stream}))
    await until(lambda: len(llm.calls) == 1)
    writer.close()
    await until(lambda: llm.calls[0].closed, 1.0)
    assert llm.calls[0].tokens == 0


async def test_client_that_vanishes_in_mid_body_is_forgotten_quietly(live: LiveServer, llm: FakeLLM, caplog) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", live.port)
    writer.write(post("/v1/completions", {"prompt": "Hi"})[:-5])
    await writer.drain()
    await asyncio.sleep(0.05)
    writer.close()
    await asyncio.sleep(0.05)
    assert not llm.calls
    assert not caplog.records


async def test_slow_reader_is_not_run_ahead_of_and_holds_up_nobody(live: LiveServer, endless: FakeLLM, until) -> None:
    endless.delay = 0
    endless.reply = "x" * 1000
    slow = socket.create_connection(("127.0.0.1", live.port))
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    slow.sendall(post("/v1/completions", {"prompt": "Hi", "max_tokens": 10**8, "stream": True}))
    await until(lambda: bool(endless.calls) and endless.calls[0].tokens > 100)
    call = endless.calls[0]

    async def settle() -> None:
        seen = -1
        while seen != call.tokens:
            seen = call.tokens
            await asyncio.sleep(0.2)

    # With the socket's buffers full, nothing more is pulled from the model.
    await asyncio.wait_for(settle(), patient(20))
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    tokens = call.tokens
    reader, writer = await asyncio.open_connection("127.0.0.1", live.port)
    writer.write(post("/v1/completions", {"prompt": "Hi", "max_tokens": 50}, "Connection: close"))
    reply = await asyncio.wait_for(reader.read(), patient(5))
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert b"200 OK" in reply
    assert call.tokens == tokens
    assert grown < 2_000_000
    assert not call.closed
    slow.close()
    await until(lambda: call.closed)
    writer.close()


async def test_chunked_body(live: LiveServer) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", live.port)
    lines = [
        "POST /v1/completions HTTP/1.1",
        "Host: o",
        "Content-Type: application/json",
        "Transfer-Encoding: chunked",
        "Connection: close",
    ]
    writer.write("\r\n".join([*lines, "", ""]).encode())
    for piece in (b'{"prompt": ', b'"Hi", "max_tokens"', b": 3}"):
        writer.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
        await writer.drain()
        await asyncio.sleep(0.01)
    writer.write(b"0\r\n\r\n")
    reply = await asyncio.wait_for(reader.read(), patient(5))
    assert b"200 OK" in reply
    assert json.loads(reply.partition(b"\r\n\r\n")[2])["choices"][0]["text"] == "Hel"
    writer.close()


@pytest.mark.parametrize("chunked", [True, False])
async def test_client_that_still_sends_a_too_large_body_gets_to_read_the_413(llm: FakeLLM, chunked: bool) -> None:
    async with LiveServer(llm, ServerOptions(max_body_bytes=10_000)) as live:
        reader, writer = await asyncio.open_connection("127.0.0.1", live.port)
        size = 20_000_000
        framing = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {size}"
        writer.write(f"POST /v1/completions HTTP/1.1\r\nHost: o\r\nContent-Type: application/json\r\n{framing}\r\n\r\n".encode())
        piece = b"x" * 100_000
        for _ in range(size // len(piece)):
            writer.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n" if chunked else piece)
            await writer.drain()
        writer.write(b"0\r\n\r\n" if chunked else b"")
        reply = await asyncio.wait_for(reader.read(), patient(5))
        assert b"413" in reply.split(b"\r\n")[0]
        assert b"connection: close" in reply.lower()
        assert json.loads(reply.partition(b"\r\n\r\n")[2])["error"]["message"] == "The body is over this server's limit of 10000 bytes."
        writer.close()


async def test_connection_stays_usable_after_an_error(live: LiveServer) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", live.port)
    for body, status in (({"prompt": ""}, b"400"), ({"prompt": "Hi", "max_tokens": 1}, b"200")):
        writer.write(post("/v1/completions", body))
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), patient(5))
        assert status in head.split(b"\r\n")[0]
        length = next(int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
        await reader.readexactly(length)
    writer.close()


async def test_engine_death_reaches_every_stream_at_once(live: LiveServer, endless: FakeLLM, until) -> None:
    connections = [await asyncio.open_connection("127.0.0.1", live.port) for _ in range(8)]
    for index, (_, writer) in enumerate(connections):
        body = {"prompt": "Hi", "max_tokens": 10**6, "stream": index % 2 == 0}
        writer.write(post("/v1/completions", body, "Connection: close"))
    await until(lambda: len(endless.calls) == 8 and all(call.tokens > 3 for call in endless.calls))
    endless.die()
    async with asyncio.timeout(2):
        for index, (reader, writer) in enumerate(connections):
            reply = await reader.read()
            assert b'"type":"service_unavailable"' in reply
            if index % 2 == 0:
                assert b"data: [DONE]\n\n" in reply
            else:
                assert b"503" in reply.split(b"\r\n")[0]
            writer.close()
