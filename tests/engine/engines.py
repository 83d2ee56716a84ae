"""Configurations, requests and a look at what the system still holds, for tests of the engine."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from octavo.config.engine import BackendConfig, CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from octavo.protocol.sampling import SamplingParams
from octavo.protocol.wire import EngineRequest


def config_for(model: Path | str, *, longest: int | None = None, seats: int = 64, **cache: Any) -> EngineConfig:
    """A small engine with one thread, on the backend that is slow enough to act while a request runs."""
    return EngineConfig(
        model=ModelConfig(str(model), max_model_len=longest),
        cache=CacheConfig(**({"kv_cache_memory": 64 << 20} | cache)),
        scheduler=SchedulerConfig(max_num_seqs=seats),
        backend=BackendConfig("reference", threads=1),
    )


def request_for(name: str, *, prompt: list[int] | None = None, max_tokens: int = 8, **sampling: Any) -> EngineRequest:
    params = SamplingParams(**({"temperature": 0.0, "seed": 1, "ignore_eos": True} | sampling), max_tokens=max_tokens)
    return EngineRequest(name, prompt or [5, 6, 7], params)


def children() -> set[int]:
    """Process ids of this process's children, zombies too."""
    mine = str(os.getpid())
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if fields[1] == mine:
                found.add(int(entry.name))
    return found


def is_running(pid: int) -> bool:
    """Whether a process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def socket_folders() -> set[str]:
    """The folders that engines' sockets lie in."""
    return {path.name for path in Path(tempfile.gettempdir()).glob("octavo-*")}
