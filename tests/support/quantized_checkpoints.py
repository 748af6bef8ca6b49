"""Checkpoints in the layouts that AWQ's, GPTQ's and compressed-tensors' tools write, made from transformers' models.

Weights are rounded to the nearest code, which makes worse models than those tools, and the same files. The model itself
gets the weights that the codes mean, so that it is the oracle. Written for plainness, with none of the engine's code.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True)
class Codes:
    """A weight `[out, in]` in codes, before any layout."""

    codes: Tensor  # int64 [out, in]
    scales: Tensor  # [out, groups], in the type that is stored
    zeros: Tensor  # int64 [out, groups]: codes that mean zero
    groups: Tensor  # int64 [in]: each input's group
    bits: int

    def exact(self) -> Tensor:
        """What it means, float32 `[out, in]`: computed in float64, where nothing is rounded."""
        return (self.scales.double()[:, self.groups] * (self.codes - self.zeros[:, self.groups])).float()


@dataclass(frozen=True)
class Recipe:
    """How a checkpoint is written."""

    config: Mapping[str, Any]  # quantization_config
    layout: Callable[[Codes], dict[str, Tensor]]
    bits: int = 4
    group: int = 32  # -1: whole rows
    symmetric: bool = False
    by_activation: bool = False
    scale_type: torch.dtype = torch.float16
    plain: Sequence[str] = ()  # modules that are left as they are, by a part of their name
    changed: Mapping[str, int] = field(default_factory=dict)  # by a part of the name: other bits


def random_codes(outputs: int, inputs: int, recipe: Recipe, seed: int = 0) -> Codes:
    """Every code and every zero point may occur."""
    chance = torch.Generator().manual_seed(seed)
    groups = groups_of(inputs, recipe, chance)
    count, most = int(groups.max()) + 1, 1 << recipe.bits
    zeros = torch.randint(most, (outputs, count), generator=chance)
    return Codes(
        codes=torch.randint(most, (outputs, inputs), generator=chance),
        scales=(torch.rand(outputs, count, generator=chance) * 0.1 + 0.01).to(recipe.scale_type),
        zeros=torch.full_like(zeros, most // 2) if recipe.symmetric else zeros,
        groups=groups,
        bits=recipe.bits,
    )


def rounded(weight: Tensor, recipe: Recipe, seed: int = 0) -> Codes:
    """The nearest codes."""
    groups = groups_of(weight.shape[1], recipe, torch.Generator().manual_seed(seed))
    most = (1 << recipe.bits) - 1
    ranges = [weight[:, groups == group].aminmax(dim=1) for group in range(int(groups.max()) + 1)]
    low = torch.stack([low for low, _ in ranges], dim=1).clamp(max=0)
    high = torch.stack([high for _, high in ranges], dim=1).clamp(min=0)
    if recipe.symmetric:
        high = torch.maximum(-low, high)
        low = -high
    scales = ((high - low) / most).clamp(min=1e-4).to(recipe.scale_type)
    zeros = (-low / scales.float()).round().clamp(0, most).long()
    if recipe.symmetric:
        zeros = torch.full_like(zeros, (most + 1) // 2)
    codes = (weight / scales.float()[:, groups]).round().long() + zeros[:, groups]
    return Codes(codes.clamp(0, most), scales, zeros, groups, recipe.bits)


def groups_of(inputs: int, recipe: Recipe, chance: torch.Generator) -> Tensor:
    """int64 `[in]`."""
    size = inputs if recipe.group == -1 else recipe.group
    in_order = torch.arange(inputs) // size
    if not recipe.by_activation:
        return in_order
    return torch.empty_like(in_order).scatter_(0, torch.randperm(inputs, generator=chance), in_order)


# ---- layouts ---------------------------------------------------------------------------------------------------------


def words(values: Tensor, bits: int) -> Tensor:
    """Codes `[rows, n]` side by side, from the lowest bit on -> int32 `[rows, words]`."""
    each = (values.numpy()[:, :, None].astype(np.uint8) >> np.arange(bits, dtype=np.uint8)) & 1
    stream = each.reshape(len(each), -1)
    padded = np.pad(stream, ((0, 0), (0, -stream.shape[1] % 32)))
    return torch.from_numpy(np.packbits(padded, axis=1, bitorder="little").view(np.int32).copy())


def gptq(codes: Codes, *, version: int = 1, index: bool = True) -> dict[str, Tensor]:
    """Version 1 stores zero points less one, taken from whole words; of 3 bits from each, so that none may be 0."""
    if version == 2:
        zeros = words(codes.zeros.t(), codes.bits)
    elif codes.bits == 3:
        zeros = words(codes.zeros.t() - 1, 3)
    else:
        zeros = words(codes.zeros.t(), codes.bits) - {2: 0x55555555, 4: 0x11111111, 8: 0x01010101}[codes.bits]
    found = {
        "qweight": words(codes.codes, codes.bits).t().contiguous(),
        "qzeros": zeros,
        "scales": codes.scales.t().contiguous(),
    }
    return found | ({"g_idx": codes.groups.int()} if index else {})


def gptq_v2(codes: Codes) -> dict[str, Tensor]:
    return gptq(codes, version=2)


def gptq_without_index(codes: Codes) -> dict[str, Tensor]:
    return gptq(codes, index=False)


def awq_gemm(codes: Codes) -> dict[str, Tensor]:
    def interleaved(values: Tensor) -> Tensor:
        rows = values.t().reshape(values.shape[1], -1, 8)[:, :, [0, 2, 4, 6, 1, 3, 5, 7]]
        return words(rows.flatten(1), 4)

    return {
        "qweight": interleaved(codes.codes),
        "qzeros": interleaved(codes.zeros),
        "scales": codes.scales.t().contiguous(),
    }


def awq_gemm_without_zeros(codes: Codes) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in awq_gemm(codes).items() if name != "qzeros"}


def awq_gemv(codes: Codes) -> dict[str, Tensor]:
    """Columns of zero points are filled up to 8, 16 or 32 groups, by the size of a group."""
    inputs, groups = codes.codes.shape[1], codes.scales.shape[1]
    multiple = {32: 32, 64: 16}.get(inputs // groups, 8)
    spare = (0, -groups % multiple)
    return {
        "qweight": words(codes.codes, 4),
        "qzeros": words(torch.nn.functional.pad(codes.zeros, spare), 4),
        "scales": torch.nn.functional.pad(codes.scales, spare),
    }


def pack_quantized(codes: Codes, *, index: bool = False, zeros: str = "packed") -> dict[str, Tensor]:
    found = {
        "weight_packed": words(codes.codes, codes.bits),
        "weight_scale": codes.scales,
        "weight_shape": torch.tensor(codes.codes.shape),
    }
    if zeros == "packed":
        found["weight_zero_point"] = words(codes.zeros.t(), codes.bits).t().contiguous()
    if zeros == "bytes":
        found["weight_zero_point"] = (codes.zeros - (1 << (codes.bits - 1))).to(torch.int8)
    return found | ({"weight_g_idx": codes.groups.int()} if index else {})


def pack_quantized_symmetric(codes: Codes) -> dict[str, Tensor]:
    return pack_quantized(codes, zeros="none")


def pack_quantized_by_activation(codes: Codes) -> dict[str, Tensor]:
    return pack_quantized(codes, index=True, zeros="none")


def pack_quantized_bytes(codes: Codes) -> dict[str, Tensor]:
    return pack_quantized(codes, zeros="bytes")


# ---- configs ---------------------------------------------------------------------------------------------------------


def gptq_config(**changes: Any) -> dict[str, Any]:
    fields = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": False}
    return fields | {"checkpoint_format": "gptq"} | changes


def awq_config(**changes: Any) -> dict[str, Any]:
    return {"quant_method": "awq", "bits": 4, "group_size": 16, "zero_point": True, "version": "gemm"} | changes


def compressed_config(*, ignore: Sequence[str] = ("lm_head",), **weights: Any) -> dict[str, Any]:
    scheme = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 16, "dynamic": False}
    group = {"targets": ["Linear"], "weights": scheme | weights, "input_activations": None, "output_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": list(ignore),
    }


# ---- whole checkpoints -----------------------------------------------------------------------------------------------


@torch.no_grad()
def save_quantized(model: Any, directory: Path, recipe: Recipe) -> Path:
    """Write a transformers model as the recipe says, and give it the weights that were written."""
    model.save_pretrained(directory)
    file = directory / "model.safetensors"
    tensors = load_file(file)
    modules = dict(model.named_modules())
    for name in [name for name in tensors if name.removesuffix(".weight").endswith(PROJECTIONS)]:
        module = name.removesuffix(".weight")
        if not name.endswith(".weight") or any(part in module for part in recipe.plain):
            continue
        codes = rounded(tensors.pop(name), _changed(recipe, module))
        tensors |= {f"{module}.{part}": tensor for part, tensor in recipe.layout(codes).items()}
        modules[module].weight.copy_(codes.exact())
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, file, metadata={"format": "pt"})
    place = directory / "config.json"
    place.write_text(json.dumps(json.loads(place.read_text()) | {"quantization_config": recipe.config}))
    return directory


def _changed(recipe: Recipe, module: str) -> Recipe:
    bits = next((bits for part, bits in recipe.changed.items() if part in module), recipe.bits)
    return replace(recipe, bits=bits)
