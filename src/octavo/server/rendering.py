"""Conversations written out by a chat template, as the fields of a request want it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec

from octavo.protocol.errors import InvalidRequestError
from octavo.server.context import ServerContext
from octavo.server.messages import check_template_kwargs, normalize
from octavo.server.prompts import INLINE_CHARACTERS, Bound, encode
from octavo.server.requests import ChatRendering
from octavo.utils.background import in_background

_INDEX = re.compile(r"\[(\d+)\]")


@dataclass(frozen=True, slots=True)
class RenderedChat:
    """A conversation as the template writes it, and as token ids."""

    text: str
    token_ids: list[int]


@dataclass(frozen=True, slots=True)
class _Rendering:
    """How a conversation is written out: what the template is given, and which it is."""

    messages: list[dict[str, Any]]
    keep_developer: bool
    arguments: dict[str, Any] = field(default_factory=dict)


async def render(
    ctx: ServerContext, body: ChatRendering, *, tools: list[dict[str, Any]] | None = None, bound: Bound | None = None
) -> RenderedChat:
    """The messages of `body` through the chat template, which is told of `tools`. Raises InvalidRequestError that names the field at
    fault, and for a text that is surely over the `bound`."""
    assert body.messages is not None
    # A template is an interpreted program: a body of many messages keeps it busy for seconds, and a request's own may do so with none.
    trusted = body.chat_template is None
    told = _arguments(ctx, body, tools) if trusted else await in_background(_arguments, ctx, body, tools)
    rendering = _Rendering(body.messages, *told)

    def write() -> str:
        plain = normalize(rendering.messages, keep_developer=rendering.keep_developer)
        with _dotted():
            return ctx.llm.render_chat(plain, **rendering.arguments)

    small = trusted and len(msgspec.json.encode((rendering.messages, rendering.arguments))) <= INLINE_CHARACTERS
    text = write() if small else await in_background(write)
    # Templates write the special tokens themselves, so by default none are added to what they give.
    return RenderedChat(text, await encode(ctx.llm.tokenizer, text, bool(body.add_special_tokens), bound))


def _arguments(ctx: ServerContext, body: ChatRendering, tools: list[dict[str, Any]] | None) -> tuple[bool, dict[str, Any]]:
    """Whether the template knows the role developer, and the arguments of `render_chat`."""
    if body.chat_template is not None and not ctx.options.trust_request_chat_template:
        raise InvalidRequestError(
            "chat_template: this server does not run templates of requests (octavo serve --trust-request-chat-template does).",
            param="chat_template",
        )
    template = ctx.templates.choose(tools=bool(tools), requested=body.chat_template)
    arguments = dict(check_template_kwargs(body.chat_template_kwargs))
    arguments["add_generation_prompt"] = _generation_prompt(body)
    if body.continue_final_message:
        arguments["continue_final_message"] = True
    if body.chat_template is not None:
        arguments["chat_template"] = body.chat_template
    # Where a grammar holds the answer to calls a template need not have a place for them.
    if tools and ctx.templates.reads(template, "tools", unknown=True):
        arguments["tools"] = tools
    if body.documents:
        if not ctx.templates.reads(template, "documents"):
            raise InvalidRequestError("documents: the model's chat template has no place for documents.", param="documents")
        arguments["documents"] = body.documents
    arguments |= _effort(ctx, template, body.reasoning_effort)
    return "developer" in template, arguments


@contextmanager
def _dotted() -> Iterator[None]:
    """Names a field at fault as a request has it: `messages.0.name`, not `messages[0].name`."""
    try:
        yield
    except InvalidRequestError as error:
        param = error.param or ""
        error.param = _INDEX.sub(r".\1", param) or None
        error.message = error.message.replace(param, error.param or "", 1)
        raise


def _generation_prompt(body: ChatRendering) -> bool:
    if not body.continue_final_message:
        return body.add_generation_prompt is not False
    if body.add_generation_prompt:
        raise InvalidRequestError(
            "continue_final_message: continues the last message, where add_generation_prompt begins a new one.",
            param="continue_final_message",
        )
    return False


def _effort(ctx: ServerContext, template: str, effort: str | None) -> dict[str, Any]:
    """`reasoning_effort` in the words of the template: its own variable of that name, or whether to think at all."""
    if effort is None:
        return {}
    if ctx.templates.reads(template, "reasoning_effort"):
        return {"reasoning_effort": effort}
    if ctx.templates.reads(template, "enable_thinking"):
        return {"enable_thinking": effort != "none"}
    if effort == "none":
        return {}
    raise InvalidRequestError(
        f"reasoning_effort: can't be {effort!r}; the model's chat template knows neither reasoning_effort nor enable_thinking.",
        param="reasoning_effort",
    )
