"""A request's body: read within a limit, decoded as JSON, and checked against a type field by field."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncGenerator
from email.message import Message
from typing import Any, TypeVar

import msgspec
import msgspec.inspect
from starlette.requests import ClientDisconnect, Request

from octavo.protocol.errors import InvalidRequestError, PayloadTooLargeError
from octavo.protocol.sampling_names import UNSUPPORTED_FIELDS
from octavo.server.context import ServerContext
from octavo.server.errors import HALF_READ
from octavo.server.field_names import names_at, without_unknown_nulls
from octavo.server.fields import is_off
from octavo.server.requests import Body
from octavo.server.streaming import overdue_error, seconds_left
from octavo.utils.nearest import did_you_mean

T = TypeVar("T", bound=Body)

MAX_DEPTH = 100
# A client that is still sending must be read for a while, or the reset of its connection hides the reply from it.
DISCARD_SECONDS = 2.0
DISCARD_BYTES = 256 * 1024 * 1024

_LOCATION = re.compile(r"^(?P<text>.*?)(?: - at `(?P<path>\$.*)`)?$", re.DOTALL)
_UNKNOWN_FIELD = re.compile(r"^Object contains unknown field `(?P<name>.*)`$", re.DOTALL)
_MISSING_FIELD = re.compile(r"^Object missing required field `(?P<name>.*)`$")
_LONE_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_WORDS = {
    "int": "an integer",
    "float": "a number",
    "str": "a string",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "null",
}


async def read_json_object(request: Request, ctx: ServerContext) -> dict[str, Any]:
    """The JSON object in the body of `request`.

    Raises InvalidRequestError for a wrong content type or anything that is no JSON object, PayloadTooLargeError beyond the server's limit,
    RequestTimeoutError when the request's time is over, and OverloadedError when the server stops, before all of it has come.
    """
    _check_content_type(request)
    body = await _arrived(request, ctx)
    if not body.strip():
        raise InvalidRequestError("The body is empty; send a JSON object.")
    value = _decode(body)
    if not isinstance(value, dict):
        raise InvalidRequestError(f"The body must be a JSON object, not {_kind(value)}.")
    return value


def _check_content_type(request: Request) -> None:
    given = request.headers.get("content-type", "")
    header = Message()
    header["content-type"] = given
    if header.get_content_type() != "application/json" or not given:
        shown = repr(given) if given else "missing"
        raise InvalidRequestError(f"The Content-Type header must be application/json; it is {shown}.", param="content-type")
    charset = str(header.get_param("charset") or "utf-8").lower()
    if charset not in ("utf-8", "utf8", "us-ascii"):
        raise InvalidRequestError(f"The body must be UTF-8, but the Content-Type header says {charset!r}.", param="content-type")
    encoding = request.headers.get("content-encoding", "identity").lower()
    if encoding != "identity":
        raise InvalidRequestError(f"The Content-Encoding {encoding!r} is not supported; send the body as it is.", param="content-encoding")


async def _arrived(request: Request, ctx: ServerContext) -> bytes:
    state = request.scope["state"]
    state[HALF_READ] = True
    try:
        async with ctx.admission.arrival(seconds_left(request.scope, ctx)):
            body = await _read(request, ctx.options.max_body_bytes)
    except TimeoutError:
        raise overdue_error(ctx, "its body had come") from None
    state[HALF_READ] = False
    return body


async def _read(request: Request, limit: int) -> bytes:
    chunks: list[bytes] = []
    size = 0
    length = request.headers.get("content-length", "")
    too_large = length.isdecimal() and int(length) > limit
    stream = request.stream()
    while not too_large:
        chunk = await anext(stream, None)
        if chunk is None:
            return b"".join(chunks)
        chunks.append(chunk)
        size += len(chunk)
        too_large = size > limit
    chunks.clear()
    await _discard(stream)
    raise PayloadTooLargeError(f"The body is over this server's limit of {limit} bytes.")


async def _discard(stream: AsyncGenerator[bytes, None]) -> None:
    """Reads on for a while: to the body's end at once where it is there, since its last piece may have been the one too many."""
    size = 0
    with contextlib.suppress(TimeoutError, ClientDisconnect):
        async with asyncio.timeout(DISCARD_SECONDS):
            async for chunk in stream:
                size += len(chunk)
                if size >= DISCARD_BYTES:
                    return


def _decode(body: bytes) -> Any:
    too_deep = f"The body's JSON is nested more than {MAX_DEPTH} levels deep."
    try:
        value = msgspec.json.decode(body)
    except RecursionError:
        raise InvalidRequestError(too_deep) from None
    except (msgspec.MsgspecError, ValueError) as error:
        raise InvalidRequestError(f"The body is not valid JSON: {_malformed(body, str(error))}.") from None
    # Fewer brackets than the limit can't nest deeper than it, and that is nearly every body.
    if body.count(b"{") + body.count(b"[") > MAX_DEPTH and _deeper_than(value, MAX_DEPTH):
        raise InvalidRequestError(too_deep)
    return value


