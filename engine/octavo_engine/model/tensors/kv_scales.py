"""What a checkpoint would have keys and values divided by before they are rounded to 8 bits. No torch.

One number for all keys of a layer, and one for all values. They belong to a cache of 8 bits (`--kv-cache-dtype fp8`);
another one keeps what the layer computes, and has no use for them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from octavo_engine.errors import CheckpointInvalid, ModelUnsupported

Shape = tuple[int, ...]

# What tools call them, within a layer's `self_attn`, today's first: LLM Compressor and its forerunners, ModelOpt.
KEY_NAMES = ("k_scale", "attn.k_scale", "k_proj.k_scale", "k_proj.output_scale")
VALUE_NAMES = ("v_scale", "attn.v_scale", "v_proj.v_scale", "v_proj.output_scale")


@dataclass(frozen=True, slots=True)
class ScaleNames:
    """The tensors of one layer."""

    key: str
    value: str


def names_in(shapes: Mapping[str, Shape], layers: int) -> tuple[ScaleNames, ...]:
    """The tensors of each layer in a checkpoint that says it has them.

    Raises CheckpointInvalid naming one that is missing, and ModelUnsupported for those of more than one number.
    """
    found = []
    for layer in range(layers):
        place = f"model.layers.{layer}.self_attn"
        found.append(ScaleNames(_found(shapes, place, KEY_NAMES), _found(shapes, place, VALUE_NAMES)))
    return tuple(found)


def all_names(names: tuple[ScaleNames, ...]) -> Iterator[str]:
    """Every tensor."""
    for layer in names:
        yield from (layer.key, layer.value)


def _found(shapes: Mapping[str, Shape], place: str, spellings: tuple[str, ...]) -> str:
    name = next((name for spelling in spellings if (name := f"{place}.{spelling}") in shapes), None)
    if name is None:
        raise CheckpointInvalid(f"tensor {place}.{spellings[0]} is missing from the checkpoint")
    if math.prod(shapes[name]) != 1:
        raise ModelUnsupported(
            f"tensor {name} has the shape {list(shapes[name])}: scales of heads or channels are not supported;"
            " supported is one number for all keys of a layer, and one for all values"
        )
    return name


def read_scales(names: tuple[ScaleNames, ...], number: Callable[[str], float]) -> tuple[tuple[float, float], ...]:
    """Of each layer the keys' and the values'; `number` reads a tensor. Raises CheckpointInvalid naming a bad one."""
    return tuple((_checked(layer.key, number), _checked(layer.value, number)) for layer in names)


def _checked(name: str, number: Callable[[str], float]) -> float:
    value = number(name)
    if not (math.isfinite(value) and value > 0):
        raise CheckpointInvalid(f"tensor {name} is {value}; what keys and values are divided by must be above 0")
    return value
