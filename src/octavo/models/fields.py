"""Reading a checkpoint's description with errors that name the file and the key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo.protocol.errors import ModelLoadError, UnsupportedModelError

_MISSING = object()
# What float32 arithmetic can take without losing the number altogether.
SMALLEST, LARGEST = 1e-30, 1e30


@dataclass(frozen=True, slots=True)
class Fields:
    """A mapping with typed reads of keys that all begin with `prefix`; messages call them by `source`, the file, and their whole name."""

    source: Path
    values: Mapping[str, Any]
    prefix: str = ""

    def _get(self, key: str, default: Any) -> Any:
        value = self.values.get(self.prefix + key)
        if value is None:
            if default is _MISSING:
                raise ModelLoadError(f"{self.source}: {self.prefix}{key} is missing from the model's description")
            return default
        return value

    def names(self) -> dict[str, Any]:
        """What is there and not null, by its key without the prefix."""
        return {key[len(self.prefix) :]: value for key, value in self.values.items() if value is not None}

    def wrong(self, key: str, value: Any, wanted: str) -> ModelLoadError:
        """The error for a value that can't be."""
        return ModelLoadError(f"{self.source}: {self.prefix}{key} must be {wanted}, not {_short(value)}")

    def unsupported(self, key: str, value: Any, known: str) -> UnsupportedModelError:
        """The error for a value that this version has no code for."""
        return UnsupportedModelError(f"{self.source}: {self.prefix}{key} {_short(value)} is not supported ({known})")

    def integer(self, key: str, default: Any = _MISSING, *, most: int = 1 << 31) -> int:
        """A whole number of at least 1."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise self.wrong(key, value, f"a whole number from 1 to {most}")
        return value

    def optional_integer(self, key: str) -> int | None:
        """A whole number of at least 1, or None where it is absent or null."""
        return None if self.values.get(self.prefix + key) is None else self.integer(key)

    def number(self, key: str, default: Any = _MISSING) -> float:
        """A number over 0 that float32 holds with room to spare."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not SMALLEST <= value <= LARGEST:
            raise self.wrong(key, value, f"a number from {SMALLEST:g} to {LARGEST:g}")
        return float(value)

    def optional_number(self, key: str) -> float | None:
        """Such a number, or None where it is absent or null."""
        return None if self.values.get(self.prefix + key) is None else self.number(key)

    def number_or_none(self, key: str, default: float | None) -> float | None:
        """Such a number, None where it is null, and `default` where it is absent."""
        return self.optional_number(key) if self.prefix + key in self.values else default

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self.wrong(key, value, "true or false")
        return value

    def text(self, key: str, default: Any = _MISSING) -> str:
        """A string."""
        value = self._get(key, default)
        if not isinstance(value, str):
            raise self.wrong(key, value, "a string")
        return value

    def texts(self, key: str) -> list[str] | None:
        """A list of strings, or None where it is absent or null."""
        value = self.values.get(self.prefix + key)
        if value is not None and not (isinstance(value, list) and all(isinstance(item, str) for item in value)):
            raise self.wrong(key, value, "a list of strings")
        return value

    def fields(self, key: str) -> Fields | None:
        """A nested object, or None where it is absent or null."""
        value = self.values.get(self.prefix + key)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.wrong(key, value, "an object")
        prefix = f"{self.prefix}{key}."
        return Fields(self.source, {f"{prefix}{name}": item for name, item in value.items()}, prefix)


def _short(value: Any) -> str:
    """A value for a message, which must stay a sentence whatever the file holds."""
    try:
        text = repr(value)
    except ValueError:  # a whole number of thousands of digits
        text = "a number of thousands of digits"
    return text if len(text) <= 80 else f"{text[:77]}..."
