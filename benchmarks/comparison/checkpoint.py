"""The default model as a folder of safetensors, for engines that read no GGUF.

The weights are those that the GGUF file stands for, decoded and rounded to bfloat16, so that every contender runs the same model.
"""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.loading.open import open_checkpoint
from octavo.models.registry import build_model
from octavo.quantization.decode import Floats, decode
from octavo.text.gguf_vocabulary import parts_from_gguf
from octavo.text.parts import TokenizerParts


def write_checkpoint(source: Path, target: Path) -> None:
    """Writes model.safetensors, config.json, generation_config.json and the tokenizer's files of the Llama model in the GGUF file
    `source` to the folder `target`."""
    target.mkdir(parents=True, exist_ok=True)
    with open_checkpoint(source) as store:
        model = build_model(store)
        tensors = {name: _bfloat16(decode(model.weight(name))) for name in model.graph.weights}
        parts = parts_from_gguf(store.metadata, source)
        config = _config(store.metadata, parts, tied="lm_head.weight" not in tensors)
        parts.backend.save(str(target / "tokenizer.json"))
    write_safetensors(target / "model.safetensors", tensors)
    ends = {"bos_token_id": parts.bos_token_id, "eos_token_id": parts.eos_token_id}
    _write(target / "config.json", config)
    _write(target / "generation_config.json", {**ends, "pad_token_id": config["pad_token_id"]})
    _write(target / "tokenizer_config.json", _tokenizer_config(parts, config))


def write_safetensors(path: Path, tensors: Mapping[str, npt.NDArray[np.uint16]]) -> None:
    """Writes bfloat16 tensors, given as bits, in the format of https://github.com/huggingface/safetensors#format."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, bits in tensors.items():
        header[name] = {"dtype": "BF16", "shape": list(bits.shape), "data_offsets": [end, end + bits.nbytes]}
        end += bits.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for bits in tensors.values():
            file.write(bits.astype("<u2").tobytes())


def _bfloat16(values: Floats) -> npt.NDArray[np.uint16]:
    """The bits of the nearest bfloat16 values, ties to even."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def _config(metadata: Any, parts: TokenizerParts, *, tied: bool) -> dict[str, Any]:
    hidden, heads = metadata["llama.embedding_length"], metadata["llama.attention.head_count"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": parts.vocab_size,
        "hidden_size": hidden,
        "intermediate_size": metadata["llama.feed_forward_length"],
        "num_hidden_layers": metadata["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": metadata["llama.attention.head_count_kv"],
        "head_dim": hidden // heads,
        "hidden_act": "silu",
        "max_position_embeddings": metadata["llama.context_length"],
        "rms_norm_eps": round(float(metadata["llama.attention.layer_norm_rms_epsilon"]), 10),
        "rope_theta": float(metadata["llama.rope.freq_base"]),
        "tie_word_embeddings": tied,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": parts.bos_token_id,
        "eos_token_id": parts.eos_token_id,
        "pad_token_id": metadata.get("tokenizer.ggml.padding_token_id", parts.eos_token_id),
        "torch_dtype": "bfloat16",
    }


def _tokenizer_config(parts: TokenizerParts, config: dict[str, Any]) -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": config["max_position_embeddings"],
        "clean_up_tokenization_spaces": False,
        "chat_template": parts.chat_template,
        **parts.template_variables,
    }


def _write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")


if __name__ == "__main__":
    write_checkpoint(Path(sys.argv[1]), Path(sys.argv[2]))
