from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from model_copy import copy_model

from octavo import LLM


@pytest.fixture(scope="session")
def tiny_llama(fixtures_dir: Path) -> Path:
    return fixtures_dir / "tiny-llama"


@pytest.fixture(scope="session")
def llm(tiny_llama: Path) -> Iterator[LLM]:
    """One LLM for every test that leaves it as it was."""
    with LLM(str(tiny_llama), quiet=True) as shared:
        yield shared


@pytest.fixture
def changed_model(tiny_llama: Path, tmp_path: Path) -> Callable[..., str]:
    """Makes a copy of tiny-llama with keys of its JSON files changed."""
    return lambda **changes: str(copy_model(tiny_llama, tmp_path / "model", **changes))
