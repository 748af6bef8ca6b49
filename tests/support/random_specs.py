"""Random valid specs from the resource's own schema: any field absent, at a bound, or between.

The schema says what fields there are and how far each goes. What it cannot say (rules across fields, and what the API
server asks of a Deployment) is in `_SAMPLES` and `_agreeing`. Specs run no pod: a walk is about objects.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any

Schema = Mapping[str, Any]
Spec = dict[str, Any]
Sampler = Callable[[random.Random], Any]

_CHANCE, _DEEPER = 0.4, 0.1
"""How often an optional field is set: more often the deeper it lies, or the deepest would never be seen."""


class SpecWriter:
    """Writes specs of one schema, the same ones for the same seed."""

    def __init__(self, schema: Schema, seed: int) -> None:
        self._schema = schema
        self._random = random.Random(seed)

    def spec(self) -> Spec:
        """The next spec."""
        made: Spec = self._value((), self._schema)
        return _agreeing(made, self._random)

    def _value(self, path: tuple[str, ...], node: Schema) -> Any:
        if sampler := _sampler(path):
            return sampler(self._random)
        if "enum" in node:
            return self._random.choice(node["enum"])
        if "properties" in node:
            return self._object(path, node)
        kinds: dict[str, Callable[[], Any]] = {
            "object": lambda: self._map(path, node),
            "array": lambda: self._list(path, node),
            "boolean": lambda: self._random.random() < 0.5,
            "integer": lambda: self._number(node),
            "number": lambda: self._number(node),
            "string": lambda: self._string(node),
        }
        return kinds[node["type"]]()

    def _map(self, path: tuple[str, ...], node: Schema) -> Spec:
        keys = self._random.sample(_KEYS, self._random.randint(0, 2))
        return {key: self._value((*path, "{}"), node["additionalProperties"]) for key in keys}

    def _list(self, path: tuple[str, ...], node: Schema) -> list[Any]:
        count = self._random.randint(node.get("minItems", 0), 2)
        return [self._value((*path, "[]"), node["items"]) for _ in range(count)]

    def _object(self, path: tuple[str, ...], node: Schema) -> Spec:
        required, chance = node.get("required", ()), _CHANCE + _DEEPER * len(path)
        wanted = [name for name in node["properties"] if name in required or self._random.random() < chance]
        return {name: self._value((*path, name), node["properties"][name]) for name in wanted}

    def _number(self, node: Schema) -> float:
        low, high = node["minimum"], node["maximum"]
        between = self._random.randint(low, high) if node["type"] == "integer" else self._random.uniform(low, high)
        return self._random.choice((low, high, round(between, 3)))

    def _string(self, node: Schema) -> str:
        return f"v{self._random.randint(1, 9)}" + "x" * self._random.choice((0, 0, min(node["maxLength"], 60) - 2))


def leaves(node: Schema, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Paths of all fields that hold no others."""
    if "properties" in node:
        for name, child in node["properties"].items():
            yield from leaves(child, (*path, name))
    elif "properties" in node.get("items", ()):
        yield from leaves(node["items"], (*path, "[]"))
    else:
        yield path


def present(value: Any, path: tuple[str, ...] = ()) -> set[tuple[str, ...]]:
    """Paths of all fields that a spec sets, in the form of `leaves` and of what is on the way to them."""
    found = {path}
    if isinstance(value, dict):
        for name, child in value.items():
            found |= present(child, (*path, name))
    elif isinstance(value, list):
        for child in value:
            found |= present(child, (*path, "[]"))
    return found


def _agreeing(spec: Spec, chance: random.Random) -> Spec:
    """Settles what fields say together: no replica ever runs, and rules across fields hold."""
    for field in ("revision", "tokenSecretRef", "credentialsSecretRef", "endpoint"):
        spec["model"].pop(field, None)
    spec.pop("cache", None)
    scaling = spec.pop("autoscaling", None)
    spec.pop("replicas", None)
    if scaling is not None:
        # By hand or by an autoscaler of the user's: mode Operator always wants a replica, and is another test's matter.
        spec["autoscaling"] = {"mode": "External"}
    if scaling is not None or chance.random() < 0.9:
        spec["replicas"] = 0
    else:
        spec["paused"] = True
    return spec


