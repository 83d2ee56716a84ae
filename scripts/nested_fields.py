"""The fields within fields of requests, for docs/api.md."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from octavo.server.item_schemas import REFUSED, WITHOUT_EFFECT

Schema = dict[str, Any]
KindOf = Callable[[Schema, dict[str, Schema]], str]


def nested_rows(bodies: dict[str, Schema], schemas: dict[str, Schema], kind_of: KindOf) -> list[list[str]]:
    """field, value, routes, what it does: of every field of an object that a field of a body holds. `bodies` are their fields by route."""
    found: dict[tuple[str, str], list[str]] = {}
    for route, body in bodies.items():
        for name, schema in body.items():
            for path, kind in _within(name, [schema], schemas, kind_of):
                found.setdefault((path, kind), []).append(route)
    rows = []
    for (path, kind), routes in sorted(found.items()):
        state = "no effect" if path in WITHOUT_EFFECT else "refused" if path in REFUSED else "acts"
        rows.append([f"`{path}`", kind, ", ".join(f"`{route}`" for route in routes), state])
    return rows


def _within(path: str, kinds: list[Schema], schemas: dict[str, Schema], kind_of: KindOf) -> Iterator[tuple[str, str]]:
    """Paths and kinds of what the objects at `path` hold, which is one of `kinds`."""
    fields: dict[str, list[Schema]] = {}
    for listed, schema in (pair for kind in kinds for pair in _objects(kind, schemas)):
        for name, field in schema.get("properties", {}).items():
            fields.setdefault(f"{path}{listed}.{name}", []).append(field)
    for place, several in fields.items():
        names = [name for each in several if (name := _short(each, schemas, kind_of))]
        yield place, ", or ".join(dict.fromkeys(names)) or "any"
        yield from _within(place, several, schemas, kind_of)


def _objects(schema: Schema, schemas: dict[str, Schema]) -> Iterator[tuple[str, Schema]]:
    """The objects that a value may be, or that a list may hold, which is marked by "[]"."""
    if "$ref" in schema:
        yield from _objects(schemas[schema["$ref"].rsplit("/", 1)[1]], schemas)
    for part in schema.get("anyOf", ()):
        yield from _objects(part, schemas)
    if schema.get("type") == "array":
        yield from ((f"[]{listed}", found) for listed, found in _objects(schema.get("items", {}), schemas))
    if "properties" in schema:
        yield "", schema


def _short(schema: Schema, schemas: dict[str, Schema], kind_of: KindOf) -> str:
    """As `kind_of`, without the names that rows of their own tell of."""
    if "$ref" in schema:
        return "object"
    if "anyOf" in schema:
        return ", or ".join(dict.fromkeys(filter(None, (_short(part, schemas, kind_of) for part in schema["anyOf"]))))
    if schema.get("maxItems") == 0 or schema.get("const") == "" or schema.get("type") == "null":
        return ""
    if "const" in schema:
        return f"`{schema['const']}`"
    if schema.get("type") == "array" and any(_objects(schema, schemas)):
        return "array of object"
    return str(kind_of(schema, schemas))
