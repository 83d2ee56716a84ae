from __future__ import annotations

import httpx


def check(reply: httpx.Response, status: int, param: str | None = None, *words: str) -> dict:
    """The error of `reply`, which must have this status and param, and hold all `words` in its message."""
    assert reply.status_code == status, reply.text
    assert reply.headers["content-type"] == "application/json"
    body = reply.json()
    assert set(body) == {"error"}
    error = body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["param"] == param, error
    for word in words:
        assert word in error["message"], error
    assert reply.headers["x-request-id"]
    return error
