"""Operations of Jinja on texts that could make a huge one at once, refused where they would."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import wraps
from string import Formatter
from typing import Any

from jinja2 import Environment, filters
from jinja2.nodes import EvalContext
from jinja2.sandbox import SandboxedEscapeFormatter, SandboxedFormatter
from jinja2.utils import pass_environment, pass_eval_context

from octavo.text.template_sizes import check_size, check_text, extent_of

MAX_ITEMS = 2**20
_DIGITS = re.compile(r"[0-9]+")


def check_percent(text: str | bytes, values: Any) -> None:
    """Raises OverflowError where `text % values` could be huge by its widths: numbers in it, or among `values` for a `*`."""
    shown = text if isinstance(text, str) else text.decode("latin-1")
    # Of a dictionary each place may take the longest value.
    longest = max((extent_of(value).chars for value in values.values()), default=0) if isinstance(values, Mapping) else 0
    check_size(len(shown) + shown.count("%") * longest if longest else extent_of(values).chars)
    widths = [_number(digits) for digits in _DIGITS.findall(shown)]
    if "*" in shown:
        widths += [abs(value) for value in (values if isinstance(values, tuple) else (values,)) if isinstance(value, int)]
    check_size(shown.count("%") * max(widths, default=0))


def bounded_arguments(method: Callable[..., Any], arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
    """`arguments` for a method of a text, bytes or a number, as a list where they can be gone through only once. Raises OverflowError for a
    call that would make a huge one."""
    text, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
    given = (*arguments, *named.values())
    if isinstance(text, int) and name == "to_bytes":
        check_size(max((value for value in given if isinstance(value, int)), default=0))
    if not isinstance(text, (str, bytes)):
        return arguments
    if name in ("center", "ljust", "rjust", "zfill"):
        check_size(given[0] if given else 0)
    elif name == "expandtabs" and given and isinstance(given[0], int):
        check_size(len(text) + text.count("\t" if isinstance(text, str) else b"\t") * given[0])  # type: ignore[arg-type]
    elif name == "replace" and len(given) > 1:
        _check_replace(text, given[0], given[1])
    elif name == "translate" and given and isinstance(given[0], Mapping):
        check_size(len(text) * max((len(value) for value in given[0].values() if isinstance(value, (str, bytes))), default=1))
    elif name == "join" and isinstance(given[0] if given else None, Iterable):
        items = list(given[0])
        _check_join(text, items)
        return (items,)
    return arguments


def _number(digits: str) -> int:
    return int(digits) if len(digits) < 18 else 10**18


def _check_replace(text: Any, old: Any, new: Any) -> None:
    if isinstance(old, type(text)) and isinstance(new, type(text)):
        check_size(len(text) + text.count(old) * max(0, len(new) - len(old)))


def _check_join(separator: Any, items: Iterable[Any]) -> None:
    sizes = [len(item) if isinstance(item, (str, bytes)) else extent_of(item).chars for item in items]
    check_size(sum(sizes) + len(separator) * len(sizes))


@wraps(filters.do_center)
def _center(value: str, width: int = 80) -> str:
    check_size(width)
    return filters.do_center(value, width)


@wraps(filters.do_format)
def _format(value: str, *args: Any, **kwargs: Any) -> str:
    check_percent(str(value), kwargs or args)
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


@wraps(filters.sync_do_slice)
def _slice(value: Collection[Any], slices: int, fill_with: Any = None) -> Any:
    check_size(slices, MAX_ITEMS)
    return filters.sync_do_slice(value, slices, fill_with)


@pass_environment
def _sum(environment: Environment, iterable: Iterable[Any], attribute: str | int | None = None, start: Any = 0) -> Any:
    items = list(iterable if attribute is None else map(filters.make_attrgetter(environment, attribute), iterable))
    check_size(sum(len(item) for item in items if isinstance(item, (list, tuple))), MAX_ITEMS)
    return sum(items, start)


@pass_environment
def _wordwrap(
    environment: Environment,
    s: str,
    width: int = 79,
    break_long_words: bool = True,
    wrapstring: str | None = None,
    break_on_hyphens: bool = True,
) -> str:
    breaks = len(s) // max(1, width) + len(s.split()) + s.count("-")
    check_size(len(s) + breaks * len(wrapstring or "x"))
    return filters.do_wordwrap(environment, s, width, break_long_words, wrapstring, break_on_hyphens)


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as models were trained on it: no HTML escapes, unlike Jinja's own filter."""
    extent = extent_of(value)
    most = 0 if indent is None else len(indent) if isinstance(indent, str) else indent
    check_size(extent.chars + extent.items * (extent.depth * most + sum(map(len, separators or ()))))
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


BOUNDED_FILTERS: dict[str, Callable[..., Any]] = {
    "center": _center,
    "format": _format,
    "indent": _indent,
    "replace": _replace,
    "join": _join,
    "batch": _batch,
    "slice": _slice,
    "sum": _sum,
    "wordwrap": _wordwrap,
    "tojson": to_json,
}
# Filters that make a text of whatever they get, and what has no use in a prompt.
_OF_TEXTS = ("string", "upper", "lower", "capitalize", "title", "trim", "striptags", "escape", "e", "forceescape", "safe", "wordcount")
_OF_VALUES = ("pprint", "xmlattr")
WITHOUT_FILTERS, WITHOUT_GLOBALS = ("urlize",), ("lipsum",)


def _checking(filter_: Callable[..., Any]) -> Callable[..., Any]:
    """The filter, which refuses values of which it would make a huge text."""
    place = int(hasattr(filter_, "jinja_pass_arg"))

    @wraps(filter_)
    def checked(*arguments: Any, **named: Any) -> Any:
        check_text(arguments[place] if len(arguments) > place else None)
        return filter_(*arguments, **named)

    return checked


BOUNDED_FILTERS |= {name: _checking(filters.FILTERS[name]) for name in (*_OF_TEXTS, *_OF_VALUES)}


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
