"""One worker in this process."""

from __future__ import annotations

from collections.abc import Iterable

from octavo.backends.base import Program
from octavo.backends.cores import EngineCores
from octavo.backends.select import arithmetic_of, backend_notes, select_backend
from octavo.config.engine import EngineConfig
from octavo.executors.executor import LoadedModel
from octavo.graph.graph import CacheLayer
from octavo.loading.open import open_checkpoint
from octavo.loading.progress import Progress
from octavo.loading.resolve import resolve_model
from octavo.models.digest import model_digest
from octavo.models.registry import build_model
from octavo.protocol.errors import ModelLoadError
from octavo.protocol.plan import StepPlan, StepResult
from octavo.protocol.vocabulary import Vocabulary
from octavo.worker.worker import Worker


def widest_window(layers: Iterable[CacheLayer]) -> int | None:
    """How many tokens back a token sees at most, itself included, in the layers that see a window; None if there are none."""
    return max((layer.window for layer in layers if layer.window is not None), default=None)


class InProcessExecutor:
    """Loads the model and runs its steps on the calling thread (the backend's own threads help)."""

    def __init__(self, config: EngineConfig, progress: Progress) -> None:
        self._config = config
        self._progress = progress
        self._program: Program | None = None
        self._worker: Worker | None = None
        self._cores: EngineCores | None = None
        self._vocab_size = 0

    def load(self) -> LoadedModel:
        """Finds, opens and compiles the model. Raises ModelLoadError or ConfigError."""
        options = self._config.model
        path = resolve_model(options.model, revision=options.revision, download_dir=options.download_dir, progress=self._progress)
        self._cores = cores = EngineCores(self._config.backend.threads)
        backend = select_backend(self._config.backend, cores)
        with open_checkpoint(path) as checkpoint:
            model = build_model(checkpoint)
            self._progress.start(model.check(), f"Loading {path.name}")
            try:
                program = backend.compile(model.graph, model.weight, self._progress.advance, self._config.kv_cache_dtype)
            except ModelLoadError as error:  # of a tensor, which doesn't know its file
                raise type(error)(f"{path}: {error.message}") from error
            finally:
                self._progress.finish()
            digest = model_digest(model, arithmetic_of(backend)) if self._config.cache.enable_prefix_caching else ""
        self._program = program
        self._vocab_size = model.graph.vocab_size
        size = self._config.cache.block_size
        in_window = program.kv_bytes_per_window_block(size)
        return LoadedModel(
            architecture=model.architecture,
            backend=backend.name,
            threads=cores.describe(),
            vocab_size=model.graph.vocab_size,
            max_model_len=model.max_model_len,
            weights_bytes=program.weights_bytes,
            kv_bytes_per_block=program.kv_bytes_per_block(size) - in_window,
            kv_bytes_per_window_block=in_window,
            kv_cache_dtype=program.kv_cache_dtype,
            digest=digest,
            window=widest_window(model.graph.cache_layers),
            arithmetic=arithmetic_of(backend),
            kv_layout=program.kv_layout,
            hidden_size=model.graph.hidden_size,
            notes=(*backend_notes(self._config.backend), *cores.notes, *program.notes),
        )

    def allocate(self, num_blocks: int, num_swap_blocks: int = 0, num_window_blocks: int = 0) -> None:
        """Makes the KV cache, swap space, and the worker around them."""
        if self._program is None:
            raise RuntimeError("allocate before load")
        self._worker = Worker(
            self._program,
            self._vocab_size,
            num_blocks,
            self._config.cache.block_size,
            num_swap_blocks,
            self._config.structured_outputs.max_compiled_grammars,
            num_window_blocks,
        )

    def use_vocabulary(self, vocabulary: Vocabulary) -> None:
        """Tells the worker the tokens as bytes."""
        self._allocated().use_vocabulary(vocabulary)

    def run(self, plan: StepPlan) -> StepResult:
        """Runs one step."""
        return self._allocated().run(plan)

    def read_block(self, block_id: int) -> bytes:
        """What a block of the KV cache holds."""
        return self._allocated().read_block(block_id)

    def write_block(self, block_id: int, content: bytes) -> None:
        """Puts what `read_block` gave into a block."""
        self._allocated().write_block(block_id, content)

    def _allocated(self) -> Worker:
        if self._worker is None:
            raise RuntimeError("there is no KV cache before allocate, nor after close")
        return self._worker

    def close(self) -> None:
        """Frees weights, cache and cores."""
        if self._program is not None:
            self._program.close()
        if self._cores is not None:
            self._cores.close()
        self._program = self._worker = self._cores = None
