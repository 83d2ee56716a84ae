"""Requests whose time is over, those that find the queue full, and those that come when the server stops."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import httpx
import pytest
from fake_llm import FakeLLM
from live_server import LiveServer
from patience import patient

from octavo.api.metrics import Metrics
from octavo.config.server import ServerOptions
from octavo.protocol.errors import OverloadedError
from octavo.server.admission import Admission

USER = {"role": "user", "content": "hi"}
ROUTES = [("/v1/completions", {"prompt": "a"}), ("/v1/chat/completions", {"messages": [USER]}), ("/generate", {"prompt": "a"})]
# So long that a request is under way by then on a busy machine, too.
SHORT = 0.5


def counted(metrics: Metrics, name: str) -> float:
    (value,) = re.findall(rf"^{re.escape(name)} (\S+)$", metrics.render()[0].decode(), re.MULTILINE)
    return float(value)


@pytest.mark.parametrize(("path", "body"), ROUTES)
@pytest.mark.parametrize("of_server", [False, True])
async def test_a_request_whose_time_is_over(connect: Any, llm: FakeLLM, path: str, body: dict[str, Any], of_server: bool) -> None:
    llm.hold.clear()
    metrics = Metrics()
    client = connect(metrics, **({"request_timeout": SHORT} if of_server else {"request_timeout": 1000}))
    reply = await client.post(path, json={**body, "timeout": 1000 if of_server else SHORT})
    assert reply.status_code == 408
    error = reply.json()["error"]
    assert (error["type"], error["code"]) == ("timeout_error", "timeout")
    assert llm.calls[0].closed
    assert counted(metrics, 'octavo:request_timeouts_total{engine="0",model_name="fake-model"}') == 1


@pytest.mark.parametrize(("path", "body"), ROUTES)
async def test_a_stream_whose_time_is_over_ends_with_an_error(connect: Any, llm: FakeLLM, path: str, body: dict[str, Any]) -> None:
    llm.endless, llm.max_model_len, llm.delay = True, 10**9, 0.001
    llm.__post_init__()
    reply = await connect().post(path, json={**body, "timeout": 1.0, "stream": True, "max_tokens": 10**8})
    lines = [line for line in reply.text.splitlines() if line]
    assert reply.status_code == 200
    assert '"code":"timeout"' in lines[-1 if path == "/generate" else -2]
    assert len(lines) > 3
    assert llm.calls[0].closed


async def test_a_client_that_reads_nothing_holds_no_blocks_beyond_its_time(llm: FakeLLM, until: Any) -> None:
    llm.endless, llm.max_model_len = True, 10**9
    llm.__post_init__()
    async with LiveServer(llm, ServerOptions()) as live:
        reader, writer = await asyncio.open_connection("127.0.0.1", live.port, limit=1024)
        body = b'{"prompt": "a", "stream": true, "max_tokens": 100000000, "timeout": 0.5}'
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        await reader.read(1)
        await until(lambda: llm.calls[0].closed, 10)
        writer.transport.abort()


HEAD = "POST {} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n"


@pytest.mark.parametrize("path", ["/v1/completions", "/tokenize", "/v1/messages"])
async def test_a_body_that_does_not_come_costs_its_sender_the_request(llm: FakeLLM, path: str) -> None:
    async with LiveServer(llm, ServerOptions(request_timeout=0.2)) as live:
        reader, writer = await asyncio.open_connection("127.0.0.1", live.port)
        writer.write(HEAD.format(path).encode() + b'{"prompt": "a"')
        reply = await asyncio.wait_for(reader.read(), patient(10))
        assert reply.startswith(b"HTTP/1.1 408 ")
        assert b"connection: close" in reply.lower()
        assert b"The time of this request was over before its body had come." in reply
        writer.close()


async def test_a_server_that_stops_waits_for_no_body(llm: FakeLLM, until: Any) -> None:
    async with LiveServer(llm, ServerOptions()) as live:
        reader, writer = await asyncio.open_connection("127.0.0.1", live.port)
        writer.write(HEAD.format("/v1/completions").encode() + b'{"prompt": "a"')
        admission = live.app.state.context.admission
        await until(lambda: admission.busy)
        admission.close()
        reply = await asyncio.wait_for(reader.read(), patient(10))
        assert reply.startswith(b"HTTP/1.1 503 ")
        assert b"connection: close" in reply.lower()
        assert b'"code":"shutting_down"' in reply
        await asyncio.wait_for(admission.wait_empty(), patient(10))
        writer.close()


@pytest.mark.parametrize("value", [0, -1, 8 * 24 * 3600, "soon", True])
async def test_a_time_that_cannot_be(client: httpx.AsyncClient, value: object) -> None:
    reply = await client.post("/v1/completions", json={"prompt": "a", "timeout": value})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "timeout")


async def test_a_full_queue_refuses(connect: Any, llm: FakeLLM, until: Any) -> None:
    llm.info.max_num_seqs = 2
    llm.hold.clear()
    metrics = Metrics()
    client = connect(metrics, max_queued_requests=1)
    running = [asyncio.create_task(client.post("/v1/completions", json={"prompt": "a", "n": n})) for n in (1, 2)]
    await until(lambda: len(llm.calls) == 2)
    asked = [(path, {**body, "stream": stream}) for path, body in ROUTES for stream in (False, True)]
    for path, body in [*asked, ("/v1/embeddings", {"input": "a"})]:
        reply = await client.post(path, json=body)
        assert (reply.status_code, reply.headers["retry-after"]) == (503, "1")
        assert (reply.json()["error"]["code"], reply.json()["error"]["type"]) == ("queue_full", "service_unavailable")
    assert (await client.get("/health")).status_code == 200
    name = 'vllm:admission_rejections_total{engine="0",model_name="fake-model",reason="queue_full"}'
    assert counted(metrics, name) == len(asked) + 1
    llm.hold.set()
    assert [reply.status_code for reply in await asyncio.gather(*running)] == [200, 200]
    # Nothing is left of them.
    assert (await client.post("/v1/completions", json={"prompt": ["a", "b", "c"]})).status_code == 200


async def test_a_request_wider_than_all_room_is_served_alone(connect: Any, llm: FakeLLM) -> None:
    llm.info.max_num_seqs = 2
    assert (await connect(max_queued_requests=0).post("/v1/completions", json={"prompt": "a", "n": 8})).status_code == 200


async def test_a_failed_request_leaves_its_place(connect: Any, llm: FakeLLM) -> None:
    llm.info.max_num_seqs, llm.fail_after = 1, 1
    client = connect(max_queued_requests=0)
    for stream in (False, True, False):
        assert (await client.post("/v1/completions", json={"prompt": "a", "stream": stream})).status_code != 503


async def test_a_server_that_stops_lets_nobody_in(connect: Any, llm: FakeLLM, until: Any) -> None:
    llm.hold.clear()
    metrics = Metrics()
    client = connect(metrics)
    running = asyncio.create_task(client.post("/v1/completions", json={"prompt": "a"}))
    await until(lambda: len(llm.calls) == 1)
    client.context.admission.close()
    empty = asyncio.create_task(client.context.admission.wait_empty())
    for request in (client.post("/v1/completions", json={"prompt": "a"}), client.get("/health"), client.get("/v1/models")):
        reply = await request
        assert (reply.status_code, reply.json()["error"]["code"], reply.headers["retry-after"]) == (503, "shutting_down", "1")
    assert (await client.get("/metrics")).status_code == 200
    assert counted(metrics, 'vllm:admission_rejections_total{engine="0",model_name="fake-model",reason="shutting_down"}') == 3
    assert not empty.done()
    llm.hold.set()
    assert (await running).status_code == 200
    await asyncio.wait_for(empty, 5)


def test_room_is_counted_in_sequences() -> None:
    refused: list[str] = []
    admission = Admission(3, refused.append)
    full = pytest.raises(OverloadedError, match="3 sequences run and wait here, of at most 3")
    with admission.sequences(1), admission.sequences(2), full, admission.sequences(1):
        raise AssertionError
    with admission.sequences(3):
        pass
    assert refused == ["queue_full"]
