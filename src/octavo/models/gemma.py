"""The Gemma family: Gemma 2 and the text models of Gemma 3 (Gemma Team, 2024 and 2025).

As Llama's, but: each of attention and MLP is normed before and after, norms multiply by 1 + weight, embeddings are scaled by the root of
their width, the MLP is gated by GELU, and layers that see a window alternate with layers that see everything. Gemma 2 caps attention's
scores and the logits; Gemma 3 norms queries and keys instead, and turns those of its two kinds of layers by two different ropes.

Embeddings are scaled as transformers and vLLM scale them in float32, whatever the checkpoint's own type. Run in bfloat16 these round the
root too: 33.94 to 34 where the width is 1152.
"""

from __future__ import annotations

from dataclasses import dataclass

from octavo.graph.graph import CacheLayer, Graph, RopeSpec, Value
from octavo.models.fields import Fields
from octavo.models.heads import HUGE, check_head_dim, linears, read_kv_heads
from octavo.models.model import Model, WeightOrigin
from octavo.models.rope import rope_from_config, rope_of, rope_settings
from octavo.models.store import TensorStore

SLIDING, FULL = "sliding_attention", "full_attention"


@dataclass(frozen=True, slots=True)
class GemmaConfig:
    """The sizes of one model. `sliding` says of each layer whether it sees a `window` of tokens, turned by `local_rope`, or everything,
    turned by `rope`."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    epsilon: float
    rope: RopeSpec
    local_rope: RopeSpec
    max_positions: int
    tied: bool
    attention_bias: bool
    window: int
    sliding: tuple[bool, ...]
    attention_scale: float
    attention_softcap: float | None
    logits_softcap: float | None
    query_key_norm: bool


def read_config(store: TensorStore) -> GemmaConfig:
    """Reads config.json; defaults are those of transformers."""
    fields = Fields(store.path / "config.json", store.metadata)
    third = store.architecture == "Gemma3ForCausalLM"
    heads = fields.integer("num_attention_heads", most=HUGE)
    head_dim = check_head_dim(fields, "head_dim", fields.integer("head_dim", 256, most=HUGE))
    activation = fields.text("hidden_activation", fields.text("hidden_act", "gelu_pytorch_tanh"))
    if activation != "gelu_pytorch_tanh":
        raise fields.unsupported("hidden_activation", activation, "known: gelu_pytorch_tanh")
    if fields.flag("use_bidirectional_attention", False):
        raise fields.unsupported("use_bidirectional_attention", True, "only attention to earlier tokens is known")
    sliding = _sliding(fields, fields.integer("num_hidden_layers", most=10_000), third)
    rope, local_rope = _ropes(fields, head_dim) if third else (rope_from_config(fields, head_dim),) * 2
    return GemmaConfig(
        vocab_size=fields.integer("vocab_size", most=HUGE),
        hidden_size=fields.integer("hidden_size", most=HUGE),
        intermediate_size=fields.integer("intermediate_size", most=HUGE),
        num_heads=heads,
        num_kv_heads=read_kv_heads(fields, "num_key_value_heads", heads),
        head_dim=head_dim,
        epsilon=fields.number("rms_norm_eps", 1e-6),
        rope=rope,
        local_rope=local_rope,
        max_positions=fields.integer("max_position_embeddings", 131_072 if third else 8192),
        tied=fields.flag("tie_word_embeddings", True),
        attention_bias=fields.flag("attention_bias", False),
        window=_window(fields, sliding),
        sliding=sliding,
        attention_scale=fields.number("query_pre_attn_scalar", 256) ** -0.5,
        attention_softcap=fields.number_or_none("attn_logit_softcapping", None if third else 50.0),
        logits_softcap=fields.number_or_none("final_logit_softcapping", None if third else 30.0),
        query_key_norm=third,
    )


def _ropes(fields: Fields, head_dim: int) -> tuple[RopeSpec, RopeSpec]:
    """Gemma 3's ropes of layers that see everything, and of those that see a window. transformers 5 has settings for each kind of layer;
    those that name none are of the first alone, as transformers 4 and vLLM read them."""
    said = rope_settings(fields)
    full, local = said, None
    if said is not None and not said.names().keys().isdisjoint((FULL, SLIDING)):
        other = next(((name, value) for name, value in said.names().items() if name not in (FULL, SLIDING)), None)
        if other is not None:
            raise said.unsupported(*other, f"beside settings by kind of layer, {FULL} and {SLIDING}")
        full, local = said.fields(FULL), said.fields(SLIDING)
    return (
        rope_of(fields, full, fields.number("rope_theta", 1_000_000.0), head_dim),
        rope_of(fields, local, fields.number("rope_local_base_freq", 10_000.0), head_dim),
    )


def _window(fields: Fields, sliding: tuple[bool, ...]) -> int:
    """4096 where nothing is said. null is refused, as transformers refuses it, unless no layer would see the window."""
    if any(sliding) and "sliding_window" in fields.values and fields.optional_integer("sliding_window") is None:
        raise fields.wrong("sliding_window", None, f"a whole number of tokens, since the model has layers of {SLIDING}")
    return fields.integer("sliding_window", 4096)


def _sliding(fields: Fields, num_layers: int, third: bool) -> tuple[bool, ...]:
    """Which layers see a window: what `layer_types` names, or all but the last of each `sliding_window_pattern` layers: 6 in Gemma 3
    where nothing is said, and always 2 in Gemma 2."""
    kinds = fields.texts("layer_types")
    if kinds is None:
        pattern = fields.integer("sliding_window_pattern", fields.integer("_sliding_window_pattern", 6)) if third else 2
        return tuple((index + 1) % pattern != 0 for index in range(num_layers))
    unknown = next((kind for kind in kinds if kind not in (SLIDING, FULL)), None)
    if unknown is not None:
        raise fields.unsupported("layer_types", unknown, f"known: {SLIDING}, {FULL}")
    if len(kinds) != num_layers:
        raise fields.wrong("layer_types", kinds, f"a list of {num_layers} kinds, one for each of num_hidden_layers")
    return tuple(kind == SLIDING for kind in kinds)


def build_graph(config: GemmaConfig) -> Graph:
    """The model as operations; weight names are those of transformers' checkpoints."""
    graph = Graph(config.vocab_size)

    def norm(x: Value, name: str) -> Value:
        return graph.rms_norm(x, f"{name}.weight", config.epsilon, offset=1.0)

    x = graph.embed("model.embed_tokens.weight", config.hidden_size, scale=config.hidden_size**0.5)
    for index, sliding in enumerate(config.sliding):
        block = f"model.layers.{index}"
        attended = _attend(graph, norm(x, f"{block}.input_layernorm"), f"{block}.self_attn", config, sliding=sliding)
        x = graph.add(x, norm(attended, f"{block}.post_attention_layernorm"))
        h = norm(x, f"{block}.pre_feedforward_layernorm")
        inner = dict.fromkeys(("gate_proj", "up_proj"), config.intermediate_size)
        gate, up = linears(graph, h, f"{block}.mlp", inner, bias=False)
        (down,) = linears(graph, graph.gelu_mul(gate, up), f"{block}.mlp", {"down_proj": config.hidden_size}, bias=False)
        x = graph.add(x, norm(down, f"{block}.post_feedforward_layernorm"))
    head = "model.embed_tokens.weight" if config.tied else "lm_head.weight"
    graph.logits(norm(x, "model.norm"), head, softcap=config.logits_softcap)
    return graph


