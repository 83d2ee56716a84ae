"""The Llama family: Llama 1 to 3, Mistral, SmolLM2, and all that share their layout.

Pre-norm transformer with RMSNorm, rotary positions, grouped-query attention and SwiGLU (Touvron et al., 2023; Jiang et al., 2023).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from octavo.graph.graph import CacheLayer, Graph, RopeSpec
from octavo.models.fields import Fields
from octavo.models.heads import HUGE, check_head_dim, linears, read_kv_heads
from octavo.models.model import Model, WeightOrigin
from octavo.models.rope import rope_from_config, rope_from_gguf
from octavo.models.store import TensorStore
from octavo.protocol.errors import ModelLoadError
from octavo.quantization.decode import decode
from octavo.quantization.tensor import CheckpointTensor


@dataclass(frozen=True, slots=True)
class LlamaConfig:
    """The sizes of one model. `window` is Mistral's sliding window in tokens, None for full attention."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    epsilon: float
    rope: RopeSpec
    max_positions: int
    tied: bool
    attention_bias: bool = False
    mlp_bias: bool = False
    window: int | None = None


def config_from_huggingface(store: TensorStore) -> LlamaConfig:
    """Reads config.json."""
    fields = Fields(store.path / "config.json", store.metadata)
    heads = fields.integer("num_attention_heads", most=HUGE)
    hidden = fields.integer("hidden_size", most=HUGE)
    head_dim = _head_dim(fields, "head_dim", hidden, "num_attention_heads", heads)
    activation = fields.text("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise fields.unsupported("hidden_act", activation, "known: silu")
    mistral = store.architecture == "MistralForCausalLM"
    return LlamaConfig(
        vocab_size=fields.integer("vocab_size", most=HUGE),
        hidden_size=hidden,
        intermediate_size=fields.integer("intermediate_size", most=HUGE),
        num_layers=fields.integer("num_hidden_layers", most=10_000),
        num_heads=heads,
        num_kv_heads=read_kv_heads(fields, "num_key_value_heads", heads),
        head_dim=head_dim,
        epsilon=fields.number("rms_norm_eps", 1e-6),
        rope=rope_from_config(fields, head_dim),
        max_positions=fields.integer("max_position_embeddings", 131_072 if mistral else 2048),
        tied=fields.flag("tie_word_embeddings", False),
        attention_bias=fields.flag("attention_bias", False),
        mlp_bias=fields.flag("mlp_bias", False),
        window=_mistral_window(fields) if mistral else None,
    )


def config_from_gguf(store: TensorStore) -> LlamaConfig:
    """Reads GGUF's `llama.*` key-values."""
    fields = Fields(store.path, store.metadata, f"{store.architecture}.")
    if store.metadata.get(f"{store.architecture}.expert_count"):
        raise fields.unsupported(
            "expert_count", store.metadata[f"{store.architecture}.expert_count"], "mixtures of experts are not known yet"
        )
    names = set(store.tensor_names())
    heads = fields.integer("attention.head_count", most=HUGE)
    hidden = fields.integer("embedding_length", most=HUGE)
    head_dim = _head_dim(fields, "attention.key_length", hidden, "attention.head_count", heads)
    value_dim = fields.integer("attention.value_length", head_dim, most=HUGE)
    if value_dim != head_dim:
        raise fields.unsupported("attention.value_length", value_dim, f"only the keys' length, {head_dim}, is known")
    factors = None
    if "rope_freqs.weight" in names:
        factors = decode(store.tensor("rope_freqs.weight")).reshape(-1)
        if factors.shape != (head_dim // 2,) or not np.all(factors > 0):
            raise ModelLoadError(f"{store.path}: tensor rope_freqs.weight must hold {head_dim // 2} numbers over 0")
    if "token_embd.weight" not in names:
        raise ModelLoadError(f"{store.path}: tensor token_embd.weight is missing")
    return LlamaConfig(
        vocab_size=store.tensor("token_embd.weight").shape[0],
        hidden_size=hidden,
        intermediate_size=fields.integer("feed_forward_length", most=HUGE),
        num_layers=fields.integer("block_count", most=10_000),
        num_heads=heads,
        num_kv_heads=read_kv_heads(fields, "attention.head_count_kv", heads),
        head_dim=head_dim,
        epsilon=fields.number("attention.layer_norm_rms_epsilon", 1e-5),
        rope=rope_from_gguf(fields, head_dim, factors),
        max_positions=fields.integer("context_length"),
        tied="output.weight" not in names,
        attention_bias="blk.0.attn_q.bias" in names,
        mlp_bias="blk.0.ffn_gate.bias" in names,
        window=fields.optional_integer("attention.sliding_window"),
    )


def _mistral_window(fields: Fields) -> int | None:
    """`sliding_window`: null means none, but where the key is absent transformers means its default, 4096."""
    return fields.optional_integer("sliding_window") if "sliding_window" in fields.values else 4096


def _head_dim(fields: Fields, key: str, hidden: int, heads_key: str, heads: int) -> int:
    given = fields.optional_integer(key)
    if given is None and hidden % heads:
        raise fields.wrong(heads_key, heads, f"a divisor of the hidden size, {hidden}, where there is no {fields.prefix}{key}")
    return check_head_dim(fields, key, hidden // heads if given is None else given)


def build_graph(config: LlamaConfig) -> Graph:
    """The model as operations; weight names are those of transformers' checkpoints."""
    graph = Graph(config.vocab_size)
    layer = CacheLayer(config.num_kv_heads, config.head_dim, config.window)
    query_width, kv_width = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    x = graph.embed("model.embed_tokens.weight", config.hidden_size)
    for index in range(config.num_layers):
        block = f"model.layers.{index}"
        h = graph.rms_norm(x, f"{block}.input_layernorm.weight", config.epsilon)
        widths = {"q_proj": query_width, "k_proj": kv_width, "v_proj": kv_width}
        query, key, value = linears(graph, h, f"{block}.self_attn", widths, bias=config.attention_bias)
        query, key = graph.rope(query, config.rope), graph.rope(key, config.rope)
        attended = graph.paged_attention(query, key, value, layer, config.head_dim**-0.5)
        x = graph.add(x, *linears(graph, attended, f"{block}.self_attn", {"o_proj": config.hidden_size}, bias=config.attention_bias))
        h = graph.rms_norm(x, f"{block}.post_attention_layernorm.weight", config.epsilon)
        inner = dict.fromkeys(("gate_proj", "up_proj"), config.intermediate_size)
        gate, up = linears(graph, h, f"{block}.mlp", inner, bias=config.mlp_bias)
        x = graph.add(x, *linears(graph, graph.silu_mul(gate, up), f"{block}.mlp", {"down_proj": config.hidden_size}, bias=config.mlp_bias))
    x = graph.rms_norm(x, "model.norm.weight", config.epsilon)
    graph.logits(x, "model.embed_tokens.weight" if config.tied else "lm_head.weight")
    return graph


GGUF_LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
GGUF_NAMES = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def half_split_rows(tensor: CheckpointTensor, head_dim: int) -> CheckpointTensor:
    """GGUF's llama files hold q and k rows so that rope turns neighbours (2i, 2i + 1); this brings back the order in which it turns
    (i, i + half). Rows move whole, so packed formats stay packed."""
    rows = tensor.shape[0]
    order = np.arange(rows).reshape(-1, head_dim // 2, 2).swapaxes(1, 2).reshape(-1)
    if len(tensor.shape) == 1:  # a bias is one row of the file, so its elements move instead
        width = tensor.data.shape[1] // rows
        moved = tensor.data.reshape(rows, width)[order].reshape(tensor.data.shape)
        return CheckpointTensor(tensor.name, tensor.kind, tensor.shape, moved)
    return tensor.take_rows(order)


def gguf_origin(name: str, head_dim: int) -> WeightOrigin:
    """Where a canonical weight lies in a GGUF file."""
    stem, _, suffix = name.rpartition(".")
    if stem in GGUF_NAMES:
        return WeightOrigin(f"{GGUF_NAMES[stem]}.{suffix}")
    _, _, index, part = stem.split(".", 3)
    rotated = part in ("self_attn.q_proj", "self_attn.k_proj")
    return WeightOrigin(
        f"blk.{index}.{GGUF_LAYER_NAMES[part]}.{suffix}",
        partial(half_split_rows, head_dim=head_dim) if rotated else None,
    )


def build(store: TensorStore) -> Model:
    """The model in a checkpoint.

    Raises ModelLoadError for a description that can't hold, UnsupportedModelError for one that this version has no code for.
    """
    if store.format == "gguf":
        config = config_from_gguf(store)
        graph = build_graph(config)
        origins = {name: gguf_origin(name, config.head_dim) for name in graph.weights}
        ignored = frozenset({"rope_freqs.weight"})
    else:
        config = config_from_huggingface(store)
        graph = build_graph(config)
        origins = {name: WeightOrigin(name) for name in graph.weights}
        ignored = frozenset(name for name in store.tensor_names() if name.endswith("rotary_emb.inv_freq"))
        if config.tied:
            ignored |= {"lm_head.weight"}
    return Model(store.architecture, graph, config.max_positions, store, origins, ignored)
