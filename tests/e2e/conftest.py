from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from model_copy import copy_model
from processes import is_alive
from serve_process import LiveServer


@pytest.fixture(scope="session")
def tiny_llama(fixtures_dir: Path) -> Path:
    return fixtures_dir / "tiny-llama"


@pytest.fixture(scope="session")
def long_llama(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """tiny-llama with a context of 8,192 tokens, so that a stream lasts for seconds."""
    return copy_model(tiny_llama, tmp_path_factory.mktemp("models") / "long-llama", config={"max_position_embeddings": 8192})


@pytest.fixture(scope="module")
def server(tiny_llama: Path) -> Iterator[LiveServer]:
    """One server for a module, which must end well."""
    with LiveServer(tiny_llama, "--served-model-name", "tiny") as live:
        yield live
        assert live.stop() == 0
        assert not any(map(is_alive, live.pids))
        assert live.left_behind == []
        assert "Traceback" not in live.stderr


@pytest.fixture
def http(server: LiveServer) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


@pytest.fixture
def client(server: LiveServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=30) as made:
        yield made


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Any:
    """What the server said stands beside a failure."""
    report = yield
    if report.failed:
        for value in getattr(item, "funcargs", {}).values():
            if isinstance(value, LiveServer):
                report.sections.append(("octavo serve", value.output()))
    return report
