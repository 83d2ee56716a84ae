"""How a request wants its text constrained."""

from __future__ import annotations

from typing import Any

import msgspec

from octavo.protocol.checks import flag, show
from octavo.protocol.errors import InvalidRequestError

KINDS = ("json", "regex", "choice", "grammar", "json_object")
# As in vLLM, and what Python's own json writes without trouble.
MAX_SCHEMA_DEPTH = 64

_FLAGS = ("disable_any_whitespace", "disable_additional_properties")
_JSON_OPTIONS = (*_FLAGS, "whitespace_pattern")


class _RefusesTags(msgspec.StructMeta):
    """The class of a struct that knows vLLM's `structural_tag` as a keyword, in order to refuse it."""

    def __call__(self, *values: Any, **fields: Any) -> Any:
        """Makes one. Raises InvalidRequestError for a structural tag."""
        if fields.pop("structural_tag", None) is not None:
            raise _fault("structural_tag", "is not supported by this version; use tools with strict, or a grammar.")
        return super().__call__(*values, **fields)


class StructuredOutputsParams(msgspec.Struct, metaclass=_RefusesTags, omit_defaults=True, forbid_unknown_fields=True):
    """What a text must be: exactly one of `json` (a JSON schema, as an object or as text), `regex` (that the whole text matches), `choice`
    (one of these strings), `grammar` (Lark or GBNF) and `json_object` (True: any JSON object). Names are vLLM's.

    Of a JSON text `disable_any_whitespace` allows no whitespace outside of strings, `whitespace_pattern` is the regular expression that it
    has to match. `disable_additional_properties`, for `json` alone, forbids properties that a schema doesn't name wherever the
    schema doesn't say otherwise.

    Values are checked when the object is made, copied or decoded. Raises InvalidRequestError that names the field. What a schema, an
    expression or a grammar says is checked when a request is prepared.
    """

    json: str | dict[str, Any] | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.choice, tuple):
            self.choice = list(self.choice)
        given = [name for name in KINDS if getattr(self, name) is not None and not (name == "json_object" and self.json_object is False)]
        if len(given) != 1:
            had = f"has {' and '.join(given)}" if given else "has none of them"
            raise InvalidRequestError(
                f"structured_outputs must have exactly one of {', '.join(KINDS)}; it {had}.", param="structured_outputs"
            )
        self._check_types()
        for name in _FLAGS:
            flag(name, getattr(self, name))
        options = [name for name in _JSON_OPTIONS if getattr(self, name)]
        if options and self.kind not in ("json", "json_object"):
            raise _fault(options[0], f"says something of a JSON text and can't be given with {self.kind}.")
        if self.disable_additional_properties and self.kind == "json_object":
            raise _fault("disable_additional_properties", "says something of a schema and can't be given with json_object.")
        if self.whitespace_pattern and self.disable_any_whitespace:
            raise _fault("whitespace_pattern", "can't be given with disable_any_whitespace.")

    @property
    def kind(self) -> str:
        """Which of KINDS it has."""
        return next(name for name in KINDS if getattr(self, name) not in (None, False))

    def _check_types(self) -> None:
        for name in ("regex", "grammar", "whitespace_pattern"):
            value = getattr(self, name)
            if value is None:
                continue
            _text(name, value)
            if "\0" in value:
                raise _fault(name, "must not hold a zero character.")
            if not value.strip() and name == "grammar":
                raise _fault(name, "is empty.")
        if self.json_object is not None:
            flag("structured_outputs.json_object", self.json_object)
        if self.choice is not None:
            if not isinstance(self.choice, list) or not self.choice:
                raise _fault("choice", f"must be a list of at least one string, got {show(self.choice)}.")
            for item in self.choice:
                _text("choice", item)
        if self.json is not None:
            self._check_schema()

    def _check_schema(self) -> None:
        if isinstance(self.json, str):
            _text("json", self.json)
            try:
                schema = msgspec.json.decode(self.json)
            except (msgspec.MsgspecError, RecursionError) as error:
                raise _fault("json", f"is not valid JSON: {str(error) or 'it is nested too deep'}.") from None
        else:
            schema = self.json
        if not isinstance(schema, dict):
            raise _fault("json", f"must be a JSON schema, which is an object, got {show(schema)}.")
        if _too_deep(schema):
            raise _fault("json", f"is nested more than {MAX_SCHEMA_DEPTH} levels deep.")


def _too_deep(value: object) -> bool:
    """Whether containers of a JSON value are nested deeper than the limit."""
    level: list[Any] = [value]
    for _ in range(MAX_SCHEMA_DEPTH + 1):
        level = [item for item in level if isinstance(item, dict | list)]
        if not level:
            return False
        level = [child for item in level for child in (item.values() if isinstance(item, dict) else item)]
    return True


def _text(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise _fault(name, f"must be a string, got {show(value)}.")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise _fault(name, "holds a lone surrogate, which is not valid Unicode.") from None


def _fault(name: str, sentence: str) -> InvalidRequestError:
    return InvalidRequestError(f"structured_outputs.{name} {sentence}", param=f"structured_outputs.{name}")
