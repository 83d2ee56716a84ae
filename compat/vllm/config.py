"""What an engine is configured by."""

from octavo.utils.lazy import lazy_names

_KEYWORDS = "EngineArgs(...).create_engine_config() makes its configuration, from the keywords that LLM takes"

__getattr__, __dir__ = lazy_names(
    __name__,
    {},
    refused=dict.fromkeys(
        (
            *("CacheConfig", "CompilationConfig", "DeviceConfig", "KVTransferConfig", "LoRAConfig", "LoadConfig", "ModelConfig"),
            *("MultiModalConfig", "ObservabilityConfig", "ParallelConfig", "PoolerConfig", "SchedulerConfig", "SpeculativeConfig"),
            *("StructuredOutputsConfig", "VllmConfig"),
        ),
        _KEYWORDS,
    ),
)
