"""A server of completions on a loopback port that behaves as each test wants; raw sockets, so that it can break off anywhere."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Answer = Callable[["FakeOpenAI", Any, socket.socket], None]


def event(value: Any) -> bytes:
    return b"data: " + (value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n\n"


def choice(text: str, reason: str | None = None) -> bytes:
    return event({"id": "x", "choices": [{"index": 0, "text": text, "finish_reason": reason}]})


def usage(prompt: int, output: int) -> bytes:
    return event({"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}})


DONE = event(b"[DONE]")


def stream_head(chunked: bool = True) -> bytes:
    encoding = b"Transfer-Encoding: chunked\r\n" if chunked else b""
    return b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n" + encoding + b"\r\n"


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def plain(status: int, value: Any) -> bytes:
    data = json.dumps(value).encode()
    return f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data


def good(server: FakeOpenAI, body: Any, client: socket.socket) -> None:
    """As many tokens as are asked for, then the count if it is wanted."""
    client.sendall(stream_head())
    for index in range(body["max_tokens"]):
        client.sendall(chunk(choice(f"t{index} ", "length" if index == body["max_tokens"] - 1 else None)))
        time.sleep(server.pause)
    if (body.get("stream_options") or {}).get("include_usage"):
        client.sendall(chunk(usage(len(body["prompt"]), body["max_tokens"])))
    # Whoever gets the end may ask again before this thread runs on.
    server.leaves(client)
    client.sendall(chunk(DONE) + chunk(b""))


class FakeOpenAI:
    """`requests` are the bodies in order of arrival; `most_at_once` the most that were under way together."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.requests: list[Any] = []
        self.keys: list[str | None] = []
        self.most_at_once = 0
        self.pause = 0.0
        self._under_way: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._threads: list[threading.Thread] = []
        self.released = threading.Event()

    def run(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(client,), daemon=True)
            thread.start()
            self._threads.append(thread)

    def close(self) -> None:
        self.released.set()
        # A listener that another thread accepts from does not wake it when closed.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(5)

    def leaves(self, client: socket.socket) -> None:
        """The request on this connection is no longer under way."""
        with self._lock:
            self._under_way.discard(client)

    def _serve(self, client: socket.socket) -> None:
        with client:
            client.settimeout(10)
            try:
                head, _, data = self._read_head(client)
                fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head.split("\r\n")[1:])}
                while len(data) < int(fields.get("content-length", "0")):
                    data += client.recv(65536)
                self.keys.append(fields.get("authorization"))
                if head.startswith("GET /v1/models"):
                    client.sendall(plain(200, {"data": [{"id": "fake"}]}))
                    return
                body = json.loads(data)
                with self._lock:
                    self.requests.append(body)
                    self._under_way.add(client)
                    self.most_at_once = max(self.most_at_once, len(self._under_way))
                try:
                    self.answer(self, body, client)
                finally:
                    self.leaves(client)
            except OSError:
                return

    @staticmethod
    def _read_head(client: socket.socket) -> tuple[str, str, bytes]:
        data = b""
        while b"\r\n\r\n" not in data:
            data += client.recv(65536)
        head, _, rest = data.partition(b"\r\n\r\n")
        return head.decode(), "", rest


@contextmanager
def fake_openai(answer: Answer = good) -> Iterator[FakeOpenAI]:
    server = FakeOpenAI(answer)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield server
    finally:
        server.close()
        thread.join(5)
