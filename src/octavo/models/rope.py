"""Rotary frequencies of each published variant."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from octavo.graph.graph import RopeSpec
from octavo.models.fields import Fields
from octavo.protocol.errors import ModelLoadError

Frequencies = npt.NDArray[np.float32]


def default_frequencies(theta: float, dimensions: int) -> Frequencies:
    """`theta^(−2i / dimensions)` for i below `dimensions / 2` (Su et al., 2021), rounded as float32 arithmetic rounds it."""
    exponents = np.arange(0, dimensions, 2, dtype=np.int64).astype(np.float32) / np.float32(dimensions)
    frequencies: Frequencies = (np.float32(1) / np.power(np.float32(theta), exponents)).astype(np.float32)
    return frequencies


def stretched(base: Frequencies, factor: float) -> Frequencies:
    """Linear scaling: every position counts as `1 / factor` of one."""
    with np.errstate(over="ignore"):  # `spec` refuses what comes of it
        return (base / np.float32(factor)).astype(np.float32)


def llama3_frequencies(base: Frequencies, factor: float, low: float, high: float, original: int) -> Frequencies:
    """Llama 3.1's stretch: wavelengths beyond `original / low` positions grow by `factor`, those within `original / high` stay, and
    between them the two are blended."""
    wavelengths = 2 * math.pi / base.astype(np.float64)
    smooth = np.clip((original / wavelengths - low) / (high - low), 0, 1)
    scaled = stretched(base, factor)
    blended = (1 - smooth) * base / factor + smooth * base
    return np.where(wavelengths > original / low, scaled, np.where(wavelengths < original / high, base, blended)).astype(np.float32)


def spec(fields: Fields, head_dim: int, frequencies: Frequencies) -> RopeSpec:
    """A RopeSpec of these frequencies. Raises ModelLoadError where what `fields` says takes one out of float32's range."""
    if not np.all(np.isfinite(frequencies)):
        raise ModelLoadError(f"{fields.source}: its rope settings give frequencies that are not numbers")
    return RopeSpec(head_dim, tuple(float(frequency) for frequency in frequencies))


def rope_from_config(config: Fields, head_dim: int) -> RopeSpec:
    """Reads `rope_theta` and what `rope_settings` finds.

    Raises UnsupportedModelError for a variant other than default, linear and llama3, and for settings of one kind of layers.
    """
    return rope_of(config, rope_settings(config), config.number("rope_theta", 10000.0), head_dim)


def rope_settings(config: Fields) -> Fields | None:
    """`rope_parameters` (transformers 5) or `rope_scaling` (transformers 4); None where neither says anything: `{}` is as null. Raises
    UnsupportedModelError where they say different things."""
    said = [each for key in ("rope_parameters", "rope_scaling") if (each := config.fields(key)) is not None and each.names()]
    if len(said) == 2 and said[0].names() != said[1].names():
        raise config.unsupported("rope_scaling", said[1].names(), "not beside rope_parameters, which say something else")
    return said[0] if said else None


def rope_of(config: Fields, parameters: Fields | None, theta: float, head_dim: int) -> RopeSpec:
    """The rope of these `parameters`, with the base `theta` where they name none. Raises UnsupportedModelError, as `rope_from_config`."""
    _whole_heads(config)
    if parameters is None:
        return spec(config, head_dim, default_frequencies(theta, head_dim))
    _whole_heads(parameters)
    nested = next(((name, value) for name, value in parameters.names().items() if isinstance(value, Mapping)), None)
    if nested is not None:
        raise parameters.unsupported(*nested, "this model has one rope for all of its layers")
    base = default_frequencies(parameters.number("rope_theta", theta), head_dim)
    kind = parameters.text("rope_type", parameters.text("type", "default"))
    if kind == "default":
        return spec(config, head_dim, base)
    if kind == "linear":
        return spec(config, head_dim, stretched(base, parameters.number("factor")))
    if kind == "llama3":
        low, high = parameters.number("low_freq_factor"), parameters.number("high_freq_factor")
        if high <= low:
            raise parameters.wrong("high_freq_factor", high, f"over low_freq_factor, {low}")
        original = parameters.integer("original_max_position_embeddings")
        return spec(config, head_dim, llama3_frequencies(base, parameters.number("factor"), low, high, original))
    raise parameters.unsupported("rope_type", kind, "known: default, linear, llama3")


def _whole_heads(fields: Fields) -> None:
    if fields.number("partial_rotary_factor", 1) != 1:
        raise fields.unsupported("partial_rotary_factor", fields.number("partial_rotary_factor"), "only 1 is known")


def rope_from_gguf(metadata: Fields, head_dim: int, factors: Frequencies | None) -> RopeSpec:
    """Reads `rope.freq_base` and `rope.scaling.*`; `factors` are the divisors in the tensor `rope_freqs.weight`, which is how a GGUF
    file carries the llama3 variant. As in llama.cpp a factor alone means linear scaling, and old files call it `rope.scale_linear`."""
    dimensions = metadata.integer("rope.dimension_count", head_dim)
    if dimensions != head_dim:
        raise metadata.unsupported("rope.dimension_count", dimensions, f"only the head's own size, {head_dim}, is known")
    base = default_frequencies(metadata.number("rope.freq_base", 10000.0), head_dim)
    if factors is not None:
        with np.errstate(over="ignore"):
            base = (base / factors).astype(np.float32)
    factor = metadata.optional_number("rope.scaling.factor") or metadata.optional_number("rope.scale_linear")
    kind = metadata.text("rope.scaling.type", "none" if factor is None else "linear")
    if kind == "linear":
        base = stretched(base, metadata.number("rope.scaling.factor") if factor is None else factor)
    elif kind != "none":
        raise metadata.unsupported("rope.scaling.type", kind, "known: none, linear")
    return spec(metadata, head_dim, base)
