"""Checkpoints with scales for keys and values of 8 bits, as tools write them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from octavo_engine.kernels.attention import CacheScales
from tiny_models import SIZES, save_model

# So far from 1 that without them numbers are cut off, or lost below the least that 8 bits have.
SCALES = tuple(CacheScales(0.002 * 4**layer, 30.0 / 4**layer) for layer in range(SIZES["num_hidden_layers"]))
TODAYS = "self_attn.{}_scale"
SPELLINGS = (
    TODAYS,
    "self_attn.attn.{}_scale",
    "self_attn.{0}_proj.{0}_scale",
    "self_attn.{}_proj.output_scale",
)
SCHEME = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}


def tensors(spelling: str = TODAYS) -> dict[str, torch.Tensor]:
    """By name, in the shapes of both kinds."""
    return {
        f"model.layers.{layer}.{spelling.format(kind)}": torch.tensor(value if kind == "k" else [value])
        for layer, pair in enumerate(SCALES)
        for kind, value in zip("kv", pair, strict=True)
    }


def add_to(place: Path, added: dict[str, torch.Tensor], **config: Any) -> Path:
    """Add tensors to a checkpoint, and a quantization config if one is given."""
    weights = place / "model.safetensors"
    save_file(load_file(weights) | added, weights, metadata={"format": "pt"})
    if config:
        described = json.loads((place / "config.json").read_text())
        described["quantization_config"] = {"quant_method": "compressed-tensors", **config}
        (place / "config.json").write_text(json.dumps(described))
    return place


def save_scaled(model: Any, place: Path) -> Path:
    """A transformers model with SCALES; returns the directory."""
    return add_to(save_model(model, place), tensors(), kv_cache_scheme=SCHEME, config_groups={})
