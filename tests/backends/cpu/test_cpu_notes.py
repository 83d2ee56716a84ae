"""What start-up says of weights that the packed layouts don't hold exactly."""

from __future__ import annotations

import numpy as np
import pytest
from cpu_models import Config, Model

pytest.importorskip("octavo._native", reason="Octavo was installed without a C++ compiler")

# Two layers of seven matrices, the embedding and the output.
MATRICES = 16
END = " (--backend reference rounds nothing, and is slow)"


def notes(model: Model) -> list[str]:
    program = model.compile("")
    found = program.notes
    program.close()
    return found


def model_of(kind: str, **kinds: str) -> Model:
    return Model(Config(kind, 256, heads=4, kv_heads=2, head_dim=64, intermediate=256, kinds=kinds))


@pytest.mark.parametrize("kind", ["BF16", "Q8_0", "Q5_0", "Q4_0", "Q4_1", "IQ4_NL"])
def test_nothing_is_said_where_nothing_is_rounded(kind: str) -> None:
    assert notes(model_of(kind)) == []


@pytest.mark.parametrize(
    ("kind", "how"),
    [("F32", "to bfloat16"), ("F16", "to bfloat16"), ("Q4_K", "scales to float16"), ("Q6_K", "to 8 bits")],
)
def test_what_is_rounded_is_counted_and_said(kind: str, how: str) -> None:
    assert notes(model_of(kind)) == [f"matrices rounded at load: {MATRICES} of {kind} ({how}){END}"]


def test_one_sentence_for_all_kinds() -> None:
    (note,) = notes(model_of("Q4_K", down="Q6_K", head="F16", embed="Q8_0"))
    assert note == f"matrices rounded at load: 12 of Q4_K (scales to float16), 2 of Q6_K (to 8 bits), 1 of F16 (to bfloat16){END}"


@pytest.mark.parametrize("kind", ["F32", "F16"])
def test_values_that_bfloat16_holds_are_not_rounded(kind: str) -> None:
    model = model_of(kind)
    for tensor in model.weights.values():
        if tensor.kind == kind and len(tensor.shape) == 2:
            tensor.data[:] = (
                np.full(tensor.shape, 0.5, np.float32 if kind == "F32" else np.float16).view(np.uint8).reshape(tensor.data.shape)
            )
    assert notes(model) == []
