"""A streamed chat put together as a client does, to be compared with a whole one."""

from __future__ import annotations

import json
from typing import Any

import httpx
from test_completions_route import events

USER = {"role": "user", "content": "Hi"}


async def ask(client: httpx.AsyncClient, **fields: Any) -> dict[str, Any]:
    """The first choice of a chat."""
    reply = await client.post("/v1/chat/completions", json={"messages": [USER], **fields})
    assert reply.status_code == 200, reply.text
    choice: dict[str, Any] = reply.json()["choices"][0]
    return choice


async def ask_chunks(client: httpx.AsyncClient, **fields: Any) -> list[dict[str, Any]]:
    reply = await client.post("/v1/chat/completions", json={"messages": [USER], "stream": True, **fields})
    assert reply.status_code == 200, reply.text
    return events(reply.text)


def typed_events(reply: httpx.Response) -> list[dict[str, Any]]:
    """The events of a reply, each of which must be of the type that it is announced as."""
    assert reply.headers["content-type"].startswith("text/event-stream"), reply.text
    found = []
    for block in reply.text.split("\n\n")[:-1]:
        name, data = block.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def assembled(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    """The message and the finish reason that `chunks` of one choice make, in the shape of a whole choice."""
    message: dict[str, Any] = {"content": "", "refusal": None}
    reason = None
    for chunk in chunks:
        (choice,) = chunk["choices"]
        delta = choice["delta"]
        for name in ("role", "content", "reasoning"):
            if name in delta:
                message[name] = message.get(name, "") + delta[name]
        for call in delta.get("tool_calls", ()):
            calls = message.setdefault("tool_calls", [])
            if call["index"] == len(calls):
                calls.append({"id": call["id"], "type": call["type"], "function": {"name": call["function"]["name"], "arguments": ""}})
            else:
                assert set(call) == {"index", "function"}
                assert set(call["function"]) == {"arguments"}
            calls[call["index"]]["function"]["arguments"] += call["function"]["arguments"]
        reason = choice["finish_reason"] or reason
    if not message["content"] and len(message) > 3:
        message["content"] = None
    return {"message": message, "finish_reason": reason}


def without_ids(choice: dict[str, Any]) -> dict[str, Any]:
    """Message and finish reason, less the ids of calls, which are new each time."""
    message = json.loads(json.dumps(choice["message"]))
    ids = [call.pop("id") for call in message.get("tool_calls", ())]
    assert len(set(ids)) == len(ids)
    return {"message": message, "finish_reason": choice["finish_reason"]}


async def ask_both(client: httpx.AsyncClient, **fields: Any) -> dict[str, Any]:
    """What a chat says, which must be the same whole and streamed; calls without their ids."""
    whole = without_ids(await ask(client, **fields))
    assert without_ids(assembled(await ask_chunks(client, **fields))) == whole
    return whole
