"""Tokenizers, which Octavo takes from its models."""

from octavo.utils.lazy import lazy_names

_FROM_MODELS = "LLM.get_tokenizer() gives the model's, and so do LLMEngine and AsyncLLMEngine; transformers.AutoTokenizer reads it too"

_NAMES = ("AnyTokenizer", "cached_get_tokenizer", "cached_tokenizer_from_config", "get_tokenizer")

__getattr__, __dir__ = lazy_names(__name__, {}, refused=dict.fromkeys(_NAMES, _FROM_MODELS))
