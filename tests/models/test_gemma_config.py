"""Gemma's config.json in every form that checkpoints carry it, and what of it can't be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from octavo.graph.graph import Operation, RopeSpec
from octavo.loading.open import open_checkpoint
from octavo.models.registry import build_model
from octavo.protocol.errors import ModelLoadError, UnsupportedModelError

SECOND, THIRD = "tiny-gemma2", "tiny-gemma3-text"


@pytest.fixture
def changed(fixtures_dir: Path, tmp_path: Path) -> Any:
    """The operations of a fixture's model with other keys in its config.json, or without some."""

    def operations(name: str, changes: dict[str, Any] | None = None, without: tuple[str, ...] = ()) -> list[Operation]:
        config = json.loads((fixtures_dir / name / "config.json").read_text()) | (changes or {})
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps({key: value for key, value in config.items() if key not in without}))
        if not (folder / "model.safetensors").exists():
            (folder / "model.safetensors").symlink_to(fixtures_dir / name / "model.safetensors")
        with open_checkpoint(folder) as checkpoint:
            return build_model(checkpoint).graph.operations

    return operations


def windows(operations: list[Operation]) -> list[int | None]:
    return [operation.attributes["cache"].window for operation in operations if operation.name == "paged_attention"]


def attribute(operations: list[Operation], name: str, key: str) -> set[Any]:
    return {operation.attributes[key] for operation in operations if operation.name == name}


def ropes(operations: list[Operation]) -> list[RopeSpec]:
    return [operation.attributes["spec"] for operation in operations if operation.name == "rope"]


def test_gemma_3_in_the_form_of_transformers_4_is_the_same_model(changed: Any) -> None:
    old = {
        "rope_theta": 1_000_000.0,
        "rope_local_base_freq": 10_000.0,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        "sliding_window_pattern": 2,
    }
    new = changed(THIRD)
    assert changed(THIRD, old, without=("rope_parameters", "layer_types", "_sliding_window_pattern")) == new
    assert windows(new) == [32, None, 32, None]
    assert len(attribute(new, "rope", "spec")) == 2
    unscaled = changed(THIRD, {**old, "rope_scaling": None}, without=("rope_parameters", "layer_types", "_sliding_window_pattern"))
    # Layers 0 and 1, of which each turns queries and keys.
    local, _, full, _ = ropes(new)[:4]
    own_local, _, own_full, _ = ropes(unscaled)[:4]
    assert own_local == local
    assert own_full.inverse_frequencies[3] == pytest.approx(8 * full.inverse_frequencies[3])


def test_rope_settings_without_a_kind_of_layer_are_of_the_layers_that_see_everything(changed: Any) -> None:
    plain = {"full_attention": {"rope_theta": 5.0, "factor": 800.0, "rope_type": "linear"}}
    expected = changed(THIRD, {"rope_parameters": plain})
    assert expected != changed(THIRD, {"rope_parameters": None})
    assert ropes(expected)[0] == ropes(changed(THIRD))[0]
    for key in ("rope_parameters", "rope_scaling"):
        for said in (plain, plain["full_attention"]):
            assert changed(THIRD, {key: said}, without=("rope_parameters",) if key == "rope_scaling" else ()) == expected
    # Empty is as null, and what is said twice is said.
    assert changed(THIRD, {"rope_parameters": {}, "rope_scaling": plain["full_attention"]}) == expected
    assert changed(THIRD, {"rope_parameters": plain, "rope_scaling": plain}) == expected
    assert changed(THIRD, {"rope_parameters": {}}) == changed(THIRD, {"rope_parameters": None})
    scaled = changed(SECOND, {"rope_parameters": {}, "rope_scaling": plain["full_attention"]})
    assert scaled == changed(SECOND, {"rope_parameters": plain["full_attention"]}) != changed(SECOND)


@pytest.mark.parametrize("name", [SECOND, "tiny-llama", "tiny-mistral"])
@pytest.mark.parametrize("key", ["rope_parameters", "rope_scaling"])
def test_rope_settings_of_some_layers_where_all_have_one_rope(changed: Any, name: str, key: str) -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        changed(name, {key: {"full_attention": {"rope_theta": 5.0}}})
    assert f"{key}.full_attention {{'rope_theta': 5.0}} is not supported (this model has one rope for all" in caught.value.message


