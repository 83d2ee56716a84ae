"""openapi.json: what the routes take and give, from the types that check requests and make replies."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from starlette.requests import Request

from octavo.server.errors import ErrorBody
from octavo.server.query import CLIENTS_OWN, Whole, check_names
from octavo.server.requests import Body, schema_of_off_values

_PLACES = re.compile(r"\{(\w+)\}")
REF = "#/components/schemas/{name}"


@dataclass(frozen=True, slots=True)
class Operation:
    """One route for the document: its request and response types, and whether it may stream, and as what. None as response is plain text.
    `flags` are parameters of the query that are true or false, `wholes` those that are whole numbers; with `any_query` there may be any
    besides, which change nothing."""

    path: str
    method: str
    request: type[Body] | None
    response: type[msgspec.Struct] | None
    streams: bool = False
    stream_type: str = "text/event-stream"
    flags: tuple[str, ...] = ()
    wholes: Mapping[str, Whole] = field(default_factory=dict)
    any_query: bool = False

    @property
    def ignored(self) -> tuple[str, ...]:
        """Parameters of the query that are taken and change nothing."""
        return CLIENTS_OWN if self.path.startswith("/v1/") and not self.any_query else ()

    def check_query(self, request: Request) -> None:
        """Raises InvalidRequestError for a parameter of the query that this route does not know."""
        if not self.any_query:
            check_names(request, (*self.flags, *self.wholes, *self.ignored))


def complete(document: dict[str, Any], operations: list[Operation], *, secured: bool) -> dict[str, Any]:
    """Fills bodies, replies and components into FastAPI's `document`, which knows only the paths."""
    types: list[Any] = [ErrorBody]
    for operation in operations:
        types += [kind for kind in (operation.request, operation.response) if kind is not None and kind not in types]
    _, schemas = msgspec.json.schema_components(types, ref_template=REF)
    for kind in types:
        if issubclass(kind, Body):
            schemas[kind.__name__]["properties"] |= schema_of_off_values(kind.off_values)
    components: dict[str, Any] = {"schemas": schemas}
    if secured:
        components["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"bearer": []}]
    document["components"] = components
    for operation in operations:
        _fill(document["paths"][operation.path][operation.method], operation)
    return document


def _fill(entry: dict[str, Any], operation: Operation) -> None:
    if operation.request is not None:
        schema = {"$ref": REF.format(name=operation.request.__name__)}
        entry["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    schemas: dict[str, dict[str, Any]] = {name: {"type": "boolean"} for name in operation.flags}
    for name, whole in operation.wholes.items():
        schemas[name] = {"type": "integer", "minimum": whole.least, "maximum": whole.most, "default": whole.default}
    placed = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in _PLACES.findall(operation.path)]
    for name in operation.ignored:
        schemas[name] = {"type": "string", "description": "Without effect: some clients send it."}
    asked = [{"name": name, "in": "query", "required": False, "schema": schema} for name, schema in schemas.items()]
    if placed or asked:
        entry["parameters"] = placed + asked
    content: dict[str, Any] = {"text/plain": {"schema": {"type": "string"}}}
    if operation.response is not None:
        content = {"application/json": {"schema": {"$ref": REF.format(name=operation.response.__name__)}}}
    if operation.streams:
        # What an event holds depends on the event; readers of the document would take a schema here for that of each.
        content[operation.stream_type] = {}
    failure = {"application/json": {"schema": {"$ref": REF.format(name=ErrorBody.__name__)}}}
    entry["responses"] = {
        "200": {"description": "The answer.", "content": content},
        "default": {"description": "An error.", "content": failure},
    }
