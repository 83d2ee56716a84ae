from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from octavo.loading.open import open_checkpoint
from octavo.text.tokenizer import Tokenizer, load_tokenizer, tokenizer_from_folder

FIXTURES = Path(__file__).parents[1] / "fixtures"


@cache
def read_tokenizer(name: str) -> Tokenizer:
    if name.startswith("gguf-"):
        return load_tokenizer(open_checkpoint(FIXTURES / name / f"{name.removeprefix('gguf-')}-Q4_0.gguf"))
    return tokenizer_from_folder(FIXTURES / name)


@pytest.fixture(scope="session")
def tokenizer_of() -> Callable[[str], Tokenizer]:
    """A fixture's tokenizer by the name of its folder, read once."""
    return read_tokenizer


@pytest.fixture(scope="session")
def expected_of() -> Callable[[str], dict[str, Any]]:
    """A fixture's expectations by the name of its folder."""

    def read(name: str) -> dict[str, Any]:
        file = "expected-Q4_0.json" if name.startswith("gguf-") else "expected.json"
        result: dict[str, Any] = json.loads((FIXTURES / name / file).read_text("utf-8"))
        return result

    return read


@pytest.fixture(scope="session")
def smollm2(smollm2_path: Path) -> Tokenizer:
    return load_tokenizer(open_checkpoint(smollm2_path))
