"""GPTQ (https://arxiv.org/abs/2210.17323), as AutoGPTQ, GPTQModel and Optimum write it.

`dynamic` has exceptions by pattern: `-:pattern` leaves modules plain, `pattern` or `+:pattern` changes some fields.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from octavo_engine.errors import ModelUnsupported
from octavo_engine.model.fields import Fields
from octavo_engine.model.huggingface.quantization_methods.facts import few, group_size, one_of, soon_matched
from octavo_engine.model.values.name_patterns import EVERYTHING, exactly, like, within
from octavo_engine.model.values.quantization import Packing, Quantization, Rule, Scheme

PACKINGS = {"gptq": Packing.GPTQ, "gptq_v2": Packing.GPTQ_V2}
BITS = (2, 3, 4, 8)
WRITER_OF_OTHER_THREES = "gptqmodel"


def read(config: Fields) -> Quantization:
    """The fields `bits`, `group_size`, `desc_act`, `sym`, `checkpoint_format`, `dynamic`, `lm_head` and a list."""
    one_of(config, "pack_dtype", config.values.get("pack_dtype") or "int32", ("int32",))
    scheme = _changed(Scheme(_packing(config), 4, 128, zero_points=False), config)
    rules = [*_exceptions(config, scheme), *_chosen(config, scheme)]
    _refuse_other_threes(config, rules)
    if not config.flag("lm_head", False):
        rules.insert(0, Rule(exactly("lm_head"), None))
    return Quantization("gptq", tuple(rules))


def _packing(config: Fields) -> Packing:
    key = "checkpoint_format" if config.has("checkpoint_format") else "format"
    value = str(config.values.get(key) or "gptq").lower()
    one_of(config, key, value, PACKINGS)
    return PACKINGS[value]


def _changed(scheme: Scheme, fields: Fields) -> Scheme:
    """The scheme with what `fields` say."""
    bits = fields.integer("bits", scheme.bits)
    one_of(fields, "bits", bits, BITS)
    group = scheme.group if not fields.has("group_size") else group_size(fields, "group_size", 128)
    return replace(
        scheme,
        bits=bits,
        group=group,
        zero_points=not fields.flag("sym", not scheme.zero_points),
        by_activation=fields.flag("desc_act", scheme.by_activation),
    )


def _exceptions(config: Fields, scheme: Scheme) -> Iterator[Rule]:
    dynamic = config.section("dynamic")
    few(config, "dynamic", len(dynamic.values))
    expressions = [pattern[2:] if pattern.startswith(("+:", "-:")) else pattern for pattern in dynamic.values]
    patterns = [like(expression) for expression in expressions]
    soon_matched(config, "dynamic", patterns)
    for key, names in zip(dynamic.values, patterns, strict=True):
        changes = dynamic.section(key)
        yield Rule(names, None if key.startswith("-:") else _changed(scheme, changes))


def _chosen(config: Fields, scheme: Scheme) -> Iterator[Rule]:
    """Optimum's list of the modules of a layer that are quantized, in lists of those that were done at a time."""
    lists = config.values.get("modules_in_block_to_quantize")
    if lists is None:
        yield Rule(EVERYTHING, scheme)
        return
    if not isinstance(lists, list) or not all(isinstance(names, list) for names in lists):
        raise config.wrong("modules_in_block_to_quantize", lists, "must be a list of lists of names")
    few(config, "modules_in_block_to_quantize", sum(map(len, lists)))
    for names in lists:
        yield from (Rule(within(str(name)), scheme) for name in names)


def _refuse_other_threes(config: Fields, rules: list[Rule]) -> None:
    """GPTQModel takes another word than one in each field from 3-bit zero points; which, has changed.

    Where all are the middle, as with `sym`, they are known nevertheless.
    """
    writer = str(config.section("meta").values.get("quantizer", "")).lower()
    schemes = [rule.scheme for rule in rules if rule.scheme is not None]
    if WRITER_OF_OTHER_THREES in writer and any(
        (scheme.bits, scheme.packing, scheme.zero_points) == (3, Packing.GPTQ, True) for scheme in schemes
    ):
        raise ModelUnsupported(
            f"{config.name}: 3 bits with zero points in the format gptq are not the same in all versions of GPTQModel;"
            " supported are sym, and checkpoint_format gptq_v2"
        )
