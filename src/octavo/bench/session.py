"""A model in this process, and what its tokens cost."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any

from octavo.api.arguments import FIELDS
from octavo.api.llm import LLM
from octavo.bench.cost import ModelCost, model_cost
from octavo.bench.report import Table, megabytes
from octavo.bench.workload import Ask
from octavo.config.engine import EngineConfig, ModelConfig
from octavo.loading.open import open_checkpoint
from octavo.loading.resolve import resolve_model
from octavo.models.registry import build_model
from octavo.protocol.outputs import RequestOutput
from octavo.protocol.sampling import SamplingParams
from octavo.protocol.wire import EngineInfo


def llm_arguments(config: EngineConfig) -> dict[str, Any]:
    """The arguments of LLM that give it `config`."""
    return {"seed": config.seed} | {keyword: getattr(getattr(config, part), name) for keyword, (part, name) in FIELDS.items()}


def model_path(options: ModelConfig) -> Path:
    """The model's file or folder, fetched if need be. Raises ModelLoadError."""
    return resolve_model(options.model, revision=options.revision, download_dir=options.download_dir)


def model_vocabulary(options: ModelConfig) -> int:
    """How many token ids the model has. Raises ModelLoadError."""
    with open_checkpoint(model_path(options)) as checkpoint:
        return build_model(checkpoint).graph.vocab_size


def greedy(output_len: int) -> SamplingParams:
    """Exactly `output_len` tokens, the likeliest each time, as text too."""
    return SamplingParams(temperature=0.0, max_tokens=output_len, ignore_eos=True)


class Session:
    """An LLM made from `config` for as long as `with` lasts. Raises what LLM raises."""

    def __init__(self, config: EngineConfig, *, quiet: bool) -> None:
        self.llm = LLM(**llm_arguments(config), quiet=quiet)
        self.core = self.llm._core
        self.prefix_caching = config.cache.enable_prefix_caching
        self.info: EngineInfo = self.core.info
        path = model_path(config.model)
        kv_bytes = (self.info.kv_bytes_per_block + self.info.kv_bytes_per_window_block) // self.info.block_size
        self.cost: ModelCost = model_cost(path, self.info.backend, self.info.weights_bytes, kv_bytes)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.llm.close()

    def generate(self, asks: list[Ask]) -> list[RequestOutput]:
        """Runs `asks` in one batch."""
        return self.llm.generate([ask.prompt_token_ids for ask in asks], [greedy(ask.output_len) for ask in asks], use_tqdm=False)

    def describe(self) -> dict[str, Any]:
        """The model, for the record."""
        info = self.info
        return {
            "model": info.model,
            "architecture": info.architecture,
            "backend": info.backend,
            "weights_bytes": info.weights_bytes,
            "weights_read_bytes_a_step": self.cost.weights_bytes,
            "kv_cache_dtype": info.kv_cache_dtype,
            "kv_cache_bytes": info.kv_cache_bytes,
            "kv_bytes_a_token": self.cost.kv_bytes,
            "max_model_len": info.max_model_len,
            "enable_prefix_caching": self.prefix_caching,
        }

    def table(self) -> Table:
        """The model, for people."""
        info = self.info
        return Table(
            "Model",
            ["model", "architecture", "backend", "weights MB", "KV cache MB", "KV type", "KV bytes a token", "prefix cache"],
            [
                [
                    info.model,
                    info.architecture,
                    info.backend,
                    megabytes(info.weights_bytes),
                    megabytes(info.kv_cache_bytes),
                    info.kv_cache_dtype,
                    str(self.cost.kv_bytes),
                    "on" if self.prefix_caching else "off",
                ]
            ],
        )
