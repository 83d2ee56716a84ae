"""Jinja in a sandbox that a template can't keep busy for ever.

Jinja's own bounds the length of a range and what a template reaches. Here each turn of a loop, each call of a macro and each item that a
filter maps or selects looks at the clock, and nothing grows large in one operation.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import jinja2
import jinja2.nodes as nodes
import jinja2.visitor
from jinja2.sandbox import ImmutableSandboxedEnvironment

# Far beyond any context; a template that writes more is running away.
MAX_RENDERED_CHARS = 16 * 2**20
MAX_ITEMS = 2**20
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
    intercepted_binops = frozenset({"*", "**"})

    def call_binop(self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any) -> Any:
        """Computes `left operator right` unless its result would be huge."""
        for text, times in ((left, right), (right, left)):
            most = MAX_RENDERED_CHARS if isinstance(text, (str, bytes)) else MAX_ITEMS
            if isinstance(text, (str, bytes, list, tuple)) and isinstance(times, int) and len(text) * times > most:
                raise OverflowError("a repeated value is too long")
        if operator == "**" and isinstance(left, int) and isinstance(right, int) and left.bit_length() * right > 4096:
            raise OverflowError("a power is too large")
        return super().call_binop(context, operator, left, right)

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


class _Clocks(jinja2.visitor.NodeTransformer):
    """Makes loops and macros ask for the time."""

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


def _time(where: nodes.Node) -> nodes.Expr:
    return nodes.EnvironmentAttribute("has_time", lineno=where.lineno)


def _ask(where: nodes.Node) -> nodes.Stmt:
    return nodes.ExprStmt(_time(where), lineno=where.lineno)
