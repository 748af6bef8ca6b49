"""All layers in one call (`native/layers.cpp`), calling the kernels as `compute.layers` does: the same bits, sooner.

A step of one token spends a sixth of its processor time between kernels when Python calls each of them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, c_float, c_int64, c_void_p
from dataclasses import dataclass, field

import torch
from torch import Tensor

from octavo_engine.kernels.attention import AttentionShape
from octavo_engine.kernels.cpu.attention import AttentionStep, describe
from octavo_engine.kernels.cpu.library import SUFFIXES, address, kernels
from octavo_engine.kernels.cpu.packing import Kind, PackedGatedLinear, PackedLinear
from octavo_engine.kernels.cpu.pointwise import HeadsOfStep
from octavo_engine.kernels.layers import LayerCache, LayersShape, LayerWeights, Step
from octavo_engine.kernels.side_by_side import SideBySide, products_in


class Product(ctypes.Structure):
    """The kernel's view of a product; the same fields as in `native/product.h`."""

    _fields_ = (("kind", c_int64), ("weight", c_void_p), ("parts", c_int64), ("outputs", c_int64))


class Layer(ctypes.Structure):
    """The kernel's view of a layer's weights; the same fields as in `native/layers.cpp`."""

    _fields_ = (
        *((name, c_void_p) for name in ("input_norm", "query_norm", "key_norm", "mlp_norm")),
        *((name, Product) for name in ("qkv", "output", "gate_up", "down")),
    )


class LayersStep(ctypes.Structure):
    """The kernel's view of a step of all layers; the same fields as in `native/layers.cpp`."""

    _fields_ = (
        ("layers", POINTER(Layer)),
        ("caches", POINTER(c_void_p)),
        ("attention", POINTER(c_void_p)),
        ("heads", c_void_p),
        *((name, c_int64) for name in ("count", "tokens")),
        ("kept", c_void_p),
        ("kept_rows", c_int64),
        *((name, c_int64) for name in ("hidden_width", "heads_width", "attended_width", "gated_width")),
        *((name, c_void_p) for name in ("hidden", "normed", "turned", "attended", "gated")),
        ("eps", c_float),
    )


class LayerPointers:
    """The addresses of a cache's parts, for as long as it is the same cache."""

    def __init__(self) -> None:
        self._caches: Sequence[LayerCache] = ()
        self._pointers = (c_void_p * 0)()

    def of(self, caches: Sequence[LayerCache]) -> ctypes.Array[c_void_p]:
        """[layers][2]: keys and values."""
        if caches is not self._caches:
            self._caches = caches  # kept, so that no other can come to be at its place
            self._pointers = (c_void_p * (2 * len(caches)))(*(part.data_ptr() for cache in caches for part in cache))
        return self._pointers


@dataclass(frozen=True)
class PackedLayers:
    """The native RunLayers; its weights are packed, all of one type."""

    layers: Sequence[LayerWeights]
    shape: LayersShape
    _views: ctypes.Array[Layer] = field(init=False)
    _parts: list[ctypes.Array[Product]] = field(init=False, default_factory=list)  # of products side by side
    _caches: LayerPointers = field(init=False, default_factory=LayerPointers)

    def __post_init__(self) -> None:
        views = (Layer * len(self.layers))(*(view(layer, self._parts) for layer in self.layers))
        object.__setattr__(self, "_views", views)

    def __call__(self, hidden: Tensor, step: Step, caches: Sequence[LayerCache]) -> Tensor:
        """Run them; `hidden` is overwritten."""
        shape, tokens = self.shape, len(hidden)
        kept = tokens if step.kept is None else len(step.kept)
        attention = {window: self._attention(window, step, caches[0][0]) for window in set(shape.windows)}
        heads = self._heads(step, block_size=caches[0][0].shape[1])
        queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        widths = (hidden.shape[1], queries + 2 * keys, queries, shape.intermediate)
        scratch = [torch.empty((tokens, width), dtype=hidden.dtype) for width in widths]
        all_layers = LayersStep(
            self._views,
            self._caches.of(caches),
            (c_void_p * len(caches))(*(ctypes.addressof(attention[window]) for window in shape.windows)),
            ctypes.addressof(heads),
            len(caches),
            tokens,
            address(step.kept),
            kept,
            *widths,
            hidden.data_ptr(),
            *(part.data_ptr() for part in scratch),
            shape.eps,
        )
        run = getattr(kernels(), f"octavo_layers_{SUFFIXES[hidden.dtype]}")
        run(ctypes.addressof(all_layers), torch.get_num_threads())
        return hidden[:kept]

    def _attention(self, window: int | None, step: Step, cache: Tensor) -> AttentionStep:
        """Of the layers with that window."""
        shape = self.shape
        scale = shape.head_dim**-0.5
        kind = AttentionShape(cache.shape[1], shape.kv_heads, shape.head_dim, cache.dtype, scale, window)
        view = describe(step.layout, kind)
        view.query_heads = shape.heads
        return view

    def _heads(self, step: Step, block_size: int) -> HeadsOfStep:
        """The way of the step's heads into the cache."""
        shape, slots = self.shape, step.layout.slots
        sizes = (len(slots), shape.heads, shape.kv_heads, shape.head_dim, block_size)
        return HeadsOfStep(address(step.cos), address(step.sin), address(slots), *sizes, shape.eps)


def packed(layers: Sequence[LayerWeights]) -> bool:
    """True if every product is packed: a weight that does not pack leaves its layers to be called one by one."""
    return all(is_packed(product) for layer in layers for product in layer.products)


def is_packed(product: object) -> bool:
    """True for one that the native loop can call, and for some of them side by side."""
    parts = products_in(product) if isinstance(product, SideBySide) else (product,)
    return all(isinstance(part, PackedLinear | PackedGatedLinear) for part in parts)


def view(layer: LayerWeights, parts: list[ctypes.Array[Product]]) -> Layer:
    """Points into the layer's memory and into what is appended to `parts`; both must live as long."""
    norms = (None, None) if layer.head_norms is None else (layer.head_norms.query, layer.head_norms.key)
    products = [product_view(product, parts) for product in layer.products]
    return Layer(address(layer.input_norm), *map(address, norms), address(layer.mlp_norm), *products)


def product_view(product: object, parts: list[ctypes.Array[Product]]) -> Product:
    """The same for a product that `is_packed`."""
    if isinstance(product, SideBySide):
        views = (Product * len(product.parts))(*(product_view(part, parts) for part in product.parts))
        parts.append(views)
        return Product(Kind.JOINED, ctypes.addressof(views), len(views), sum(view.outputs for view in views))
    assert isinstance(product, PackedLinear | PackedGatedLinear)
    return Product(product.weight.kind, product.weight.pointer, 0, product.weight.outputs)
