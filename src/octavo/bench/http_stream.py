"""A client for streamed replies that costs next to nothing: 64 streams share two cores with the server that they measure.

HTTP/1.1 (RFC 9112), one connection a request, over asyncio's transports. Server-sent events are cut out and stamped as they come, and
read only after the last of them.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from octavo.protocol.errors import ConfigError

CONNECT_SECONDS = 10.0
DONE = b"[DONE]"
_MOST_HEAD = 1 << 16


class ReplyError(Exception):
    """A reply that did not come, or not whole; `kind` is one of a few."""

    def __init__(self, kind: str, message: str = "") -> None:
        super().__init__(message or kind)
        self.kind = kind


@dataclass(frozen=True, slots=True)
class Address:
    """Where an OpenAI-compatible server is; `base` is the path before /v1."""

    host: str
    port: int
    secure: bool
    base: str
    api_key: str | None = None

    @classmethod
    def of(cls, url: str, api_key: str | None = None) -> Address:
        """From a URL with or without its trailing /v1. Raises ConfigError."""
        try:
            parts = urlsplit(url)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise ValueError
            port = parts.port or (443 if parts.scheme == "https" else 80)
        except ValueError:
            raise ConfigError(f"url: must look like http://localhost:8000, not {url!r}", param="url") from None
        return cls(parts.hostname, port, parts.scheme == "https", parts.path.rstrip("/").removesuffix("/v1"), api_key)

    def head(self, method: str, path: str, length: int) -> bytes:
        """The head of a request."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        lines = [
            f"{method} {self.base}{path} HTTP/1.1",
            f"Host: {host}:{self.port}",
            "Connection: close",
            "Accept: */*",
            "User-Agent: octavo-bench",
        ]
        if length:
            lines += ["Content-Type: application/json", f"Content-Length: {length}"]
        if self.api_key:
            lines.append(f"Authorization: Bearer {self.api_key}")
        return ("\r\n".join(lines) + "\r\n\r\n").encode()


@dataclass(slots=True)
class Reply:
    """`events` are (time.perf_counter(), data) of each server-sent event but [DONE]; `body` is what is no event stream."""

    status: int = 0
    events: list[tuple[float, bytes]] = field(default_factory=list)
    body: bytes = b""
    done: bool = False


class _Connection(asyncio.Protocol):
    """One request and its reply."""

    def __init__(self) -> None:
        self.finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.reply = Reply()
        self._raw = b""
        self._text = b""
        self._in_head = True
        self._chunked = False
        self._stream = False
        self._left: int | None = None  # bytes of the body, or of the chunk, still to come; None: unknown
        self._whole = False

    def data_received(self, data: bytes) -> None:
        if self.finished.done():
            return
        now = time.perf_counter()
        try:
            self._raw += data
            if self._in_head and not self._read_head():
                return
            self._take(self._unchunk() if self._chunked else self._plain(), now)
        except (ValueError, IndexError) as error:
            self._fail(ReplyError("not HTTP", str(error)))
            return
        if self._whole or self.reply.done:
            self._finish()

    def connection_lost(self, error: Exception | None) -> None:
        if error is not None:
            self._fail(ReplyError("connection lost", str(error)))
        elif self._in_head or self._chunked or self._left:
            self._fail(ReplyError("connection closed early"))
        else:
            self._finish()

    def _read_head(self) -> bool:
        end = self._raw.find(b"\r\n\r\n")
        if end < 0:
            if len(self._raw) > _MOST_HEAD:
                raise ValueError("no end of the reply's head")
            return False
        lines = self._raw[:end].decode("latin-1").split("\r\n")
        self._raw = self._raw[end + 4 :]
        version, status = lines[0].split(" ")[:2]
        if not version.startswith("HTTP/"):
            raise ValueError(f"the reply begins with {lines[0][:40]!r}")
        fields = {name.strip().lower(): value.strip().lower() for name, _, value in (line.partition(":") for line in lines[1:])}
        self.reply.status = int(status)
        if self.reply.status < 200:
            return self._read_head()
        self._chunked = "chunked" in fields.get("transfer-encoding", "")
        self._stream = fields.get("content-type", "").startswith("text/event-stream")
        if not self._chunked and "content-length" in fields:
            self._left = int(fields["content-length"])
            self._whole = self._left == 0
        self._in_head = False
        return True

    def _plain(self) -> bytes:
        data, self._raw = self._raw, b""
        if self._left is not None:
            data = data[: self._left]
            self._left -= len(data)
            self._whole = self._left == 0
        return data

    def _unchunk(self) -> bytes:
        raw, at, parts = self._raw, 0, []
        while True:
            line = raw.find(b"\r\n", at)
            if line < 0:
                break
            size = int(raw[at:line].split(b";")[0], 16)
            if size == 0:
                self._whole = True
                break
            begin = line + 2
            if len(raw) < begin + size + 2:
                break
            parts.append(raw[begin : begin + size])
            at = begin + size + 2
        self._raw = raw[at:]
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _take(self, data: bytes, now: float) -> None:
        if not self._stream:
            self.reply.body += data
            return
        *lines, self._text = (self._text + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                event = line[5:].strip()
                if event == DONE:
                    self.reply.done = True
                else:
                    self.reply.events.append((now, event))

    def _finish(self) -> None:
        if not self.finished.done():
            self.finished.set_result(None)

    def _fail(self, error: ReplyError) -> None:
        if not self.finished.done():
            self.finished.set_exception(error)


async def send(address: Address, method: str, path: str, body: bytes = b"", context: ssl.SSLContext | None = None) -> Reply:
    """The whole reply to one request. Raises ReplyError if there is none, or it breaks off; cancelling closes the connection."""
    loop = asyncio.get_running_loop()
    secure = (context or ssl.create_default_context()) if address.secure else None
    try:
        transport, connection = await asyncio.wait_for(
            loop.create_connection(_Connection, address.host, address.port, ssl=secure), CONNECT_SECONDS
        )
    except TimeoutError:
        raise ReplyError("no connection", f"no connection within {CONNECT_SECONDS:g} s") from None
    except OSError as error:
        raise ReplyError("no connection", error.strerror or str(error)) from None
    try:
        transport.write(address.head(method, path, len(body)) + body)
        await connection.finished
        return connection.reply
    finally:
        transport.abort()
        if connection.finished.done() and not connection.finished.cancelled():
            connection.finished.exception()
