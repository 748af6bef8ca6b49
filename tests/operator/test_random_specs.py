"""The walk's generator: the same for the same seed, valid for our own models, and every field in and out."""

from octavo_operator.crd import spec_schema
from octavo_operator.spec import read_spec
from random_specs import SpecWriter, leaves, present

# Remote sources and the operator's own scaling start pods; they are walked elsewhere.
LEFT_OUT = {"revision", "tokenSecretRef", "credentialsSecretRef", "endpoint", "cache"}
SCALING = {"minReplicas", "maxReplicas", "targetQueueDepth", "objectiveSeconds"}


def specs(count, seed=1):
    writer = SpecWriter(spec_schema(), seed)
    return [writer.spec() for _ in range(count)]


def test_a_seed_is_a_walk():
    assert specs(5) == specs(5)
    assert specs(5) != specs(5, seed=2)
    assert len({str(spec) for spec in specs(200)}) == 200


def test_every_spec_can_be_read():
    for spec in specs(200):
        read_spec({"spec": spec})


def test_every_field_of_the_schema_comes_and_goes_within_a_walk():
    walked = [present(spec) for spec in specs(200)]
    for path in leaves(spec_schema()):
        if LEFT_OUT & set(path) or SCALING & set(path):
            continue
        seen = sum(path in spec for spec in walked)
        assert seen > 0, f"{'.'.join(path)} is never set"
        assert seen < 200 or path == ("model", "source"), f"{'.'.join(path)} is never absent"


def test_bounds_are_visited():
    lengths = {spec.get("engine", {}).get("maxModelLen") for spec in specs(200)}
    assert {2, 10_000_000, None} <= lengths


def test_no_spec_asks_for_a_pod():
    for spec in specs(200):
        assert spec.get("replicas") == 0 or spec["paused"]
