"""Replies in every shape that HTTP allows, and some that it does not."""

import asyncio

import pytest
from fake_openai import DONE, choice, chunk, fake_openai, plain, stream_head

from octavo.bench.http_stream import Address, Reply, ReplyError, send
from octavo.protocol.errors import ConfigError

EVENTS = [b'{"a": 1}', '{"b": "äöü 🦙"}'.encode(), b"{}"]
STREAM = b"".join(b"data: " + data + b"\n\n" for data in EVENTS)


def reply_to(*pieces: bytes) -> Reply:
    """The reply of a server that sends `pieces` one after another, then closes."""

    def answer(server, body, client):
        for piece in pieces:
            client.sendall(piece)

    async def ask(url: str) -> Reply:
        return await asyncio.wait_for(send(Address.of(url), "POST", "/v1/completions", b"{}"), 10)

    with fake_openai(answer) as server:
        return asyncio.run(ask(server.url))


def data_of(reply: Reply) -> list[bytes]:
    return [data for _, data in reply.events]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_a_chunked_stream_cut_anywhere(size):
    whole = stream_head() + chunk(STREAM[:20]) + chunk(STREAM[20:]) + chunk(DONE) + chunk(b"")
    reply = reply_to(*(whole[at : at + size] for at in range(0, len(whole), size)))
    assert data_of(reply) == EVENTS
    assert reply.done
    times = [at for at, _ in reply.events]
    assert times == sorted(times)


def test_a_stream_that_ends_with_its_connection():
    assert data_of(reply_to(stream_head(chunked=False), STREAM)) == EVENTS


def test_comments_other_fields_and_carriage_returns_are_no_events():
    text = b": ping\r\nevent: x\r\ndata: 1\r\n\r\nid: 7\r\n\r\ndata:2\n\n"
    assert data_of(reply_to(stream_head(chunked=False), text)) == [b"1", b"2"]


def test_chunks_may_carry_extensions_and_an_interim_reply_may_come_first():
    whole = b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + stream_head() + b"9;x=y\r\ndata: 1\n\n\r\n" + chunk(b"")
    assert data_of(reply_to(whole)) == [b"1"]


def test_a_reply_that_is_no_stream():
    reply = reply_to(plain(404, {"error": "gone"}))
    assert (reply.status, reply.body, reply.events) == (404, b'{"error": "gone"}', [])


def test_an_empty_reply_of_length_zero():
    assert reply_to(b"HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n").status == 204


@pytest.mark.parametrize(
    ("pieces", "kind"),
    [
        ([], "connection closed early"),
        ([b"HTTP/1.1 200 O"], "connection closed early"),
        ([stream_head(), chunk(choice("a"))], "connection closed early"),
        ([stream_head(), b"40\r\ndata: "], "connection closed early"),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc"], "connection closed early"),
        ([b"SSH-2.0-OpenSSH\r\n\r\n"], "not HTTP"),
        ([stream_head(), b"zz\r\nx\r\n"], "not HTTP"),
        ([b"x" * 70_000], "not HTTP"),
    ],
)
def test_replies_that_are_not_whole(pieces, kind):
    with pytest.raises(ReplyError) as found:
        reply_to(*pieces)
    assert found.value.kind == kind


def test_a_server_that_is_not_there():
    with fake_openai() as server:
        url = server.url
    with pytest.raises(ReplyError) as found:
        asyncio.run(send(Address.of(url), "GET", "/v1/models"))
    assert found.value.kind == "no connection"


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://localhost:8000", Address("localhost", 8000, False, "")),
        ("http://localhost:8000/v1/", Address("localhost", 8000, False, "")),
        ("https://api.example.com/openai/v1", Address("api.example.com", 443, True, "/openai")),
        ("http://[::1]:9", Address("::1", 9, False, "")),
    ],
)
def test_addresses(url, expected):
    assert Address.of(url) == expected


def test_the_head_of_a_request():
    head = Address.of("http://[::1]:9/x", "secret").head("POST", "/v1/completions", 5).decode()
    assert head.startswith("POST /x/v1/completions HTTP/1.1\r\nHost: [::1]:9\r\n")
    assert "\r\nAuthorization: Bearer secret\r\n" in head
    assert "\r\nContent-Length: 5\r\n" in head
    assert head.endswith("\r\n\r\n")


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://x", "http://", "http://x:port"])
def test_addresses_that_are_none(url):
    with pytest.raises(ConfigError, match="url"):
        Address.of(url)
