"""The outermost layer of every request: its id, its key, its count among the errors, and a reply whatever happens."""

from __future__ import annotations

import hmac
import re
import time
import uuid
from collections.abc import Callable, Mapping, Sequence

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from octavo.protocol.errors import AuthenticationError, InvalidRequestError, OctavoError
from octavo.server.admission import Admission
from octavo.server.errors import error_response, logger
from octavo.server.requests import ID_PATTERN, LONGEST_ID

OPEN_PATHS = ("/health",)
REQUEST_ID = b"x-request-id"
# Where Anthropic's clients bring their key.
ANTHROPIC_KEY = b"x-api-key"
_VALID_ID = re.compile(ID_PATTERN.encode())


class Edge:
    """ASGI middleware.

    Each request gets an id, which is the client's X-Request-Id (`state.given_id`), else what a route puts in `state.given_id`, else a fresh
    one (`state.unique_id`), and comes back in the same header. Every path but /health asks for one of `keys` when there are any.
    `on_error` is called with the status of each reply of 400 or more; `admission` decides who comes in at all. `root_path` is
    the prefix of a proxy, which may strip it or not.
    """

    def __init__(self, app: ASGIApp, keys: Sequence[str], root_path: str, on_error: Callable[[int], None], admission: Admission) -> None:
        self.app = app
        self._root_path = root_path
        self._keys = [key.encode() for key in keys]
        self._on_error = on_error
        self._admission = admission

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one request; other kinds of connection pass through."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = False
        if self._root_path:
            scope["root_path"] = self._root_path
        headers = dict(scope["headers"])
        given = headers.get(REQUEST_ID)
        valid = given is None or (len(given) <= LONGEST_ID and _VALID_ID.fullmatch(given) is not None)
        fresh = uuid.uuid4().hex
        state = scope.setdefault("state", {})
        state["arrival_time"] = time.monotonic()
        state["unique_id"], state["given_id"] = fresh, given.decode() if given is not None and valid else None

        async def send_with_id(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                request_id = (state["given_id"] or fresh).encode()
                message["headers"] = [*message.get("headers", ()), (REQUEST_ID, request_id)]
                if message["status"] >= 400:
                    self._on_error(message["status"])
            await send(message)

        try:
            with self._admission.request(self._path(scope)):
                self._authenticate(scope, headers)
                if not valid:
                    raise InvalidRequestError(f"X-Request-Id: must be 1 to {LONGEST_ID} printable ASCII characters.", param="x-request-id")
                await self.app(scope, receive, send_with_id)
        except ClientDisconnect:
            return
        except Exception as error:
            if started:
                logger.error("unexpected error after a reply had begun", exc_info=error)
                raise
            await error_response(error, scope)(scope, receive, send_with_id)

    def _path(self, scope: Scope) -> str:
        path = str(scope["path"])
        return path[len(self._root_path) :] if path.startswith(f"{self._root_path}/") else path

    def _authenticate(self, scope: Scope, headers: Mapping[bytes, bytes]) -> None:
        if not self._keys or self._path(scope) in OPEN_PATHS:
            return
        authorization = headers.get(b"authorization", b"")
        if not authorization and ANTHROPIC_KEY in headers:
            authorization = b"Bearer " + headers[ANTHROPIC_KEY]
        scheme, _, key = authorization.partition(b" ")
        # Every key is compared, each in constant time, so that timing tells nothing about any of them.
        matches = [hmac.compare_digest(key.strip(), known) for known in self._keys]
        if scheme.lower() == b"bearer" and any(matches):
            return
        problem: OctavoError
        if not authorization:
            problem = AuthenticationError(
                "This server needs an API key: send the header Authorization: Bearer KEY.", code="invalid_api_key"
            )
        else:
            problem = AuthenticationError("The API key in the Authorization header is wrong.", code="invalid_api_key")
        raise problem
