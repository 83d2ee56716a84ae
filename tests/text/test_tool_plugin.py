"""Tool call parsers from a file, as docs/tools.md shows one."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from octavo.config.server import ServerOptions
from octavo.protocol.errors import ConfigError, OctavoError
from octavo.server.context import check_parsers
from octavo.text.answer import CallArguments, CallStart, Content, merged
from octavo.text.tools.parser import ToolParser
from octavo.text.tools.plugin import load_tool_parsers
from octavo.text.tools.registry import TOOL_PARSERS

PAGE = Path(__file__).resolve().parents[2] / "docs/tools.md"
EXAMPLE = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
IMPORTS = "from octavo.text.tools.parser import ToolParser\nfrom octavo.text.tools.registry import register_tool_parser\n"


@pytest.fixture(autouse=True)
def only_the_known(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = dict(TOOL_PARSERS)
    yield
    TOOL_PARSERS.clear()
    TOOL_PARSERS.update(before)


@pytest.fixture
def arrow(tmp_path: Path) -> Path:
    assert EXAMPLE is not None
    (tmp_path / "arrow.py").write_text(EXAMPLE[1])
    return tmp_path / "arrow.py"


def test_the_example_of_the_page_works(arrow: Path) -> None:
    options = ServerOptions(tool_parser_plugin=arrow, tool_call_parser="arrow")
    check_parsers(options)
    check_parsers(options)  # runs the file once
    parser = TOOL_PARSERS["arrow"]
    text = 'Hm\nI do -> f {"a": 1}\n'
    whole = [Content("Hm\nI do "), CallStart("f"), CallArguments('{"a": 1}')]
    for size in (1, 3, 100):
        reader = parser({"f"})
        pieces = [piece for start in range(0, len(text), size) for piece in reader.feed(text[start : start + size])]
        assert merged([*pieces, *reader.finish()]) == whole
    assert load_tool_parsers(str(arrow)) == ("arrow",)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (None, ["can't be read", "No such file"]),
        ("x = 1\n\ny = z\n", ["line 3", "NameError", "'z'"]),
        ("def f(:\n", ["line 1", "SyntaxError"]),
        ("x = 1\n", ["registers no tool parser"]),
        (f"{IMPORTS}@register_tool_parser('p')\nclass P(ToolParser):\n    pass\n", ["line 3", "P lacks feed, finish, form"]),
        (f"{IMPORTS}@register_tool_parser('p')\nclass P:\n    pass\n", ["is no subclass of ToolParser"]),
        (f"{IMPORTS}register_tool_parser('hermes')\n", ["line 3", "'hermes' already"]),
        (f"{IMPORTS}register_tool_parser()\n", ["needs a name"]),
        ("import sys\nsys.exit()\n", ["line 2", "fails with SystemExit"]),
        ("import sys\nsys.exit(0)\n", ["line 2", "fails with SystemExit: 0"]),
        ("class E(Exception):\n    def __str__(self):\n        return 1 / 0\n\nraise E\n", ["line 5", "fails with E"]),
        ("class E(BaseException):\n    def __str__(self):\n        raise SystemExit\n\nraise E\n", ["line 5", "fails with E"]),
    ],
)
def test_a_file_that_can_not_be_used(tmp_path: Path, source: str | None, words: list[str]) -> None:
    path = tmp_path / "wrong.py"
    if source is not None:
        path.write_text(source)
    before = dict(TOOL_PARSERS)
    with pytest.raises(ConfigError) as refused:
        check_parsers(ServerOptions(tool_parser_plugin=str(path)))
    assert refused.value.param == "tool_parser_plugin"
    assert str(path) in refused.value.message
    for word in words:
        assert word in refused.value.message
    assert before == TOOL_PARSERS


def test_a_file_that_fails_halfway_registers_nothing(arrow: Path) -> None:
    arrow.write_text(arrow.read_text() + "\nraise RuntimeError('no')\n")
    with pytest.raises(ConfigError, match="RuntimeError: no"):
        load_tool_parsers(str(arrow))
    assert "arrow" not in TOOL_PARSERS


def test_a_name_that_no_file_registers(arrow: Path) -> None:
    with pytest.raises(ConfigError, match=r"tool_call_parser: must be one of hermes, .*, arrow, not 'other'"):
        check_parsers(ServerOptions(tool_parser_plugin=str(arrow), tool_call_parser="other"))


BROKEN = """
@register_tool_parser("broken")
class Broken(ToolParser):
    what = None

    def __init__(self, tool_names):
        super().__init__(tool_names)
        Broken.do("init")

    def feed(self, text):
        return Broken.do("feed") or []

    def finish(self):
        return Broken.do("finish") or []

    @staticmethod
    def form(template):
        return Broken.do("form")

    @staticmethod
    def new_call_id():
        return Broken.do("new_call_id")

    @staticmethod
    def do(where):
        return Broken.what(where)
"""


@pytest.fixture
def broken(tmp_path: Path) -> type[ToolParser]:
    path = tmp_path / "broken.py"
    path.write_text(IMPORTS + BROKEN)
    load_tool_parsers(str(path))
    return TOOL_PARSERS["broken"]


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3), KeyboardInterrupt(), StopIteration(), asyncio.CancelledError()])
@pytest.mark.parametrize("where", ["init", "feed", "finish", "form", "new_call_id"])
def test_what_a_parser_raises_names_it(broken: Any, where: str, error: BaseException) -> None:
    def fail(place: str) -> None:
        if place == where:
            raise error

    broken.__mro__[1].what = staticmethod(fail)
    with pytest.raises(OctavoError, match=r"^The tool call parser 'broken' fails in line 28 of its file with ") as refused:
        use(broken, where)
    assert type(error).__name__ in refused.value.message
    assert refused.value.status == 500


@pytest.mark.parametrize(
    ("where", "given", "words"),
    [
        ("feed", 5, "feed gives int instead of a list of pieces"),
        ("finish", ["x"], "finish gives str instead of a piece"),
        ("feed", [Content(5)], "feed gives int where a text belongs"),  # type: ignore[arg-type]
        ("feed", [CallStart(None)], "feed gives NoneType where a text belongs"),  # type: ignore[arg-type]
        ("finish", [CallArguments("{}")], "finish gives arguments before any call has begun"),
        ("form", None, "form gives NoneType instead of a CallForm"),
        ("new_call_id", 7, "new_call_id gives int where a text belongs"),
    ],
)
def test_what_a_parser_gives_is_looked_at(broken: Any, where: str, given: object, words: str) -> None:
    broken.__mro__[1].what = staticmethod(lambda place: given if place == where else None)
    with pytest.raises(OctavoError, match=words):
        use(broken, where)


def use(parser: type[ToolParser], method: str) -> None:
    """Comes to the method, and no further."""
    if method == "form":
        parser.form("")
    elif method == "new_call_id":
        parser.new_call_id()
    else:
        reader = parser({"f"})
        reader.feed("x")
        reader.finish()


def test_markers_are_looked_at(tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text(IMPORTS + BROKEN.replace("what = None", "markers = '-> '"))
    with pytest.raises(ConfigError, match="gives 'broken' markers that are no tuple of strings"):
        load_tool_parsers(str(path))
    assert "broken" not in TOOL_PARSERS
