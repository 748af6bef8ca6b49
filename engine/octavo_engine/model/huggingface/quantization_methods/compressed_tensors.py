"""compressed-tensors, as LLM Compressor writes it: groups of modules, each with its scheme, and modules to ignore.

Read are weights of 4 and 8 bits, in groups or whole rows, packed into words, and scales of keys and values as 8-bit
floats. Schemes that quantize activations, too, compute something else, and are refused by name.
"""

from __future__ import annotations

from collections.abc import Iterator

from octavo_engine.errors import ModelUnsupported
from octavo_engine.model.fields import Fields
from octavo_engine.model.huggingface.quantization_methods.facts import few, group_size, one_of, soon_matched
from octavo_engine.model.values.name_patterns import EVERYTHING, NamePattern, exactly, like
from octavo_engine.model.values.quantization import Packing, Quantization, Rule, Scheme

FORMAT = "pack-quantized"
STRATEGIES = ("group", "channel")
ORDERS = ("group", "weight", "dynamic", "static", True, False)
BY_ACTIVATION = ("group", "dynamic", True)  # weights of the others lie as if they had been done in the inputs' order
EVERY_LINEAR = "Linear"
EXPRESSION = "re:"
KV_CACHE_SCHEME = "kv_cache_scheme"
IN_THE_WEIGHTS = ("weight_input", "weight_output")  # where rotations are done; elsewhere activations are turned


def read(config: Fields) -> Quantization | None:
    """The fields `config_groups`, `format`, `ignore`, and those of what is refused; None where no weight is quantized,
    but keys and values are."""
    if config.section("sparsity_config").values.get("format", "dense") != "dense":
        raise ModelUnsupported(f"{config.name}: sparsity_config is not supported; supported are dense weights")
    _refuse_rotations(config.section("transform_config"))
    ignored, found = _ignored(config), _grouped(config)
    if not found and config.has(KV_CACHE_SCHEME):
        return None
    if not found:
        raise config.wrong("config_groups", config.values.get("config_groups"), "must name what is quantized")
    found.sort(key=lambda rule: rule[0])  # stable: names before expressions before classes
    return Quantization("compressed-tensors", (*ignored, *(rule for _, rule in found)))


def has_kv_scales(config: Fields) -> bool:
    """The field `kv_cache_scheme`: False where it is absent; raises ModelUnsupported for all but one scale a layer."""
    if not config.has(KV_CACHE_SCHEME):
        return False
    scheme = config.section(KV_CACHE_SCHEME)
    one_of(scheme, "num_bits", scheme.integer("num_bits", 8), (8,))
    one_of(scheme, "type", str(scheme.values.get("type", "int")).lower(), ("float",))
    one_of(scheme, "strategy", str(scheme.values.get("strategy") or "tensor").lower(), ("tensor",))
    one_of(scheme, "symmetric", scheme.flag("symmetric", True), (True,))
    one_of(scheme, "dynamic", scheme.flag("dynamic", False), (False,))
    return True


def _refuse_rotations(config: Fields) -> None:
    """Those that a product would have to apply to what it reads or gives (QuIP, SpinQuant's R3 and R4)."""
    groups = config.section("config_groups")
    for name in groups.values:
        group = groups.section(name)
        steps = group.values.get("apply")
        if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
            raise group.wrong("apply", steps, "must be a list of objects")
        for step in steps:
            one_of(group, "location", step.get("location"), IN_THE_WEIGHTS)


def _ignored(config: Fields) -> list[Rule]:
    names = config.words("ignore")
    few(config, "ignore", len(names))
    patterns = [_pattern(name) for name in names]
    soon_matched(config, "ignore", patterns)
    return [Rule(pattern, None) for pattern in patterns]


def _grouped(config: Fields) -> list[tuple[int, Rule]]:
    """Of all groups, each rule with how specific its pattern is: 0 is a name."""
    section = config.section("config_groups")
    groups = [section.section(name) for name in section.values]
    few(config, "config_groups", sum(len(group.words("targets")) for group in groups))
    found = [rule for group in groups for rule in _rules(config, group)]
    soon_matched(config, "config_groups", (rule.names for _, rule in found))
    return found


def _rules(config: Fields, group: Fields) -> Iterator[tuple[int, Rule]]:
    for part in ("input_activations", "output_activations"):
        if group.has(part):
            raise ModelUnsupported(f"{group.name}: {part} is not supported; supported are schemes of weights alone")
    one_of(group, "format", group.values.get("format") or config.values.get("format"), (FORMAT,))
    scheme = _scheme(group.section("weights"))
    for target in group.words("targets"):
        yield _rank(target), Rule(_pattern(target), scheme)


def _scheme(weights: Fields) -> Scheme:
    bits = weights.integer("num_bits", 8)
    one_of(weights, "num_bits", bits, (4, 8))
    one_of(weights, "type", str(weights.values.get("type", "int")).lower(), ("int",))
    one_of(weights, "dynamic", weights.flag("dynamic", False), (False,))
    one_of(weights, "actorder", weights.values.get("actorder") or False, ORDERS)
    group = group_size(weights, "group_size", -1)
    strategy = str(weights.values.get("strategy") or ("channel" if group is None else "group")).lower()
    one_of(weights, "strategy", strategy, STRATEGIES)
    if strategy == "group" and group is None:
        raise weights.wrong("group_size", weights.values.get("group_size"), "must be positive for the strategy group")
    return Scheme(
        Packing.COMPRESSED_TENSORS,
        bits,
        group if strategy == "group" else None,
        zero_points=not weights.flag("symmetric", True),
        by_activation=weights.values.get("actorder") in BY_ACTIVATION,
    )


def _pattern(target: str) -> NamePattern:
    """The modules of a target: a name, an expression, or a class, of which our products are one."""
    if target == EVERY_LINEAR:
        return EVERYTHING
    return like(target.removeprefix(EXPRESSION)) if target.startswith(EXPRESSION) else exactly(target)


def _rank(target: str) -> int:
    return 2 if target == EVERY_LINEAR else 1 if target.startswith(EXPRESSION) else 0
