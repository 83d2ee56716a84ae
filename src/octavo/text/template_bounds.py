"""Operations of Jinja on texts that could make a huge one at once, refused where they would."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import wraps
from string import Formatter
from typing import Any

from jinja2 import filters
from jinja2.nodes import EvalContext
from jinja2.sandbox import SandboxedEscapeFormatter, SandboxedFormatter
from jinja2.utils import pass_eval_context

# Far beyond any context; a template that writes more is running away.
MAX_RENDERED_CHARS = 16 * 2**20
MAX_ITEMS = 2**20
_DIGITS = re.compile(r"[0-9]+")


def check_size(size: Any, most: int = MAX_RENDERED_CHARS) -> None:
    """Raises OverflowError for a `size`, of a text by default, that is over `most`. What is no number is for others to refuse."""
    if isinstance(size, (int, float)) and size > most:
        raise OverflowError("a text or list that it makes is too long")


def check_percent(text: str | bytes, values: Any) -> None:
    """Raises OverflowError where `text % values` could be huge by its widths: numbers in it, or among `values` for a `*`."""
    shown = text if isinstance(text, str) else text.decode("latin-1")
    widths = [_number(digits) for digits in _DIGITS.findall(shown)]
    if "*" in shown:
        widths += [abs(value) for value in (values if isinstance(values, tuple) else (values,)) if isinstance(value, int)]
    check_size(shown.count("%") * max(widths, default=0))


def check_method(method: Callable[..., Any], arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
    """Raises OverflowError for the call of a method of a text, bytes or a number that would make a huge one."""
    text, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
    given = (*arguments, *named.values())
    if isinstance(text, int) and name == "to_bytes":
        check_size(max((value for value in given if isinstance(value, int)), default=0))
    if not isinstance(text, (str, bytes)):
        return
    if name in ("center", "ljust", "rjust", "zfill"):
        check_size(given[0] if given else 0)
    elif name == "expandtabs" and given and isinstance(given[0], int):
        check_size(len(text) + text.count("\t" if isinstance(text, str) else b"\t") * given[0])  # type: ignore[arg-type]
    elif name == "replace" and len(given) > 1:
        _check_replace(text, given[0], given[1])
    elif name == "join" and given and isinstance(given[0], (list, tuple)):
        _check_join(text, given[0])


def _number(digits: str) -> int:
    return int(digits) if len(digits) < 18 else 10**18


def _check_replace(text: Any, old: Any, new: Any) -> None:
    if isinstance(old, type(text)) and isinstance(new, type(text)):
        check_size(len(text) + text.count(old) * max(0, len(new) - len(old)))


def _check_join(separator: Any, items: Iterable[Any]) -> None:
    sizes = [len(item) for item in items if isinstance(item, (str, bytes))]
    check_size(sum(sizes) + len(separator) * len(sizes))


@wraps(filters.do_center)
def _center(value: str, width: int = 80) -> str:
    check_size(width)
    return filters.do_center(value, width)


@wraps(filters.do_format)
def _format(value: str, *args: Any, **kwargs: Any) -> str:
    check_percent(str(value), args)
    return filters.do_format(value, *args, **kwargs)


@wraps(filters.do_indent)
def _indent(s: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    lines = len(s.splitlines()) + 1
    check_size(len(s) + lines * (len(width) if isinstance(width, str) else width))
    return filters.do_indent(s, width, first, blank)


@pass_eval_context
def _replace(eval_ctx: EvalContext, s: str, old: str, new: str, count: int | None = None) -> str:
    _check_replace(str(s), str(old), str(new))
    return filters.do_replace(eval_ctx, s, old, new, count)


@pass_eval_context
def _join(eval_ctx: EvalContext, value: Iterable[Any], d: str = "", attribute: str | int | None = None) -> str:
    if attribute is not None:
        value = map(filters.make_attrgetter(eval_ctx.environment, attribute), value)
    items = list(value)
    _check_join(str(d), items)
    return filters.sync_do_join(eval_ctx, items, d)


@wraps(filters.do_batch)
def _batch(value: Iterable[Any], linecount: int, fill_with: Any = None) -> Any:
    check_size(linecount, MAX_ITEMS)
    return filters.do_batch(value, linecount, fill_with)


BOUNDED_FILTERS = {"center": _center, "format": _format, "indent": _indent, "replace": _replace, "join": _join, "batch": _batch}


class _Bounded(Formatter):
    """What `str.format` writes, field by field."""

    _written = 0

    def format_field(self, value: Any, format_spec: str) -> Any:
        """One field. Raises OverflowError where it or all together are too long."""
        for digits in _DIGITS.findall(format_spec):
            check_size(_number(digits))
        text = super().format_field(value, format_spec)
        self._written += len(text)
        check_size(self._written)
        return text


class BoundedFormatter(_Bounded, SandboxedFormatter):
    """`str.format` of a text."""


class BoundedEscapeFormatter(_Bounded, SandboxedEscapeFormatter):
    """`str.format` of a text that is marked as safe."""
