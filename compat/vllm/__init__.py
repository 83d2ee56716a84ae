"""Octavo under vLLM's names, which are those of vLLM 0.32. Names load on first use; everything behind them is Octavo's."""

from octavo import __version__ as _octavo
from octavo.utils.distributions import refuse_beside
from octavo.utils.lazy import lazy_names

refuse_beside("octavo-vllm", "vllm")

# The version whose names these are; the local part says whose code runs.
__version__ = f"0.32.0+octavo.{_octavo}"
__version_tuple__ = (0, 32, 0)

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "LLM": "octavo",
        "SamplingParams": "octavo",
        "BeamSearchParams": "vllm.sampling_params",
        "RequestOutput": "vllm.outputs",
        "CompletionOutput": "vllm.outputs",
        "EmbeddingRequestOutput": "vllm.outputs",
        "PoolingRequestOutput": "vllm.outputs",
        "PoolingParams": "vllm.pooling_params",
        "EngineArgs": "vllm.engine.arg_utils",
        "AsyncEngineArgs": "vllm.engine.arg_utils",
        "AsyncLLMEngine": "vllm.engine.async_llm_engine",
        "LLMEngine": "vllm.engine.llm_engine",
        "EmbeddingOutput": "vllm.outputs",
        "PoolingOutput": "vllm.outputs",
        "PromptType": "vllm.inputs",
        "TextPrompt": "vllm.inputs",
        "TokensPrompt": "vllm.inputs",
        "InferenceEngine": "octavo.api.short_names",
        "GenerationConfig": "octavo.api.short_names",
    },
    "__version__",
    "__version_tuple__",
    refused={
        "ModelRegistry": "it serves the models that its README lists, and takes no others from programs",
        "initialize_ray_cluster": "it runs on one machine, without Ray",
        **dict.fromkeys(
            ("ClassificationOutput", "ClassificationRequestOutput", "ScoringOutput", "ScoringRequestOutput"),
            "it serves decoders that generate or embed, not models that classify or score",
        ),
    },
)
