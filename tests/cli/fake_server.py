"""A small HTTP server that speaks just enough of the OpenAI API, badly where a test wants it to."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FakeServer

    def do_GET(self) -> None:
        self._note(None)
        self._json(200, {"object": "list", "data": [{"id": "fake-model"}]} if self.path == "/v1/models" else {})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self._note(body)
        chat = self.path.endswith("/chat/completions")
        words = (body["messages"][-1]["content"] if chat else body["prompt"]).split()
        if words == ["refuse"]:
            return self._json(400, {"error": {"message": "that is refused", "type": "invalid_request_error", "param": None, "code": 400}})
        if words == ["lock"]:
            return self._json(401, {"error": {"message": "a key is missing.", "type": "authentication_error", "param": None, "code": 401}})
        if words == ["odd"]:
            return self._json(502, "not an error body")
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        if chat:
            self._event({"choices": [{"delta": {"role": "assistant", "content": ""}, "finish_reason": None}]})
        for word in words:
            self._event(self._choice(chat, word + " ", None))
        try:
            while words == ["slow"]:
                self._event(self._choice(chat, "z", None))
                time.sleep(0.01)
        except OSError:
            self.server.gone.set()
            return None
        if words == ["break"]:
            self._event({"error": {"message": "the engine died", "code": 503}})
        elif words == ["hang", "up"]:
            self.close_connection = True
            return None
        else:
            self._event(self._choice(chat, "", "length" if words == ["cut"] else "stop"))
            self._event({"choices": [], "usage": {"total_tokens": 3}})
        self._chunk(b"data: [DONE]\n\n")
        self._chunk(b"")
        return None

    def _choice(self, chat: bool, text: str, reason: str | None) -> dict[str, Any]:
        said = {"delta": {"content": text}} if chat else {"text": text}
        return {"choices": [{"index": 0, **said, "finish_reason": reason}]}

    def _note(self, body: Any) -> None:
        self.server.requests.append((self.path, self.headers.get("Authorization"), body))

    def _event(self, value: Any) -> None:
        self._chunk(b"data: " + json.dumps(value).encode() + b"\n\n")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def _json(self, status: int, value: Any) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        pass


class FakeServer(ThreadingHTTPServer):
    """`requests` are (path, Authorization, body) in order; `gone` is set when a client left in the middle of an answer."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests: list[tuple[str, str | None, Any]] = []
        self.gone = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


@contextmanager
def fake_server() -> Iterator[FakeServer]:
    with FakeServer() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