def _malformed(body: bytes, text: str) -> str:
    try:
        body.decode()
    except UnicodeDecodeError as error:
        return f"it is not UTF-8 at byte {error.start}"
    if "truncated" in text and _LONE_SURROGATE.search(body):
        return "it ends early, or a string holds half of a surrogate pair"
    text = text.partition(" - at ")[0].removeprefix("JSON is malformed: ")
    return text.replace("Input data was truncated", "it ends early")


def _deeper_than(value: Any, limit: int) -> bool:
    level = [value]
    for _ in range(limit):
        level = [
            child
            for parent in level
            for child in (parent.values() if isinstance(parent, dict) else parent)
            if isinstance(child, (dict, list))
        ]
        if not level:
            return False
    return True


def parse(raw: dict[str, Any], kind: type[T]) -> T:
    """`raw` as a `kind`. Fields that this version lacks are let through when they say "off".

    Raises InvalidRequestError that names the field by its dotted path, and the nearest known one for a name nobody knows.
    """
    known = kind.__struct_fields__
    off_values = kind.off_values
    fields = {}
    for name, value in raw.items():
        if name in known:
            fields[name] = value
        elif name not in off_values:
            raise InvalidRequestError(f"{name}: unknown field{did_you_mean(name, [*known, *off_values]) or '.'}", param=name)
        elif not is_off(value, off_values[name]):
            hint = UNSUPPORTED_FIELDS.get(name, "")
            raise InvalidRequestError(f"{name} is not supported by this version of Octavo{hint and '; '}{hint}.", param=name)
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError:
        return _parse_without_unknown_nulls(fields, kind)


def _parse_without_unknown_nulls(fields: dict[str, Any], kind: type[T]) -> T:
    fields = without_unknown_nulls(fields, (kind,))
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        raise _explain(str(error), fields, kind) from None


def _explain(text: str, fields: dict[str, Any], kind: type[msgspec.Struct]) -> InvalidRequestError:
    """msgspec's "Expected `int`, got `str` - at `$.a[0]`" as "a.0: must be an integer, not a string."."""
    match = _LOCATION.match(text)
    assert match is not None
    problem, place = match["text"], match["path"] or "$"
    path = _dotted(place)
    if unknown := _UNKNOWN_FIELD.match(problem):
        name = f"{path}.{unknown['name']}".lstrip(".")
        known = names_at(kind, path.split("."))
        return InvalidRequestError(f"{name}: unknown field{did_you_mean(unknown['name'], known) or '.'}", param=name)
    if missing := _MISSING_FIELD.match(problem):
        name = f"{path}.{missing['name']}".lstrip(".")
        return InvalidRequestError(f"{name}: is required.", param=name)
    wanted, _, got = (
        problem.replace("Expected ", "must be ")
        .replace("Invalid enum value", "can't be")
        .replace("Invalid value", "can't be")
        .partition(", got ")
    )
    given = "" if "can't be" in wanted else _given(fields, path) or got
    sentence = _plain_words(f"{wanted}, not {given}" if given else wanted)
    if "can't be" in wanted and (choices := _choices(kind, path)):
        sentence += f", but may be {choices}"
    each = "each value " if "[...]" in place else ""
    return InvalidRequestError(f"{path}: {each}{sentence}.", param=path)


def _choices(kind: type[msgspec.Struct], path: str) -> str:
    """What a field of `kind` itself may be, if that is one of a few words; of fields further down nothing is said."""
    field_type = next((each.type for each in msgspec.inspect.type_info(kind).fields if each.encode_name == path), None)  # type: ignore[attr-defined]
    kinds = field_type.types if isinstance(field_type, msgspec.inspect.UnionType) else (field_type,)
    words = [json.dumps(value) for each in kinds if isinstance(each, msgspec.inspect.LiteralType) for value in each.values]
    flags = ["true", "false"] if any(isinstance(each, msgspec.inspect.BoolType) for each in kinds) else []
    return " or ".join(flags + words)


def _plain_words(text: str) -> str:
    """`text` with msgspec's type names, such as `int | null`, in words."""
    return re.sub(r"`([^`]*)`", lambda match: " or ".join(_WORDS.get(name, name) for name in match[1].split(" | ")), text)


def _dotted(path: str) -> str:
    return re.sub(r"\[(\d+)\]", r".\1", path).replace("[...]", "").removeprefix("$").removeprefix(".")


def _given(fields: Any, path: str) -> str:
    """The value at `path` as JSON if it is short, or a list's length, so that the sender sees what arrived."""
    for key in path.split("."):
        if isinstance(fields, list) and key.isdigit():
            fields = fields[int(key)]
        elif isinstance(fields, dict) and key in fields:
            fields = fields[key]
        else:
            return ""
    if isinstance(fields, dict):
        return ""
    if isinstance(fields, list):
        return f"a list of length {len(fields)}"
    shown = msgspec.json.encode(fields).decode()
    return shown if len(shown) <= 40 else ""


def _kind(value: object) -> str:
    if value is None:
        return "null"
    return {bool: "true or false", int: "a number", float: "a number", str: "a string", list: "a list"}.get(type(value), "this")
