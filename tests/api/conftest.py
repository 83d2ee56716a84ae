from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from model_copy import copy_model
from processes import is_alive
from spy_recorder import SpyRecorder

from octavo import LLM, AsyncLLM
from octavo.config.engine import BackendConfig, CacheConfig, EngineConfig, ModelConfig


@pytest.fixture(scope="session")
def tiny_llama(fixtures_dir: Path) -> Path:
    return fixtures_dir / "tiny-llama"


@pytest.fixture(scope="session")
def long_llama(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """tiny-llama with a context of 8,192 tokens, so that a request lasts for seconds."""
    return copy_model(tiny_llama, tmp_path_factory.mktemp("models") / "long-llama", config={"max_position_embeddings": 8192})


@pytest.fixture(scope="session")
def llm(tiny_llama: Path) -> Iterator[LLM]:
    """One LLM for every test that leaves it as it was."""
    with LLM(str(tiny_llama), quiet=True) as shared:
        yield shared


@pytest.fixture
def changed_model(tiny_llama: Path, tmp_path: Path) -> Callable[..., str]:
    """Makes a copy of tiny-llama with keys of its JSON files changed."""
    return lambda **changes: str(copy_model(tiny_llama, tmp_path / "model", **changes))


@pytest.fixture(scope="module")
def recorder() -> SpyRecorder:
    return SpyRecorder()


@pytest.fixture(scope="module")
def served_model(tiny_llama: Path) -> Path:
    """The model of `allm`."""
    return tiny_llama


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def allm(served_model: Path, recorder: SpyRecorder) -> AsyncIterator[AsyncLLM]:
    """One AsyncLLM for the tests of a module; no request may be left at its end."""
    # Tests that act while a request runs serve the long model, and on the native backend it would be over too soon.
    backend = BackendConfig("reference" if served_model.name == "long-llama" else "auto")
    config = EngineConfig(model=ModelConfig(str(served_model)), cache=CacheConfig(kv_cache_memory=64 << 20), backend=backend, seed=0)
    async with asyncio.timeout(60):
        made = await AsyncLLM.start(config, recorder=recorder, quiet=True)
    yield made
    alive = made.is_alive
    pid = made.engine_pid
    await asyncio.wait_for(made.close(), 10)
    assert not is_alive(pid)
    assert not alive or made.stats.blocks_used == made.stats.running == made.stats.waiting == 0
