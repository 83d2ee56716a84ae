"""Server-sent events and requests as bytes, for clients that misbehave."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterable, Iterator
from typing import Any

from serve_process import LiveServer


def post_bytes(path: str, body: Any) -> bytes:
    """An HTTP/1.1 request that asks for its connection to be closed."""
    data = json.dumps(body).encode()
    head = [f"POST {path} HTTP/1.1", "Host: octavo", "Content-Type: application/json", f"Content-Length: {len(data)}", "Connection: close"]
    return "\r\n".join([*head, "", ""]).encode() + data


def connect(server: LiveServer, *, receive_buffer: int | None = None) -> socket.socket:
    """A plain connection; with a small `receive_buffer` the server soon can't send more than was read."""
    connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    if receive_buffer is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    connection.settimeout(30)
    connection.connect(("127.0.0.1", server.port))
    return connection


def reset_on_close(connection: socket.socket) -> None:
    """Makes `close` a reset instead of an orderly end."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def read_all(connection: socket.socket) -> bytes:
    """Everything until the server closes."""
    data = bytearray()
    while piece := connection.recv(1 << 16):
        data += piece
    return bytes(data)


def unchunk(reply: bytes) -> bytes:
    """The body of a reply with chunked transfer coding, which must be whole."""
    head, _, rest = reply.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    assert b"transfer-encoding: chunked" in head.lower()
    body = bytearray()
    while True:
        size, _, rest = rest.partition(b"\r\n")
        length = int(size, 16)
        if length == 0:
            assert rest == b"\r\n"
            return bytes(body)
        body += rest[:length]
        rest = rest[length + 2 :]


def events(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """The JSON of each event; fails unless the last one is [DONE]."""
    done = False
    for line in lines:
        if not line:
            continue
        assert line.startswith("data: "), line
        assert not done, "an event after [DONE]"
        done = line == "data: [DONE]"
        if not done:
            yield json.loads(line.removeprefix("data: "))
    assert done, "no [DONE]"