def test_a_window_of_null_is_none_that_layers_can_see(changed: Any) -> None:
    assert windows(changed(SECOND, without=("sliding_window",))) == [4096, None, 4096, None]
    assert windows(changed(THIRD, {"sliding_window": None, "layer_types": ["full_attention"] * 4})) == [None] * 4
    for name in (SECOND, THIRD):
        with pytest.raises(ModelLoadError, match=r"sliding_window must be a whole number of tokens, since .*, not None"):
            changed(name, {"sliding_window": None})


def test_which_layers_see_a_window(changed: Any) -> None:
    none = ("layer_types", "_sliding_window_pattern")
    assert windows(changed(THIRD, without=none)) == [32, 32, 32, 32]
    assert windows(changed(THIRD, {"sliding_window_pattern": 3}, without=none)) == [32, 32, None, 32]
    assert windows(changed(SECOND)) == [32, None, 32, None]
    kinds = ["full_attention", "sliding_attention", "sliding_attention", "full_attention"]
    assert windows(changed(SECOND, {"layer_types": kinds})) == [None, 32, 32, None]


def test_caps_where_nothing_is_said_and_where_none_is_meant(changed: Any) -> None:
    both = ("attn_logit_softcapping", "final_logit_softcapping")
    for name, expected in ((SECOND, (50.0, 30.0)), (THIRD, (None, None))):
        made = changed(name, without=both)
        assert (attribute(made, "paged_attention", "softcap"), attribute(made, "logits", "softcap")) == ({expected[0]}, {expected[1]})
    null = changed(SECOND, dict.fromkeys(both))
    assert (attribute(null, "paged_attention", "softcap"), attribute(null, "logits", "softcap")) == ({None}, {None})
    assert attribute(changed(SECOND), "paged_attention", "scale") == {48**-0.5}
    assert attribute(changed(SECOND, without=("query_pre_attn_scalar",)), "paged_attention", "scale") == {256**-0.5}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layer_types": ["sliding_attention"] * 3}, "layer_types must be a list of 4 kinds, one for each of num_hidden_layers"),
        ({"layer_types": "full_attention"}, "layer_types must be a list of strings, not 'full_attention'"),
        ({"layer_types": [1, 2, 3, 4]}, "layer_types must be a list of strings, not [1, 2, 3, 4]"),
        ({"head_dim": 63}, "head_dim must be an even number up to 16384, not 63"),
        ({"num_key_value_heads": 3}, "num_key_value_heads must be a divisor of the 4 heads, not 3"),
        ({"sliding_window": 0}, "sliding_window must be a whole number from 1"),
        ({"attn_logit_softcapping": 0}, "attn_logit_softcapping must be a number from 1e-30"),
        ({"query_pre_attn_scalar": "48"}, "query_pre_attn_scalar must be a number from 1e-30"),
        ({"rope_parameters": {"full_attention": {"rope_type": "linear"}}}, "rope_parameters.full_attention.factor is missing"),
    ],
)
def test_config_that_can_t_hold(changed: Any, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelLoadError) as caught:
        changed(THIRD, changes)
    assert message in caught.value.message
    assert "config.json" in caught.value.message


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layer_types": ["full_attention"] * 3 + ["chunked_attention"]}, "layer_types 'chunked_attention' is not supported"),
        ({"hidden_activation": "gelu"}, "hidden_activation 'gelu' is not supported (known: gelu_pytorch_tanh)"),
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention True is not supported"),
        (
            {"rope_parameters": {"full_attention": {"rope_type": "yarn"}}},
            "rope_parameters.full_attention.rope_type 'yarn' is not supported",
        ),
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope_parameters.rope_type 'yarn' is not supported"),
        (
            {"rope_parameters": {"full_attention": {"rope_type": "default"}, "rope_theta": 5.0}},
            "rope_parameters.rope_theta 5.0 is not supported (beside settings by kind of layer, full_attention and sliding_attention)",
        ),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "rope_scaling {'rope_type': 'linear', 'factor': 2.0} is not supported"),
        ({"architectures": ["Gemma3ForConditionalGeneration"]}, "architecture Gemma3ForConditionalGeneration is not supported"),
    ],
)
def test_config_that_nobody_has_code_for(changed: Any, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        changed(THIRD, changes)
    assert message in caught.value.message
