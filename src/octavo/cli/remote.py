"""A running server, answering over the OpenAI API. Standard library alone, so that it starts at once."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

from octavo.cli.talk import Message, OnText, Reply
from octavo.config.server import API_KEY_VARIABLE
from octavo.protocol.errors import OctavoError

CONNECT_SECONDS = 10.0
SILENCE_SECONDS = 600.0  # a queued request may wait long for its first token


class RemoteError(OctavoError):
    """The server can't be reached, or its answer can't be used."""


class RemoteTalker:
    """Talks to `url`, with or without its trailing /v1. Without `model` it asks the server for the first that it serves."""

    def __init__(self, url: str, *, model: str | None = None, api_key: str | None = None) -> None:
        """Raises RemoteError for an address that is none, or when the server does not answer."""
        try:
            parts = urlsplit(url)
        except ValueError as error:
            raise RemoteError(f"--url is no address ({error}): {url!r}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise RemoteError(f"--url must look like http://localhost:8000, not {url!r}")
        try:
            self._host, self._port, self._https = parts.hostname, parts.port, parts.scheme == "https"
        except ValueError:
            raise RemoteError(f"--url has no valid port: {url!r}") from None
        self._base = parts.path.rstrip("/").removesuffix("/v1") + "/v1"
        self._url = f"{parts.scheme}://{parts.netloc}"
        self._headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {api_key}"} if api_key else {})
        self.model = model or self._first_model()

    def chat(self, messages: list[Message], sampling: dict[str, Any], on_text: OnText) -> Reply:
        """See Talker."""
        return self._stream("/chat/completions", {"messages": messages, **sampling}, on_text)

    def complete(self, prompt: str, sampling: dict[str, Any], on_text: OnText) -> Reply:
        """See Talker."""
        return self._stream("/completions", {"prompt": prompt, **sampling}, on_text)

    def close(self) -> None:
        """Holds nothing between requests."""

    def _first_model(self) -> str:
        with closing(self._connect()) as connection:
            data = _json(self._send(connection, "GET", "/models", None).read())
        try:
            return str(data["data"][0]["id"])
        except (KeyError, IndexError, TypeError):
            raise RemoteError(f"{self._url} lists no model; is it an OpenAI-compatible server?") from None

    def _stream(self, path: str, body: dict[str, Any], on_text: OnText) -> Reply:
        reason = None
        with closing(self._connect()) as connection:
            response = self._send(connection, "POST", path, {"model": self.model, "stream": True, **body})
            for event in self._events(response):
                if "error" in event:
                    raise RemoteError(_message(event) or "the server reported an error")
                for choice in event.get("choices") or ():
                    text = choice["delta"].get("content") if "delta" in choice else choice.get("text")
                    if text:
                        on_text(text)
                    reason = choice.get("finish_reason") or reason
        return Reply(reason)

    def _connect(self) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._https else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=CONNECT_SECONDS)
        try:
            connection.connect()
        except OSError as error:
            raise RemoteError(f"can't reach {self._url}: {error.strerror or error}") from None
        connection.sock.settimeout(SILENCE_SECONDS)
        return connection

    def _send(self, connection: http.client.HTTPConnection, method: str, path: str, body: Any) -> http.client.HTTPResponse:
        try:
            connection.request(method, self._base + path, None if body is None else json.dumps(body), self._headers)
            response = connection.getresponse()
            if response.status == 200:
                return response
            answer = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise RemoteError(f"{self._url} closed the connection: {error}") from None
        said = _message(_json(answer)) or f"{self._url} answered {response.status} {response.reason}"
        if response.status == http.HTTPStatus.UNAUTHORIZED:
            said = f"{said.removesuffix('.')}; --api-key KEY or ${API_KEY_VARIABLE} gives it here"
        raise RemoteError(said)

    def _events(self, response: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
        """The JSON objects of a text/event-stream, up to its [DONE]."""
        try:
            for line in response:
                if line.startswith(b"data:"):
                    data = line[5:].strip()
                    if data == b"[DONE]":
                        return
                    event = _json(data)
                    if isinstance(event, dict):
                        yield event
        except (OSError, http.client.HTTPException) as error:
            raise RemoteError(f"{self._url} closed the connection in the middle of the answer: {error}") from None
        raise RemoteError(f"{self._url} ended the answer before it was complete")


def _json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        return None


def _message(answer: Any) -> str | None:
    """The message of an OpenAI error body, if that is what it is."""
    error = answer.get("error") if isinstance(answer, dict) else None
    message = error.get("message") if isinstance(error, dict) else error
    return str(message) if message else None
