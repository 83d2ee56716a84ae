"""What a benchmark found: tables for people, one JSON object for programs."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from octavo._version import __version__
from octavo.protocol.errors import ConfigError


@dataclass(slots=True)
class Table:
    """Rows of text under heads; the first column is left-aligned, the others right. `note` stands below."""

    title: str
    heads: list[str]
    rows: list[list[str]] = field(default_factory=list)
    note: str = ""


@dataclass(slots=True)
class Report:
    """The result of `octavo bench COMMAND`. `settings` is what was asked for, `results` what was measured: plain JSON values, with the
    unit in each name."""

    command: str
    machine: dict[str, Any] | None
    settings: dict[str, Any]
    results: dict[str, Any]
    tables: list[Table]

    def json(self) -> str:
        """One object; numbers that are not finite become null."""
        return json.dumps(
            _plain(
                {
                    "octavo": __version__,
                    "command": self.command,
                    "time": datetime.now(UTC).isoformat(timespec="seconds"),
                    "machine": self.machine,
                    "settings": self.settings,
                    "results": self.results,
                }
            ),
            indent=2,
            allow_nan=False,
        )


def publish(report: Report, json_target: str | None) -> None:
    """Prints the tables, and writes the JSON to the file `json_target`; for "-" JSON goes to stdout and the tables to stderr.

    Raises ConfigError for a file that can't be written.
    """
    stream = sys.stderr if json_target == "-" else sys.stdout
    for table in report.tables:
        print("\n".join(written(table)), end="\n\n", file=stream)
    if json_target == "-":
        print(report.json())
    elif json_target is not None:
        write_file(json_target, report.json() + "\n")


def write_file(target: str, text: str, param: str = "json_file") -> None:
    """Writes the file that the field `param` names. Raises ConfigError for one that can't be written."""
    try:
        Path(target).write_text(text)
    except OSError as error:
        raise ConfigError(f"{param}: can't write {target}: {error.strerror or error}", param=param) from None


def check_target(target: str | None, param: str = "json_file") -> None:
    """Raises ConfigError, before minutes of measuring, for a file that can't be written."""
    if target not in (None, "-"):
        try:
            with Path(str(target)).open("a"):
                pass
        except OSError as error:
            raise ConfigError(f"{param}: can't write {target}: {error.strerror or error}", param=param) from None


def written(table: Table) -> list[str]:
    """The lines of a table: title, heads, a rule, rows, note."""
    cells = [table.heads, *table.rows]
    widths = [max(len(row[column]) for row in cells) for column in range(len(table.heads))]

    def line(row: list[str]) -> str:
        first, *others = zip(row, widths, strict=True)
        return "  ".join([first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]).rstrip()

    rule = "─" * (sum(widths) + 2 * (len(widths) - 1))
    lines = [table.title, line(table.heads), rule, *map(line, table.rows)]
    return [*lines, table.note] if table.note else lines


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def number(value: float | None, digits: int = 1) -> str:
    """A number with thousands marked; a dash for one that isn't known."""
    return "–" if value is None or not math.isfinite(value) else f"{value:,.{digits}f}"


def percent(value: float | None) -> str:
    """A share as a percentage."""
    return "–" if value is None or not math.isfinite(value) else f"{value * 100:.1f}%"


def milliseconds(value: float | None) -> str:
    """Seconds as milliseconds."""
    return number(None if value is None else value * 1e3, 2)


def megabytes(value: float | None) -> str:
    """Bytes as megabytes (10⁶)."""
    return number(None if value is None else value / 1e6, 0)
