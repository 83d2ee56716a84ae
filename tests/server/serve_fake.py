"""A process that runs `octavo.server.run.serve` over the fake model: `serve_fake.py PORT MODE [SHUTDOWN_TIMEOUT]`.

MODE is "quick" (with an access log), "held" (after ten tokens, until SIGUSR1 comes), "endless", "torrent" (endless without a pause),
"mortal" (the engine dies as soon as it has said ten tokens), "slow-load", "no-model", "saves", "slow-save", "stuck-save" or "no-save" (of
a prefix cache, which says so, never ends, or fails).
"""

from __future__ import annotations

import asyncio
import signal
import sys

from fake_llm import FakeLLM

from octavo.api.async_llm import AsyncLLM
from octavo.config.engine import EngineConfig
from octavo.config.server import ServerOptions
from octavo.protocol.errors import ModelLoadError, OctavoError, PrefixCacheError
from octavo.server import run
from octavo.server.run import serve

MODE = sys.argv[2]


class Mortal(FakeLLM):
    async def _wait_for_turn(self, call) -> None:
        if call.tokens == 10:
            self.die()
        await super()._wait_for_turn(call)


class Held(FakeLLM):
    def __post_init__(self) -> None:
        super().__post_init__()
        self.released = asyncio.Event()

    async def _wait_for_turn(self, call) -> None:
        if call.tokens == 10:
            await self.released.wait()
        await super()._wait_for_turn(call)


class Saving(FakeLLM):
    async def save_prefix_cache(self) -> int:
        print("saving", flush=True)
        if MODE in ("slow-save", "stuck-save"):
            await asyncio.sleep(60)
        if MODE == "no-save":
            raise PrefixCacheError("the prefix cache could not be saved to /x: No space left on device")
        return 7

    async def close(self, *, save: bool = True) -> None:
        print(f"closing, save={save}", flush=True)


if MODE == "stuck-save":
    run.SAVE_SECONDS = 0.2
if MODE == "mortal":
    # Long enough for probes from a busy machine.
    run.DEATH_SECONDS = 4.0


async def start(config: EngineConfig, **_: object) -> FakeLLM:
    print("loading", flush=True)
    if MODE == "no-model":
        raise ModelLoadError("model.gguf: the file ends early")
    if MODE == "slow-load":
        await asyncio.sleep(60)
    if MODE == "quick":
        return FakeLLM(delay=0.02)
    if MODE == "held":
        held = Held()
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, held.released.set)
        return held
    if MODE == "torrent":
        return FakeLLM(reply="x" * 1000, endless=True, max_model_len=10**9)
    if MODE.endswith(("save", "saves")):
        llm = Saving(delay=0.01, endless=True, max_model_len=10**9)
        llm.info.saves_prefix_cache = True
        return llm
    kind = Mortal if MODE == "mortal" else FakeLLM
    return kind(delay=0.01, endless=True, max_model_len=10**9)


AsyncLLM.start = start
timeout = float(sys.argv[3]) if len(sys.argv) > 3 else 30.0
options = ServerOptions(port=int(sys.argv[1]), shutdown_timeout=timeout, access_log=MODE == "quick")
try:
    sys.exit(serve(EngineConfig(), options))
except OctavoError as error:
    sys.exit(f"octavo: {error.message}")
