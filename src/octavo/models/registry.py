"""Architecture names to families, imported only when chosen."""

from __future__ import annotations

from importlib import import_module

from octavo.models.model import Model
from octavo.models.store import TensorStore
from octavo.protocol.errors import UnsupportedModelError

FAMILIES = {
    ("safetensors", "Gemma2ForCausalLM"): "gemma",
    ("safetensors", "Gemma3ForCausalLM"): "gemma",
    ("safetensors", "LlamaForCausalLM"): "llama",
    ("safetensors", "MistralForCausalLM"): "llama",
    ("gguf", "llama"): "llama",
}


def build_model(store: TensorStore) -> Model:
    """The model in a checkpoint, its names and shapes checked.

    Raises UnsupportedModelError that lists the known architectures, and what the family's `build` and `Model.check` raise.
    """
    family = FAMILIES.get((store.format, store.architecture))
    if family is None:
        known = ", ".join(sorted(name for format_, name in FAMILIES if format_ == store.format))
        own_code = "; it needs code of its own (trust_remote_code), which Octavo never runs" if store.metadata.get("auto_map") else ""
        raise UnsupportedModelError(f"{store.path}: architecture {store.architecture} is not supported (known: {known}){own_code}")
    model: Model = import_module(f"octavo.models.{family}").build(store)
    model.check()
    return model