def _sampler(path: tuple[str, ...]) -> Sampler | None:
    for depth in range(1, 4):
        if sampler := _SAMPLES.get(path[-depth:]):
            return sampler
    return None


def _one_of(*values: Any) -> Sampler:
    return lambda chance: chance.choice(values)


def _some_of(*values: Any) -> Sampler:
    """Several, of which no two are the same."""
    return lambda chance: chance.sample(values, chance.randint(0, min(3, len(values))))


def _volumes(chance: random.Random) -> list[Spec]:
    kinds: list[Spec] = [
        {"configMap": {"name": "settings"}},
        {"secret": {"secretName": "certificates"}},
        {"persistentVolumeClaim": {"claimName": "data"}},
        {"emptyDir": {"medium": "Memory", "sizeLimit": "64Mi"}},
        {"emptyDir": {}},
    ]
    chosen = chance.sample(kinds, chance.randint(0, 3))
    return [{"name": f"v{n}", "mountPath": f"/data/{n}", **kind} for n, kind in enumerate(chosen)]


def _environment(chance: random.Random) -> list[Spec]:
    names = chance.sample(("FIRST", "SECOND", "_third"), chance.randint(0, 3))
    return [{"name": name, **chance.choice(({}, {"value": ""}, {"value": "a=b $(X)"}))} for name in names]


_KEYS = ("example.com/a", "example.com/b", "plain")
_EXPRESSIONS = _one_of(
    {"key": "zone", "operator": "In", "values": ["a", "b"]},
    {"key": "zone", "operator": "NotIn", "values": ["c"]},
    {"key": "zone", "operator": "Exists"},
    {"key": "zone", "operator": "DoesNotExist"},
)
_TOLERATIONS = _some_of(
    {"key": "gpu", "operator": "Equal", "value": "yes", "effect": "NoSchedule"},
    {"key": "gpu", "value": "yes"},
    {"operator": "Exists"},
    {"key": "going", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 0},
    {"key": "going", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 1 << 31},
    {"key": "maybe", "operator": "Exists", "effect": "PreferNoSchedule"},
)
_SAMPLES: Mapping[tuple[str, ...], Sampler] = {
    ("source",): _one_of("pvc://models/a", "pvc://models/b/c.gguf", "file:///model", "file:///models/other"),
    ("image",): _one_of("localhost/none:1", "localhost/none@sha256:" + "a" * 64),
    ("extraArgs",): _some_of("--log-level=debug", "--seed=1", "--trace"),
    ("env",): _environment,
    ("requests",): _one_of({}, {"cpu": "10m"}, {"cpu": "0.5", "memory": "64Mi"}, {"memory": "1Gi"}),
    ("limits",): _one_of({}, {"cpu": "2000m"}, {"memory": "4Gi"}, {"nvidia.com/gpu": 1}, {"nvidia.com/gpu": "4"}),
    ("allowFrom", "[]"): _one_of(
        {"podSelector": {}},
        {"podSelector": {"matchLabels": {"app": "web"}}},
        {"namespaceSelector": {"matchLabels": {"team": "a"}}},
        {"podSelector": {"matchLabels": {"app": "web"}}, "namespaceSelector": {}},
        {"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}},
        {"ipBlock": {"cidr": "fd00::/8"}},
    ),
    ("tolerations",): _TOLERATIONS,
    ("matchExpressions", "[]"): _EXPRESSIONS,
    ("topologyKey",): _one_of("kubernetes.io/hostname", "zone"),
    ("volumes",): _volumes,
    ("imagePullSecrets",): _some_of({"name": "registry"}, {"name": "other.registry"}),
    ("restartedAt",): _one_of("", "2030-01-01T00:00:00Z", "again"),
}
