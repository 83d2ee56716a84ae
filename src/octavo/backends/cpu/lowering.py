"""A graph's operations to the fused operations of the native program.

Norms, linears and ropes are held back until something consumes them, and are then written as one fused operation: norm with the conversion
of its output, q, k and v as one product, the norms of heads and rope with the cache write, gate and up with what gates them, the residual
sum in the product's store, or in the norm between the two.
What comes after the last attention is computed for the rows whose logits are wanted only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from octavo.backends.base import WeightSource
from octavo.backends.cpu.packing import LAYOUTS, Layout, layout_of, packable
from octavo.graph.graph import Graph, Operation, RopeSpec, Value
from octavo.protocol.errors import UnsupportedModelError
from octavo.quantization.decode import decode

# What gates, with the number that csrc/program/program.hpp has for it.
GATES = {"silu_mul": 0, "gelu_mul": 1}


@dataclass(slots=True)
class PackedWeight:
    """A linear of the program: its index and its layout."""

    index: int
    layout: Layout


class Lowering:
    """Writes one graph into one native program. `weights` gives checkpoint tensors; `on_progress` is told the bytes of each one packed."""

    def __init__(self, graph: Graph, native: Any, weights: WeightSource, on_progress: Callable[[int], None]) -> None:
        self._graph = graph
        self._native = native
        self._weights = weights
        self._on_progress = on_progress
        self._makers = {operation.output.index: operation for operation in graph.operations}
        self._widths = {operation.output.index: operation.output.width for operation in graph.operations}
        self._last_use = {value.index: place for place, operation in enumerate(graph.operations) for value in operation.inputs}
        self._last_attention = max(place for place, operation in enumerate(graph.operations) if operation.name == "paged_attention")
        self._samples = False
        self._floats: dict[int, int] = {}
        self._activations: dict[tuple[int, bool], int] = {}
        self._scratch: dict[tuple[str, int], int] = {}
        self._packed: dict[str, PackedWeight] = {}
        self._vectors: dict[tuple[str, float], int] = {}
        self._ropes: dict[RopeSpec, int] = {}
        self._rounded: dict[tuple[str, Layout], int] = {}

    @property
    def notes(self) -> list[str]:
        """One sentence on the weights that the packed layouts don't hold exactly, if there are any."""
        parts = [f"{count} of {kind} ({layout.rounding_of(kind)})" for (kind, layout), count in self._rounded.items()]
        return [f"matrices rounded at load: {', '.join(parts)} (--backend reference rounds nothing, and is slow)"] if parts else []

    def run(self) -> None:
        """Lowers every operation. Raises UnsupportedModelError for a shape of graph that the native program has no operation for."""
        handlers = {
            "embed": self._embed,
            "paged_attention": self._attention,
            "add": self._add,
            **dict.fromkeys(GATES, self._held_back),
            "rms_norm": self._held_back,
            "head_norm": self._held_back,
            "linear": self._held_back,
            "rope": self._held_back,
            "logits": self._logits,
        }
        for place, operation in enumerate(self._graph.operations):
            handler = handlers.get(operation.name)
            if handler is None:
                raise self._unsupported(operation)
            handler(place, operation)

    def _held_back(self, place: int, operation: Operation) -> None:
        """Written when it is consumed."""

    def _embed(self, place: int, operation: Operation) -> None:
        target = self._native.add_floats(operation.output.width, False)
        self._native.embed(self._linear(operation.weights[0].name), target, operation.attributes["scale"])
        self._floats[operation.output.index] = target

    def _attention(self, place: int, operation: Operation) -> None:
        query, key, value = (self._makers[each.index] for each in operation.inputs)
        if (query.name, key.name, value.name) != ("rope", "rope", "linear") or query.attributes != key.attributes:
            raise self._unsupported(operation)
        rotated = [self._makers[each.inputs[0].index] for each in (query, key)]
        norms = [each if each.name == "head_norm" else None for each in rotated]
        linears = [each if norm is None else self._makers[norm.inputs[0].index] for each, norm in zip(rotated, norms, strict=True)] + [
            value
        ]
        epsilons = {norm.attributes["epsilon"] for norm in norms if norm is not None}
        if len(epsilons) > 1 or any(linear.name != "linear" or linear.inputs != value.inputs for linear in linears):
            raise self._unsupported(operation)
        cache = operation.attributes["cache"]
        projected = self._shared("qkv", sum(linear.output.width for linear in linears))
        columns = [0, linears[0].output.width, linears[0].output.width + linears[1].output.width]
        self._products(value.inputs[0], list(zip(linears, columns, strict=True)), projected, add=False)
        target = self._attended(place, operation.output.width)
        apart = self._graph.mixes_windows and cache.window is not None
        self._native.attend(
            projected,
            target,
            self._native.add_cache_layer(cache.num_kv_heads, cache.head_dim, apart),
            self._rope(query.attributes["spec"]),
            operation.output.width // cache.head_dim,
            cache.window or 0,
            operation.attributes["scale"],
            operation.attributes["softcap"] or 0.0,
            tuple(-1 if norm is None else self._norm_vector(norm) for norm in norms),
            max(epsilons, default=0.0),
            apart,
        )
        self._floats[operation.output.index] = target
        if place == self._last_attention:
            self._gather(place)

    def _attended(self, place: int, width: int) -> int:
        """Where an attention's output goes: to a buffer that every layer uses in turn, unless what another left there is still needed. A
        buffer for each layer would be the greater part of a long step's memory."""
        shared = self._shared("attended", width)
        for index, target in self._floats.items():
            converted = (index, True) in self._activations or (index, False) in self._activations
            if target == shared and (not converted or self._last_use.get(index, -1) > place):
                return int(self._native.add_floats(width, False))
        return shared

    def _gather(self, place: int) -> None:
        """Goes on with the rows whose logits are wanted: of this attention's output, and of whatever else is still needed."""
        self._samples = True
        for index, source in self._floats.items():
            if self._last_use.get(index, -1) > place:
                target = self._native.add_floats(self._widths[index], True)
                self._native.gather(source, target)
                self._floats[index] = target

    def _add(self, place: int, operation: Operation) -> None:
        residual, added = operation.inputs
        maker = self._makers[added.index]
        norm = maker if maker.name == "rms_norm" else None
        linear = maker if norm is None else self._makers[norm.inputs[0].index]
        # The sum is taken in place, so nobody may want the residual afterwards.
        if linear.name != "linear" or residual.index not in self._floats or self._last_use[residual.index] != place:
            raise self._unsupported(operation)
        target = self._floats[residual.index]
        if norm is None:
            self._products(linear.inputs[0], [(linear, 0)], target, add=True)
        else:
            between = self._shared("before a norm", norm.output.width)
            self._products(linear.inputs[0], [(linear, 0)], between, add=False)
            self._native.add_norm(between, self._norm_vector(norm), target, norm.attributes["epsilon"])
        self._floats[operation.output.index] = target

    def _logits(self, place: int, operation: Operation) -> None:
        norm = self._makers[operation.inputs[0].index]
        if norm.name != "rms_norm":
            raise self._unsupported(operation)
        weight = self._pack(operation.weights[0].name)
        activations = self._converted(operation.inputs[0], weight.layout.integer)
        target = self._native.add_floats(operation.output.width, True)
        self._native.product(activations, target, [(weight.index, 0)], False, operation.attributes["softcap"] or 0.0)

    def _products(self, source: Value, parts: list[tuple[Operation, int]], target: int, *, add: bool) -> None:
        """One product for each form of activations among the parts' layouts."""
        for integer in (True, False):
            # What makes the source is packed first: weights lie in the order in which they are read.
            chosen = [(part, column) for part, column in parts if self._layout(part).integer is integer]
            if chosen:
                activations = self._converted(source, integer)
                self._native.product(activations, target, [(self._pack_linear(part).index, column) for part, column in chosen], add)

    def _converted(self, value: Value, integer: bool) -> int:
        """The activations of a value, in the form that a layout multiplies; written once."""
        key = (value.index, integer)
        if key in self._activations:
            return self._activations[key]
        maker = self._makers[value.index]
        if maker.name in GATES:
            activations = self._gated(maker, integer)
        elif maker.name == "rms_norm" and maker.inputs[0].index in self._floats:
            activations = self._form("norm", value.width, integer)
            source = self._floats[maker.inputs[0].index]
            self._native.norm(source, self._norm_vector(maker), activations, maker.attributes["epsilon"])
        elif value.index in self._floats:
            activations = self._form("convert", value.width, integer)
            self._native.convert(self._floats[value.index], activations)
        else:
            raise self._unsupported(maker)
        self._activations[key] = activations
        return activations

    def _gated(self, operation: Operation, integer: bool) -> int:
        gate, up = (self._makers[value.index] for value in operation.inputs)
        if gate.name != "linear" or up.name != "linear" or gate.inputs != up.inputs:
            raise self._unsupported(operation)
        if self._layout(gate).integer != self._layout(up).integer:
            raise self._unsupported(operation)
        source = self._converted(gate.inputs[0], self._layout(gate).integer)
        packed = self._pack_pair(gate, up)
        target = self._form("gated", operation.output.width, integer)
        self._native.gated(source, packed[0].index, packed[1].index, target, GATES[operation.name])
        return target

    def _shared(self, purpose: str, width: int) -> int:
        """A buffer that every layer uses in turn."""
        key = (f"{purpose} {self._samples}", width)
        if key not in self._scratch:
            self._scratch[key] = self._native.add_floats(width, self._samples)
        return self._scratch[key]

    def _form(self, purpose: str, width: int, integer: bool) -> int:
        key = (f"{purpose} {integer} {self._samples}", width)
        if key not in self._scratch:
            self._scratch[key] = self._native.add_activations(width, integer, self._samples)
        return self._scratch[key]

    def _layout(self, linear: Operation) -> Layout:
        return layout_of(self._weights(linear.weights[0].name).kind)

    def _pack_linear(self, operation: Operation) -> PackedWeight:
        return self._pack(operation.weights[0].name, _bias_name(operation))

    def _pack_pair(self, gate: Operation, up: Operation) -> list[PackedWeight]:
        """Two linears of one shape that are read in turns, side by side in memory unless one of them lies somewhere already."""
        names = [gate.weights[0].name, up.weights[0].name]
        if len({*names, *self._packed}) == 2 + len(self._packed):
            biases = [self._bias(_bias_name(linear)) for linear in (gate, up)]
            outputs, inner = gate.weights[0].shape
            first = self._native.add_linear_pair(self._layout(gate), self._layout(up), outputs, inner, *biases)
            for index, name in enumerate(names, first):
                self._fill(name, index)
        return [self._pack_linear(linear) for linear in (gate, up)]

    def _linear(self, name: str) -> int:
        return self._pack(name).index

    def _pack(self, name: str, bias: str | None = None) -> PackedWeight:
        """Packs a weight at its first use; one that serves twice is held once."""
        if name not in self._packed:
            tensor = self._weights(name)
            self._fill(name, self._native.add_linear(layout_of(tensor.kind), *tensor.shape, self._bias(bias)))
        return self._packed[name]

    def _fill(self, name: str, index: int) -> None:
        tensor = self._weights(name)
        ready = packable(tensor)
        changed = self._native.fill(index, ready.storage, ready.data, np.empty(0, np.int64))
        if changed or tensor.kind not in LAYOUTS:
            key = (tensor.kind, ready.layout)
            self._rounded[key] = self._rounded.get(key, 0) + 1
        self._packed[name] = PackedWeight(index, ready.layout)
        self._on_progress(tensor.nbytes)

    def _bias(self, name: str | None) -> Any:
        return np.empty(0, np.float32) if name is None else self._floats_of(name)

    def _norm_vector(self, norm: Operation) -> int:
        """What a norm multiplies by."""
        key = (norm.weights[0].name, norm.attributes["offset"])
        if key not in self._vectors:
            self._vectors[key] = self._native.add_vector(np.float32(key[1]) + self._floats_of(key[0]))
        return self._vectors[key]

    def _floats_of(self, name: str) -> Any:
        tensor = self._weights(name)
        self._on_progress(tensor.nbytes)
        return np.ascontiguousarray(decode(tensor), dtype=np.float32).reshape(-1)

    def _rope(self, spec: RopeSpec) -> int:
        if spec not in self._ropes:
            self._ropes[spec] = self._native.add_rope(np.array(spec.inverse_frequencies, np.float32), spec.scale)
        return self._ropes[spec]

    def _unsupported(self, operation: Operation) -> UnsupportedModelError:
        return UnsupportedModelError(
            f"the cpu backend has no form for {operation.name} as this model uses it; the reference backend (--backend reference) does"
        )


def _bias_name(linear: Operation) -> str | None:
    return linear.weights[1].name if len(linear.weights) > 1 else None
