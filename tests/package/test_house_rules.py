"""A file is about one noun and stays short, and so does a function."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "src").rglob("*.py"))
FILE_LINES, FUNCTION_LINES = 400, 60


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines from `def` to the end, less those of the parameter list, which a command has one a flag."""
    assert function.end_lineno is not None
    parameters = function.body[0].lineno - function.lineno
    return function.end_lineno - function.lineno + 1 - max(0, parameters - 1)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT / "src")))
def test_files_and_functions_stay_short(path: Path):
    text = path.read_text()
    assert text.count("\n") <= FILE_LINES
    long = {function.name: body_lines(function) for function in functions(ast.parse(text)) if body_lines(function) > FUNCTION_LINES}
    assert not long


def test_every_package_says_what_it_is():
    packages = [path for path in FILES if path.name == "__init__.py"]
    assert len(packages) > 10
    for path in packages:
        assert ast.get_docstring(ast.parse(path.read_text())), path
