"""The short names that some guides use: InferenceEngine, GenerationConfig, and `content` for a completion's text."""

from __future__ import annotations

import inspect
import os
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from octavo.api.arguments import FIELDS, unknown_argument
from octavo.api.llm import LLM
from octavo.api.prompts import Prompt
from octavo.config.without_effect import WITHOUT_EFFECT
from octavo.protocol.errors import ConfigError, InvalidRequestError
from octavo.protocol.outputs import CompletionOutput, RequestOutput
from octavo.protocol.sampling import SamplingParams
from octavo.protocol.sampling_names import known_fields


class GenerationConfig:
    """SamplingParams with `temp` for the temperature. Raises InvalidRequestError for what can't hold or that nobody knows."""

    def __init__(self, temp: float = 1.0, top_p: float = 1.0, max_tokens: int | None = 16, **others: Any) -> None:
        if "temperature" in others:
            raise InvalidRequestError("temperature is called temp in a GenerationConfig.", param="temperature")
        others = known_fields(others, SamplingParams.__struct_fields__, {"temperature": "temp"})
        try:
            self.sampling_params = SamplingParams.from_optional(temperature=temp, top_p=top_p, max_tokens=max_tokens, **others)
        except InvalidRequestError as error:
            if error.param == "temperature":
                raise InvalidRequestError(error.message.replace("temperature", "temp", 1), param="temp") from None
            raise

    def __repr__(self) -> str:
        return f"GenerationConfig({self.sampling_params!r})"


@dataclass(slots=True)
class ShortCompletionOutput(CompletionOutput):
    """A CompletionOutput whose text is its `content` too."""

    @property
    def content(self) -> str:
        """The text."""
        return self.text


# What an InferenceEngine's arguments are called in LLM; those that it doesn't name are short as the server's flags are.
LONG_NAMES = {
    "trust_remote": "trust_remote_code",
    "gpu_util": "gpu_memory_utilization",
    "gpu_mem_usage": "gpu_memory_utilization",
    "precision": "dtype",
    "parallel_size": "tensor_parallel_size",
    "quant": "quantization",
    "max_batch": "max_num_seqs",
    "prefix_caching": "enable_prefix_caching",
}
_ARGUMENTS = frozenset({*LONG_NAMES, *inspect.signature(LLM).parameters, *FIELDS, *WITHOUT_EFFECT, "tokenizer"})


class InferenceEngine(LLM):
    """An LLM by `model_path`; `trust_remote` is its `trust_remote_code`, `gpu_util` its `gpu_memory_utilization`, `precision` its `dtype`,
    `parallel_size` its `tensor_parallel_size`, `quant` its `quantization`, `max_batch` its `max_num_seqs` and `prefix_caching` its
    `enable_prefix_caching`. Every other argument is LLM's. Errors call each as it was called. Raises TypeError for one given twice."""

    def __init__(
        self, model_path: str | os.PathLike[str] = "smollm2", trust_remote: bool = False, gpu_util: float | None = None, **others: Any
    ) -> None:
        for name in others:
            if name not in _ARGUMENTS:
                raise unknown_argument(type(self).__name__, name, LONG_NAMES)
        given = others | ({} if gpu_util is None else {"gpu_util": gpu_util}) | {"trust_remote": trust_remote}
        arguments: dict[str, Any] = {}
        for name, value in given.items():
            long = LONG_NAMES.get(name, name)
            if long in arguments:
                raise TypeError(f"{type(self).__name__}() got {long} twice; {name} is the same")
            arguments[long] = value
        try:
            super().__init__(model_path, **arguments)
        except ConfigError as error:
            short = next((name for name in given if LONG_NAMES.get(name) == error.param), None)
            if short is None:
                raise
            raise ConfigError(error.message.replace(f"{error.param}:", f"{short}:", 1), param=short) from error

    def generate(  # type: ignore[override]
        self,
        prompts: Prompt | Sequence[Prompt],
        config: GenerationConfig | SamplingParams | Sequence[SamplingParams] | None = None,
        **others: Any,
    ) -> list[RequestOutput]:
        """As LLM.generate; each output's text is its `content` too."""
        params = config.sampling_params if isinstance(config, GenerationConfig) else config
        results = super().generate(prompts, params, **others)
        for result in results:
            result.outputs = [_with_content(output) for output in result.outputs]
        return results


def _with_content(output: CompletionOutput) -> ShortCompletionOutput:
    return ShortCompletionOutput(**{field.name: getattr(output, field.name) for field in fields(CompletionOutput)})
