"""The engine: a scheduler and an executor, one step at a time, on one thread."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from octavo._version import __version__
from octavo.config.engine import EngineConfig
from octavo.engine.pool_size import PoolSize, size_pool, window_of
from octavo.engine.prefix_folder import PrefixFolder
from octavo.engine.saved_prefixes import SavedPrefixes, identity_of
from octavo.executors.executor import Executor, LoadedModel
from octavo.executors.in_process import InProcessExecutor
from octavo.kvcache.block_hash import CacheScope
from octavo.kvcache.manager import KVCacheManager
from octavo.kvcache.window import Window
from octavo.loading.progress import Progress
from octavo.protocol.errors import ConfigError, PrefixCacheError
from octavo.protocol.vocabulary import Vocabulary
from octavo.protocol.wire import BlocksPage, EngineInfo, EngineOutput, EngineRequest, EngineStats
from octavo.scheduling.scheduler import Scheduler
from octavo.utils.machine import available_memory, total_memory

P = ParamSpec("P")
T = TypeVar("T")

# Before the first step there is nothing to end but the engine.
OUT_OF_MEMORY = "the machine is out of memory: lower gpu_memory_utilization or max_model_len, or serve a smaller or quantized model"


class EngineCore:
    """Token ids in, token ids out. Not safe for use from several threads. `lost` are the requests that the last broken step ended.
    Once it `has_vocabulary`, requests may have a grammar."""

    def __init__(self, scheduler: Scheduler, executor: Executor, info: EngineInfo, prefixes: SavedPrefixes | None = None) -> None:
        self.info = info
        self._scheduler = scheduler
        self._executor = executor
        self._prefixes = prefixes
        self.lost: list[str] = []
        self.has_vocabulary = False

    @property
    def has_work(self) -> bool:
        """Whether `step` would do something."""
        return self._scheduler.has_work

    @property
    def request_ids(self) -> list[str]:
        """Every request that is not finished."""
        return self._scheduler.request_ids

    def use_vocabulary(self, vocabulary: Vocabulary) -> None:
        """Learns the tokens as bytes, which requests with a grammar need."""
        self._executor.use_vocabulary(vocabulary)
        self.has_vocabulary = True

    def add(self, request: EngineRequest) -> None:
        """Queues a request. Raises InvalidRequestError if it can never run."""
        # How many logprobs there may be is the front end's to say.
        request.sampling.verify(self.info.vocab_size, max_logprobs=-1)
        if request.grammar is not None and not self.has_vocabulary:
            raise ValueError("a grammar came before the vocabulary")
        if request.sampling.seed is None:
            raise ValueError("the front end gives every request a seed")
        self._scheduler.add(request)

    def abort(self, request_id: str) -> bool:
        """Forgets a request and frees its blocks; False if it is not known (any more)."""
        return self._scheduler.abort(request_id)

    def reset_prefix_cache(self, *, reset_running_requests: bool = False) -> bool:
        """Forgets what blocks hold; False, with nothing forgotten, while any is in use. See Scheduler.reset_prefix_cache."""
        return self._scheduler.reset_prefix_cache(reset_running_requests=reset_running_requests)

    def blocks(self, offset: int, limit: int) -> BlocksPage:
        """A part of the pool. See Scheduler.blocks."""
        return self._scheduler.blocks(offset, limit)

    def save_prefix_cache(self) -> int:
        """Saves all blocks that can be found to the folder that the engine was started with, and returns their number. Raises
        PrefixCacheError if that fails, or there is no folder."""
        if self._prefixes is None:
            raise PrefixCacheError("the engine was started without a folder for the prefix cache")
        return self._prefixes.save()

    def step(self) -> list[EngineOutput]:
        """Computes one step and says what came of it. An error on the way ends every request of the step (`lost`), or, while a step is
        planned or taken in, every request that there is, as no account can be trusted then; the engine can go on."""
        plan = self._or_start_over(self._scheduler.schedule)
        try:
            result = self._executor.run(plan)
        except BaseException:
            self.lost = self._or_start_over(self._scheduler.abandon)
            raise
        return self._or_start_over(self._scheduler.update, plan, result)

    def _or_start_over(self, account: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return account(*args, **kwargs)
        except BaseException:
            self.lost = self._scheduler.start_over()
            raise

    def stats(self) -> EngineStats:
        """Gauges of this moment."""
        return self._scheduler.stats()

    def close(self) -> None:
        """Ends the workers. Nothing is saved."""
        self._executor.close()
        if self._prefixes is not None:
            self._prefixes.close()


def build_core(config: EngineConfig, progress: Progress, say: Callable[[str], None]) -> EngineCore:
    """Loads the model, sizes the cache, and tells through `say` in one line what was chosen and why.

    Raises ModelLoadError or ConfigError; what was taken by then is given back.
    """
    started = time.monotonic()
    # Before the model, which may take long to load.
    folder = None if config.cache.prefix_cache_dir is None else PrefixFolder(config.cache.prefix_cache_dir)
    executor = InProcessExecutor(config, progress)
    try:
        model = executor.load()
        wanted = config.model.max_model_len
        if wanted is not None and wanted > model.max_model_len:
            raise ConfigError(
                f"max_model_len: {wanted} is more than the model's own limit of {model.max_model_len} tokens", param="max_model_len"
            )
        window = window_of(config, model)
        pool = size_pool(config, model, total_memory(), available_memory())
        executor.allocate(pool.num_blocks, pool.num_swap_blocks + pool.num_window_swap_blocks, pool.num_window_blocks)
        cache = KVCacheManager(
            pool.num_blocks,
            config.cache.block_size,
            num_swap_blocks=pool.num_swap_blocks,
            prefix_caching=config.cache.enable_prefix_caching,
            scope=CacheScope(model.digest, model.kv_cache_dtype),
            window=window,
            num_window_blocks=pool.num_window_blocks,
            num_window_swap_blocks=pool.num_window_swap_blocks,
        )
        prefixes = None
        if folder is not None:
            prefixes = SavedPrefixes(folder, identity_of(model, config.cache.block_size), cache, executor, say)
            prefixes.restore()
    except BaseException:
        executor.close()
        if folder is not None:
            folder.close()
        raise
    for note in model.notes:
        say(note)
    say(f"{pool.explanation}; ready in {time.monotonic() - started:.1f} s on the {model.backend} backend, {model.threads}")
    scheduler = Scheduler(config.scheduler, cache, max_model_len=pool.max_model_len, vocab_size=model.vocab_size)
    info = _info_of(config, model, pool, window)
    info.saves_prefix_cache = prefixes is not None
    return EngineCore(scheduler, executor, info, prefixes)


def _info_of(config: EngineConfig, model: LoadedModel, pool: PoolSize, window: Window | None) -> EngineInfo:
    return EngineInfo(
        model=config.model.model,
        architecture=model.architecture,
        backend=model.backend,
        vocab_size=model.vocab_size,
        max_model_len=pool.max_model_len,
        block_size=config.cache.block_size,
        num_blocks=pool.num_blocks,
        weights_bytes=model.weights_bytes,
        kv_cache_bytes=pool.bytes_for(model),
        kv_bytes_per_block=model.kv_bytes_per_block,
        kv_bytes_per_window_block=model.kv_bytes_per_window_block,
        num_window_blocks=pool.num_window_blocks,
        version=__version__,
        enable_prefix_caching=config.cache.enable_prefix_caching,
        kv_cache_dtype=model.kv_cache_dtype,
        sliding_window=None if window is None else window.size,
        hidden_size=model.hidden_size,
        max_num_seqs=config.scheduler.max_num_seqs,
    )
