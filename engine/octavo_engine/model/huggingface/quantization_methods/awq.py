"""AWQ (https://arxiv.org/abs/2306.00978), as AutoAWQ and GPTQModel write it: 4 bits, in one of two packings."""

from __future__ import annotations

from octavo_engine.model.fields import Fields
from octavo_engine.model.huggingface.quantization_methods.facts import few, group_size, one_of
from octavo_engine.model.values.name_patterns import EVERYTHING, within
from octavo_engine.model.values.quantization import Packing, Quantization, Rule, Scheme

PACKINGS = {"gemm": Packing.AWQ_GEMM, "gemv": Packing.AWQ_GEMV}
GEMV_GROUPS = (32, 64)  # and any from 128 on: others have no defined width of their zero points
NEVER = ("lm_head",)  # AWQ quantizes what is inside the layers


def read(config: Fields) -> Quantization:
    """The fields `version` (or `format`, `checkpoint_format`), `bits`, `group_size` and those about modules."""
    packing = _packing(config)
    bits = config.integer("bits", config.integer("w_bit", 4))
    one_of(config, "bits", bits, (4,))
    group = group_size(config, "group_size" if config.has("group_size") else "q_group_size", 128)
    if packing is Packing.AWQ_GEMV and group is not None and group < 128:
        one_of(config, "group_size", group, GEMV_GROUPS)
    scheme = Scheme(packing, bits, group, zero_points=config.flag("zero_point", True))
    named = config.words("modules_to_not_convert")
    few(config, "modules_to_not_convert", len(named))
    plain = [within(name) for name in (*NEVER, *named) if name]
    return Quantization("awq", (*(Rule(names, None) for names in plain), Rule(EVERYTHING, scheme)))


def _packing(config: Fields) -> Packing:
    keys = [key for key in ("version", "checkpoint_format", "format") if config.has(key)]
    value = str(config.values[keys[0]] if keys else "gemm").lower()
    one_of(config, keys[0] if keys else "version", value, PACKINGS)
    return PACKINGS[value]