def _attend(graph: Graph, h: Value, stem: str, config: GemmaConfig, *, sliding: bool) -> Value:
    """One layer's attention, from its normed input to its output projection."""
    kv_width = config.num_kv_heads * config.head_dim
    widths = {"q_proj": config.num_heads * config.head_dim, "k_proj": kv_width, "v_proj": kv_width}
    query, key, value = linears(graph, h, stem, widths, bias=config.attention_bias)
    if config.query_key_norm:
        query = graph.head_norm(query, f"{stem}.q_norm.weight", config.head_dim, config.epsilon, offset=1.0)
        key = graph.head_norm(key, f"{stem}.k_norm.weight", config.head_dim, config.epsilon, offset=1.0)
    rope = config.local_rope if sliding else config.rope
    layer = CacheLayer(config.num_kv_heads, config.head_dim, config.window if sliding else None)
    query, key = graph.rope(query, rope), graph.rope(key, rope)
    attended = graph.paged_attention(query, key, value, layer, config.attention_scale, config.attention_softcap)
    (output,) = linears(graph, attended, stem, {"o_proj": config.hidden_size}, bias=config.attention_bias)
    return output


def build(store: TensorStore) -> Model:
    """The model in a checkpoint.

    Raises ModelLoadError for a description that can't hold, UnsupportedModelError for one that this version has no code for.
    """
    config = read_config(store)
    graph = build_graph(config)
    origins = {name: WeightOrigin(name) for name in graph.weights}
    return Model(store.architecture, graph, config.max_positions, store, origins, frozenset({"lm_head.weight"} if config.tied else ()))
