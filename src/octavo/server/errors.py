"""Every failure becomes `{"error": {"message", "type", "param", "code"}}`, the shape of OpenAI's API; of /v1/messages, Anthropic's."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from octavo.protocol.errors import OctavoError, OverloadedError
from octavo.server.anthropic_objects import MESSAGES_PATH, anthropic_error

logger = logging.getLogger("octavo.server")

INTERNAL_MESSAGE = "The server failed to handle this request; its log says why."
# Characters. Messages quote what was sent, which may be megabytes.
MAX_MESSAGE, MAX_PARAM = 2000, 200
RETRY_SECONDS = 1
# In a request's state: whether a part of its body may still come, so that its connection is of no more use.
HALF_READ = "half_read"


class ErrorDetail(msgspec.Struct):
    """`param` names the field at fault by a dotted path, such as `messages.0.role`; `code` is a stable word for programs."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(msgspec.Struct):
    """The body of every reply whose status is 400 or more, and the event that ends a broken stream."""

    error: ErrorDetail


def describe(error: BaseException) -> tuple[int, ErrorBody]:
    """The HTTP status and body for `error`. What Octavo did not raise on purpose is logged with its traceback and told in plain words."""
    if isinstance(error, OctavoError):
        if error.status == 500:
            logger.warning("%s", error.message)
        param = None if error.param is None else _cut(error.param, MAX_PARAM)
        return error.status, ErrorBody(ErrorDetail(_cut(error.message, MAX_MESSAGE), error.type, param, error.code))
    logger.error("unexpected error while handling a request", exc_info=error)
    return 500, ErrorBody(ErrorDetail(INTERNAL_MESSAGE, OctavoError.type))


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}…"


def json_response(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """`value` as a JSON reply."""
    return Response(msgspec.json.encode(value), status, headers, media_type="application/json")


def error_response(error: BaseException, scope: Scope) -> Response:
    """The reply to the request of `scope` for `error`. A 401 says how to authenticate; where the body is half read the connection closes;
    who comes at a bad time is told when to come again."""
    status, body = describe(error)
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else {}
    if isinstance(error, OverloadedError):
        headers["Retry-After"] = str(RETRY_SECONDS)
    if scope["state"].get(HALF_READ):
        headers["Connection"] = "close"
    return _reply(scope["path"], status, body, headers)


async def on_octavo_error(request: Request, error: Exception) -> Response:
    """Exception handler for OctavoError."""
    return error_response(error, request.scope)


async def on_http_exception(request: Request, error: Exception) -> Response:
    """Exception handler for what the router itself refuses: no such path, or not this method."""
    status = int(getattr(error, "status_code", 500))
    path = request.url.path
    if status == 404:
        detail = ErrorDetail(f"There is nothing at {path}.", "not_found_error")
    elif status == 405:
        detail = ErrorDetail(f"{path} does not take {request.method}.", "invalid_request_error")
    else:
        kind = "invalid_request_error" if status < 500 else OctavoError.type
        detail = ErrorDetail(str(getattr(error, "detail", "") or f"HTTP {status}"), kind)
    return _reply(path, status, ErrorBody(detail), getattr(error, "headers", None))


def _reply(path: str, status: int, body: ErrorBody, headers: Mapping[str, str] | None) -> Response:
    """`body` in the shape that clients of `path` know."""
    if MESSAGES_PATH in path:
        return json_response(anthropic_error(status, body.error.message), status, headers)
    return json_response(body, status, headers)
