"""vLLM's engine arguments that Octavo has nothing to do for, which LLM() and `octavo serve` both know."""

from __future__ import annotations

from typing import Any

_ONE_DEVICE = "it runs on one device"
_ADAPTERS = "it has no adapters (LoRA)"
_TEXT_ONLY = "its models take text only"
_OWN_TOKENIZER = "the tokenizer is the checkpoint's own"
_NO_KERNELS = "its kernels are chosen by the processor"

# The values under which each changes nothing here. Any other is refused by name.
WITHOUT_EFFECT: dict[str, tuple[Any, ...]] = {
    "tensor_parallel_size": (1,),
    "pipeline_parallel_size": (1,),
    "data_parallel_size": (1,),
    "distributed_executor_backend": (None,),
    "quantization": (None,),
    # A permission; no model needs it, for code that a checkpoint brings is never run.
    "trust_remote_code": (False, True),
    "enforce_eager": (True, False),
    "enable_chunked_prefill": (None, True),
    "enable_lora": (False,),
    "enable_lora_bias": (False,),
    "cpu_offload_gb": (0,),
    "tokenizer_mode": ("auto",),
    "tokenizer_revision": (None,),
    "skip_tokenizer_init": (False,),
    "load_format": ("auto",),
    "config_format": ("auto",),
    # Whatever generates embeds too.
    "runner": ("auto", "generate", "pooling"),
    "convert": ("auto", "none", "embed"),
    "hf_overrides": (None,),
    "hf_token": (None,),
    "disable_log_stats": (True,),
    "enable_log_requests": (False,),
    "async_scheduling": (None, False),
    "served_model_name": (None,),
    "speculative_config": (None,),
    "compilation_config": (None,),
    "pooler_config": (None,),
    "structured_outputs_config": (None,),
    "override_generation_config": (None,),
    "mm_processor_kwargs": (None,),
    "limit_mm_per_prompt": (None,),
    "logits_processors": (None,),
    "allowed_local_media_path": ("",),
    "allowed_media_domains": (None,),
    "max_loras": (None,),
    "max_lora_rank": (None,),
    "max_cpu_loras": (None,),
    "fully_sharded_loras": (False,),
    "disable_sliding_window": (False,),
    # There is none, so that both ask for what is.
    "disable_custom_all_reduce": (False, True),
    "model_impl": ("auto",),
    "prefix_caching_hash_algo": (None,),
    "max_parallel_loading_workers": (None,),
    "enable_expert_parallel": (False,),
    "enable_prompt_embeds": (False,),
    "enable_sleep_mode": (False,),
    "kv_transfer_config": (None,),
    "additional_config": (None,),
    "logprobs_mode": ("raw_logprobs",),
    "long_prefill_token_threshold": (0,),
    "stream_interval": (1,),
    "spec_method": (None,),
    "spec_model": (None,),
    "attention_backend": (None,),
    "max_seq_len_to_capture": (None,),
    "calculate_kv_scales": (False,),
    "use_v2_block_manager": (False,),
    "num_scheduler_steps": (1,),
    "kv_cache_metrics": (False,),
}

# Why any other value is refused, where there is more to say.
REASONS = {
    **dict.fromkeys(("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"), _ONE_DEVICE),
    **dict.fromkeys(("distributed_executor_backend", "enable_expert_parallel"), _ONE_DEVICE),
    **dict.fromkeys(("enable_lora", "enable_lora_bias", "max_loras", "max_lora_rank", "max_cpu_loras", "fully_sharded_loras"), _ADAPTERS),
    **dict.fromkeys(("mm_processor_kwargs", "limit_mm_per_prompt", "allowed_local_media_path", "allowed_media_domains"), _TEXT_ONLY),
    # `tokenizer` is none of the above: it may name the model itself.
    **dict.fromkeys(("tokenizer", "tokenizer_mode", "tokenizer_revision"), _OWN_TOKENIZER),
    **dict.fromkeys(("attention_backend", "compilation_config"), _NO_KERNELS),
    **dict.fromkeys(("spec_method", "spec_model", "speculative_config"), "it has no speculative decoding"),
    **dict.fromkeys(("load_format", "config_format"), "the format is read from the checkpoint itself"),
    "quantization": (
        "awq, gptq or other quantized safetensors can't be read yet, and GGUF files are read without it; take a GGUF file of the model"
    ),
    "skip_tokenizer_init": "the tokenizer also turns the answer into text",
    "runner": "it serves decoders that generate or embed",
    "convert": "it serves decoders that generate or embed, not models that classify or score",
    "model_impl": "each model has one implementation, Octavo's own",
    "hf_overrides": "the configuration is the checkpoint's own",
    "hf_token": "huggingface_hub takes it from $HF_TOKEN or from its login",
    "pooler_config": "PoolingParams and the --pooling of octavo serve say how to pool",
    "override_generation_config": "sampling parameters of a request go before the model's own",
    "logits_processors": "logit_bias, allowed_token_ids, bad_words and structured_outputs change what may be chosen",
    "disable_sliding_window": "a model's windows are a part of it",
    "enable_prompt_embeds": "a prompt is text or token ids",
    "enable_sleep_mode": "weights can't be set aside; end the engine and start it again",
    "kv_transfer_config": "it has no KV connector; swap_space and prefix_cache_dir keep blocks elsewhere",
    "additional_config": "no backend here takes any",
}
