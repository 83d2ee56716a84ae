"""What a request says of its text's form: `structured_outputs`, or OpenAI's `response_format`."""

from __future__ import annotations

from typing import Any

from octavo.protocol.errors import InvalidRequestError
from octavo.protocol.structured_outputs import StructuredOutputsParams
from octavo.server.requests import Generation, JsonObjectFormat, JsonSchemaFormat, TextFormat


def structured_outputs_of(request: Generation) -> StructuredOutputsParams | None:
    """What the text has to be, or None if anything will do. Raises InvalidRequestError that names the field at fault."""
    asked, wanted = request.structured_outputs, request.response_format
    if isinstance(wanted, TextFormat):
        wanted = None
    if asked is not None and wanted is not None:
        raise InvalidRequestError("response_format: can't be given with structured_outputs, which says the same.", param="response_format")
    if request.use_beam_search and (asked is not None or wanted is not None):
        name = "structured_outputs" if wanted is None else "response_format"
        raise InvalidRequestError(f"{name}: can't be given with use_beam_search.", param=name)
    if asked is not None:
        given = {name: value for name in asked.__struct_fields__ if (value := getattr(asked, name)) is not None}
        return StructuredOutputsParams(**given)
    if isinstance(wanted, JsonObjectFormat):
        return StructuredOutputsParams(json_object=True)
    return None if wanted is None else _of_schema(wanted)


def _of_schema(wanted: JsonSchemaFormat) -> StructuredOutputsParams:
    """A schema is always held to; `strict` changes nothing."""
    schema: dict[str, Any] | None = wanted.json_schema.schema_
    if schema is None:
        raise InvalidRequestError("response_format.json_schema.schema: is required.", param="response_format.json_schema.schema")
    return StructuredOutputsParams(json=schema)
