"""compressed-tensors, as LLM Compressor writes it: groups of modules, each with its scheme, and modules to ignore.

Read are weights of 4 and 8 bits, in groups or whole rows, packed into words. Schemes that quantize activations, too,
compute something else, and are refused by name.
"""

from __future__ import annotations

from collections.abc import Iterator

from octavo_engine.errors import ModelUnsupported
from octavo_engine.model.fields import Fields
from octavo_engine.model.name_patterns import EVERYTHING, NamePattern, exactly, like
from octavo_engine.model.quantization import Packing, Quantization, Rule, Scheme
from octavo_engine.model.quantization_methods.facts import group_size, one_of

FORMAT = "pack-quantized"
STRATEGIES = ("group", "channel")
ORDERS = ("group", "weight", "dynamic", "static", True, False)
BY_ACTIVATION = ("group", "dynamic", True)  # weights of the others lie as if they had been done in the inputs' order
EVERY_LINEAR = "Linear"
EXPRESSION = "re:"
IN_THE_WEIGHTS = ("weight_input", "weight_output")  # where rotations are done; elsewhere activations are turned


def read(config: Fields) -> Quantization:
    """The fields `config_groups`, `format`, `ignore`, `kv_cache_scheme`, and those of what is refused."""
    if config.has("kv_cache_scheme"):
        raise ModelUnsupported(f"{config.name}: kv_cache_scheme is not supported; save the model without it")
    if config.section("sparsity_config").values.get("format", "dense") != "dense":
        raise ModelUnsupported(f"{config.name}: sparsity_config is not supported; supported are dense weights")
    _refuse_rotations(config.section("transform_config"))
    ignored = [Rule(pattern, None) for name in config.words("ignore") for pattern in _patterns(name)]
    found = [rule for name in config.section("config_groups").values for rule in _rules(config, name)]
    if not found:
        raise config.wrong("config_groups", config.values.get("config_groups"), "must name what is quantized")
    found.sort(key=lambda rule: rule[0])  # stable: names before expressions before classes
    return Quantization("compressed-tensors", (*ignored, *(rule for _, rule in found)))


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


def _rules(config: Fields, name: str) -> Iterator[tuple[int, Rule]]:
    """Of one group, each with how specific its pattern is: 0 is a name."""
    group = config.section("config_groups").section(name)
    for part in ("input_activations", "output_activations"):
        if group.has(part):
            raise ModelUnsupported(f"{group.name}: {part} is not supported; supported are schemes of weights alone")
    one_of(group, "format", group.values.get("format") or config.values.get("format"), (FORMAT,))
    scheme = _scheme(group.section("weights"))
    for target in group.words("targets"):
        for pattern in _patterns(target):
            yield _rank(target), Rule(pattern, scheme)


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


def _patterns(target: str) -> tuple[NamePattern, ...]:
    """The modules of a target: a name, an expression, or a class, of which our products are one."""
    if target == EVERY_LINEAR:
        return (EVERYTHING,)
    if target.startswith(EXPRESSION):
        return (like(target.removeprefix(EXPRESSION)),)
    return (exactly(target),)


def _rank(target: str) -> int:
    return 2 if target == EVERY_LINEAR else 1 if target.startswith(EXPRESSION) else 0
