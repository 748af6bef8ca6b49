"""The rotary part of a GGUF file's metadata as a RopeSpec: what llama.cpp's converter stores of a scaling.

Llama 3's is a tensor of factors; linear and YaRN are keys; dynamic scaling is not stored at all, and such a file says
that it has none.
"""

from __future__ import annotations

import math
import struct

from octavo_engine.errors import ModelUnsupported
from octavo_engine.model.fields import Fields
from octavo_engine.model.gguf.file import GgufFile
from octavo_engine.model.values.rope_spec import (
    MAX_ATTENTION,
    MAX_FACTOR,
    MAX_POSITIONS,
    TURNS,
    FactorScaling,
    LinearScaling,
    RopeSpec,
    Scaling,
    YarnScaling,
    yarn_attention_factor,
)

ROPE_FACTORS = "rope_freqs.weight"
KINDS = ("none", "linear", "yarn")
ATTENTION = "yarn_attn_factor"
# Keys that change the numbers, and the value with which they do not. Converters disagree on what others would mean.
HARMLESS = {"attn_factor": 1.0, "yarn_ext_factor": 1.0, "yarn_log_multiplier": 0.0, "alpha": 0.0}


def read_gguf_rope(file: GgufFile, fields: Fields, prefix: str, head_dim: int, context: int) -> RopeSpec:
    """The rotation; `context` is the file's own length. Raises ModelUnsupported or CheckpointInvalid naming the key."""
    scaling = _keyed(fields, f"{prefix}.rope.scaling.", f"{prefix}.rope.scale_linear", context)
    if ROPE_FACTORS in file.tensors:
        if scaling is not None:
            raise ModelUnsupported(f"rope scaling both as keys and as {ROPE_FACTORS} is not supported")
        scaling = FactorScaling(_read_factors(file, head_dim))
    return RopeSpec(fields.number(f"{prefix}.rope.freq_base", 10000.0), scaling)


def _keyed(fields: Fields, prefix: str, linear_key: str, context: int) -> Scaling | None:
    """A scaling that is written as keys; `linear_key` is the oldest spelling of the linear one.

    A factor without a type is linear, as llama.cpp has it.
    """
    factor = fields.has(prefix + "factor") or fields.has(linear_key)
    kind = fields.values.get(prefix + "type", "linear" if factor else "none")
    if kind not in KINDS:
        supported = f"{', '.join(KINDS)}, and {ROPE_FACTORS}"
        raise ModelUnsupported(f"rope scaling {kind!r} is not supported; supported are {supported}")
    for key, harmless in HARMLESS.items():
        if fields.number(prefix + key, harmless) != harmless:
            raise ModelUnsupported(f"{prefix}{key} is {fields.values[prefix + key]}; supported is {harmless:g}")
    match kind:
        case "linear":
            key = prefix + "factor"
            return LinearScaling(_factor(fields, key if fields.has(key) else linear_key))
        case "yarn":
            return _yarn(fields, prefix, context)
    return None


def _yarn(fields: Fields, prefix: str, context: int) -> YarnScaling:
    """A scaling written as keys. The ramp's ends are whole: `truncate` is not stored."""
    factor = _factor(fields, prefix + "factor")
    key = prefix + "original_context_length"
    original = fields.size(key, MAX_POSITIONS) if fields.has(key) else context
    fast = fields.between(prefix + "yarn_beta_fast", *TURNS, 32.0)
    slow = fields.between(prefix + "yarn_beta_slow", *TURNS, 1.0)
    if fast < slow:
        raise fields.wrong(prefix + "yarn_beta_fast", fast, f"must be at least yarn_beta_slow ({slow:g})")
    return YarnScaling(
        factor=factor,
        original_max_positions=original,
        beta_fast=fast,
        beta_slow=slow,
        attention_factor=_attention(fields, prefix + ATTENTION, yarn_attention_factor(factor)),
    )


def _attention(fields: Fields, key: str, usual: float) -> float:
    """What cosines and sines are multiplied with; `usual` is what follows from the scaling's factor.

    llama.cpp's converter stores under one key a config's `attention_factor`, which takes the place of the usual one,
    and the `attn_factor` of older configs, which multiplies it. As the latter 1 is what everybody writes, as the former
    it switches the usual one off: a file does not say which. Another number is read as the former.
    """
    value = fields.positive(key, MAX_ATTENTION, usual)
    if value == 1.0 != usual:
        raise ModelUnsupported(
            f"{key} is 1.0, which some converters write to keep the usual {usual:.4g}, and others to be without it;"
            f" supported are files that leave it out or say {usual:.4g}"
        )
    return value


def _factor(fields: Fields, key: str) -> float:
    return fields.between(key, 1.0, MAX_FACTOR)


def _read_factors(file: GgufFile, head_dim: int) -> tuple[float, ...]:
    info, pairs = file.tensors[ROPE_FACTORS], head_dim // 2
    described = info.kind == 0 and info.shape == (pairs,)  # before a byte of it is asked for
    data = file.data[info.offset : info.offset + 4 * pairs] if described else b""
    if not described or len(data) != 4 * pairs:
        raise file.invalid(f"tensor {ROPE_FACTORS} must hold {pairs} float32 values")
    factors = struct.unpack(f"<{pairs}f", data)
    if not all(math.isfinite(factor) and factor > 0 for factor in factors):
        raise file.invalid(f"tensor {ROPE_FACTORS} must hold positive values")
    return factors
