"""The rotary part of a Hugging Face config as a RopeSpec, in the spellings of all years, as transformers reads them.

`rope_parameters` is today's; before it there was `rope_scaling` with `rope_type`, once `type`, beside a `rope_theta` at
the top. Where both sections are there, transformers takes the older one, and so does this.
"""

from __future__ import annotations

from octavo_engine.errors import ModelUnsupported
from octavo_engine.model.fields import Fields
from octavo_engine.model.values.rope_spec import (
    MAX_ATTENTION,
    MAX_FACTOR,
    MAX_POSITIONS,
    TURNS,
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    RopeSpec,
    Scaling,
    YarnScaling,
    yarn_attention_factor,
)

KINDS = ("default", "linear", "dynamic", "llama3", "yarn")
ORIGINAL = "original_max_position_embeddings"


def read_rope(config: Fields, head_dim: int, positions: int) -> RopeSpec:
    """The config's rotation; `positions` is its `max_position_embeddings`.

    Raises ModelUnsupported for a kind that is not known, CheckpointInvalid naming the field.
    """
    older = config.section("rope_scaling")
    parameters = older if older.values else config.section("rope_parameters")
    _refuse_partial(config, parameters)
    theta = parameters.number("rope_theta", config.number("rope_theta", 10000.0))
    kind = parameters.values.get("rope_type") or parameters.values.get("type") or "default"
    return RopeSpec(theta, _scaling(kind, config, parameters, head_dim, positions))


def _refuse_partial(config: Fields, parameters: Fields) -> None:
    for key, value in parameters.values.items():
        if isinstance(value, dict):
            raise ModelUnsupported(f"{parameters.name}: {key} turns by other angles; supported is one rotation for all")
    partial = parameters.number("partial_rotary_factor", config.number("partial_rotary_factor", 1.0))
    if partial != 1.0:
        raise ModelUnsupported(
            f"partial_rotary_factor {partial:g} is not supported: these architectures turn whole heads (1)"
        )


def _scaling(kind: object, config: Fields, parameters: Fields, head_dim: int, positions: int) -> Scaling | None:
    match kind:
        case "default":
            return None
        case "linear":
            return LinearScaling(_factor(parameters))
        case "dynamic":
            if head_dim <= 2:  # its exponent divides by what is above two
                raise config.wrong("head_dim", head_dim, "must be above 2 for dynamic rope scaling")
            return DynamicScaling(factor=_factor(parameters), original_max_positions=positions)
        case "llama3":
            return _llama3(parameters, _original(config, parameters, positions))
        case "yarn":
            return _yarn(parameters, _original(config, parameters, positions), positions)
    raise ModelUnsupported(f"rope scaling {kind!r} is not supported; supported are {', '.join(KINDS)}")


def _llama3(parameters: Fields, original: int) -> Llama3Scaling:
    low, high = (parameters.between(key, *TURNS) for key in ("low_freq_factor", "high_freq_factor"))
    if high <= low:
        raise parameters.wrong("high_freq_factor", high, "must be above low_freq_factor")
    return Llama3Scaling(_factor(parameters), low, high, original)


def _yarn(parameters: Fields, original: int, positions: int) -> YarnScaling:
    factor = _factor(parameters, positions / original)
    fast, slow = parameters.between("beta_fast", *TURNS, 32.0), parameters.between("beta_slow", *TURNS, 1.0)
    if fast < slow:
        raise parameters.wrong("beta_fast", fast, f"must be at least beta_slow ({slow:g})")
    mscale, all_dim = (parameters.between(key, 0.0, MAX_ATTENTION, 0.0) for key in ("mscale", "mscale_all_dim"))
    derived = yarn_attention_factor(factor, mscale, all_dim)
    return YarnScaling(
        factor=factor,
        original_max_positions=original,
        beta_fast=fast,
        beta_slow=slow,
        attention_factor=parameters.positive("attention_factor", MAX_ATTENTION, derived),
        truncate=parameters.flag("truncate", True),
    )


def _original(config: Fields, parameters: Fields, positions: int) -> int:
    """The positions before scaling: at the top of the config, in the section, or the only number there is."""
    fields = config if config.has(ORIGINAL) else parameters
    return fields.size(ORIGINAL, MAX_POSITIONS) if fields.has(ORIGINAL) else positions


def _factor(parameters: Fields, default: float | None = None) -> float:
    return parameters.between("factor", 1.0, MAX_FACTOR, default)
