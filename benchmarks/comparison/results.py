"""The raw results: one JSON file, from which everything that is shown comes."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

FORMAT = 1


class ResultsError(Exception):
    """A file that holds no results."""


def write_results(path: Path, results: dict[str, Any]) -> None:
    """Writes them; numbers that are not finite become null."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(_plain({"format": FORMAT, **results}), indent=1, allow_nan=False) + "\n")


def read_results(path: Path) -> dict[str, Any]:
    """Reads them. Raises ResultsError."""
    try:
        found = json.loads(path.read_text())
    except OSError as error:
        raise ResultsError(f"{path} can't be read: {error.strerror or error}") from None
    except json.JSONDecodeError as error:
        raise ResultsError(f"{path} is no JSON: {error}") from None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise ResultsError(f"{path} holds no results of this comparison (format {FORMAT})")
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(name): _plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, float):
        # Six digits are more than any measurement here has.
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value
