"""Jinja in a sandbox that a template can't keep busy for ever.

Jinja's own bounds the length of a range and what a template reaches. Here each turn of a loop, each call of a macro and each item that a
filter maps or selects looks at the clock, and nothing grows large in one operation.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import jinja2
import jinja2.nodes as nodes
import jinja2.visitor
from jinja2.sandbox import ImmutableSandboxedEnvironment
from markupsafe import Markup

from octavo.text.template_bounds import (
    BOUNDED_FILTERS,
    MAX_ITEMS,
    WITHOUT_FILTERS,
    WITHOUT_GLOBALS,
    BoundedEscapeFormatter,
    BoundedFormatter,
    bounded_arguments,
    check_percent,
)
from octavo.text.template_sizes import MAX_RENDERED_CHARS, check_size, check_text

MAX_SECONDS = 10.0
_deadline: ContextVar[float] = ContextVar("deadline", default=float("inf"))


@contextmanager
def time_limit() -> Iterator[None]:
    """Templates that are rendered within get MAX_SECONDS, all together; TimeoutError leaves one that takes longer."""
    before = _deadline.set(time.monotonic() + MAX_SECONDS)
    try:
        yield
    finally:
        _deadline.reset(before)


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, with these bounds."""

    # `"x" * 10**12` is one operation, which no bound on time or output can stop.
    intercepted_binops = frozenset({"*", "**", "%", "+"})

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.filters |= BOUNDED_FILTERS
        for name in WITHOUT_FILTERS:
            del self.filters[name]
        for name in WITHOUT_GLOBALS:
            del self.globals[name]
        self.finalize = _checked

    def call_binop(self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any) -> Any:
        """Computes `left operator right` unless its result would be huge."""
        if operator == "%" and isinstance(left, (str, bytes)):
            check_percent(left, right)
        if operator == "+" and isinstance(left, (str, bytes, list, tuple)) and isinstance(right, (str, bytes, list, tuple)):
            check_size(len(left) + len(right), MAX_RENDERED_CHARS if isinstance(left, (str, bytes)) else MAX_ITEMS)
        if operator == "*" and isinstance(left, int) and isinstance(right, int) and left.bit_length() + right.bit_length() > 65536:
            raise OverflowError("a number is too large")
        for text, times in ((left, right), (right, left)) if operator == "*" else ():
            most = MAX_RENDERED_CHARS if isinstance(text, (str, bytes)) else MAX_ITEMS
            if isinstance(text, (str, bytes, list, tuple)) and isinstance(times, int) and len(text) * times > most:
                raise OverflowError("a repeated value is too long")
        if operator == "**" and isinstance(left, int) and isinstance(right, int) and left.bit_length() * right > 4096:
            raise OverflowError("a power is too large")
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: jinja2.runtime.Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805 - as jinja2 names them
        """As jinja's; methods of texts that would make a huge one are refused."""
        return super().call(__context, __obj, *bounded_arguments(__obj, args, kwargs), **kwargs)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """`str.format` and `str.format_map` in jinja's sandbox, with bounds on what they write; None for any other `value`."""
        if super().wrap_str_format(value) is None:
            return None
        text = value.__self__

        def write(*args: Any, **kwargs: Any) -> str:
            if value.__name__ == "format_map":
                (kwargs,), args = args, ()
            formatter = BoundedEscapeFormatter(self, escape=text.escape) if isinstance(text, Markup) else BoundedFormatter(self)
            return type(text)(formatter.vformat(text, args, kwargs))  # type: ignore[no-any-return]

        return write

    @property
    def has_time(self) -> bool:
        """True; raises TimeoutError when the time is over. Compiled templates ask for it."""
        if time.monotonic() > _deadline.get():
            raise TimeoutError(f"it runs for more than {MAX_SECONDS:g} seconds")
        return True

    def call_filter(self, *arguments: Any, **options: Any) -> Any:
        """As jinja's; what `map` calls for each item."""
        return self.has_time and super().call_filter(*arguments, **options)

    def call_test(self, *arguments: Any, **options: Any) -> Any:
        """As jinja's; what `select` and its like call for each item."""
        return self.has_time and super().call_test(*arguments, **options)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        return _Clocks().visit(super()._parse(source, name, filename))  # type: ignore[no-any-return]


def _checked(value: Any) -> Any:
    """What is to be written, unless it would be huge."""
    check_text(value)
    return value


class _Clocks(jinja2.visitor.NodeTransformer):
    """Makes loops and macros ask for the time, and keeps joined texts short."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802 - jinja2 calls it by this name
        """Each turn, and each item that the loop's condition leaves out."""
        self.generic_visit(node)
        node.body.insert(0, _ask(node))
        if node.test is not None:
            node.test = nodes.And(_time(node), node.test, lineno=node.lineno)
        return node

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:  # noqa: N802 - jinja2 calls it by this name
        """Each call: macros may call themselves."""
        self.generic_visit(node)
        node.body.insert(0, _ask(node))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802 - jinja2 calls it by this name
        """`a ~ b` joins, with the bound of the filter."""
        self.generic_visit(node)
        return nodes.Filter(nodes.List(node.nodes, lineno=node.lineno), "join", [], [], None, None, lineno=node.lineno)


def _time(where: nodes.Node) -> nodes.Expr:
    return nodes.EnvironmentAttribute("has_time", lineno=where.lineno)


def _ask(where: nodes.Node) -> nodes.Stmt:
    return nodes.ExprStmt(_time(where), lineno=where.lineno)
