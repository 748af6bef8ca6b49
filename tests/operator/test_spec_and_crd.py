"""The resource's schema: generated, structural, described and bounded everywhere, and equal to the committed file."""

from pathlib import Path

import pytest
import yaml

from octavo_operator import cel, crd, names
from octavo_operator.errors import SpecError
from octavo_operator.revisions import revision_of
from octavo_operator.spec import read_spec
from operator_samples import resource

ROOT = Path(__file__).parents[2]
CRD_FILE = ROOT / "crds" / "inferenceservices.octavo.dev.yaml"


def nodes(schema, path="spec"):
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from nodes(child, f"{path}.{name}")
    if isinstance(schema.get("items"), dict):
        yield from nodes(schema["items"], f"{path}[]")
    if isinstance(schema.get("additionalProperties"), dict):
        yield from nodes(schema["additionalProperties"], f"{path}{{}}")


SPEC_NODES = list(nodes(crd.spec_schema()))
STATUS_NODES = list(nodes(crd.STATUS_SCHEMA, "status"))


def test_the_committed_files_are_the_generated_ones():
    assert CRD_FILE.read_text() == crd.rendered()
    assert (ROOT / "charts/octavo-crds/templates/inferenceservices.octavo.dev.yaml").read_text() == crd.rendered()


def test_the_file_fits_client_side_apply():
    assert len(CRD_FILE.read_bytes()) < 200 * 1024


@pytest.mark.parametrize(("path", "schema"), SPEC_NODES, ids=[path for path, _ in SPEC_NODES])
def test_every_spec_field_is_described_and_bounded(path, schema):
    if not path.endswith(("[]", "{}")):
        assert schema.get("description"), f"{path} has no description"
    kind = schema.get("type")
    if kind == "string":
        assert "maxLength" in schema or "enum" in schema
    if kind in ("integer", "number"):
        assert "minimum" in schema
        assert "maximum" in schema
    if kind == "array":
        assert "maxItems" in schema
        assert "x-kubernetes-list-type" in schema
    if "additionalProperties" in schema:
        assert "maxProperties" in schema


@pytest.mark.parametrize(("path", "schema"), STATUS_NODES, ids=[path for path, _ in STATUS_NODES])
def test_every_status_field_is_described(path, schema):
    assert path.endswith("[]") or schema.get("description")


@pytest.mark.parametrize(("path", "schema"), SPEC_NODES, ids=[path for path, _ in SPEC_NODES])
def test_the_schema_is_structural_and_writes_no_default(path, schema):
    assert not {"$ref", "title", "default", "const", "allOf", "oneOf"} & set(schema)
    assert "x-kubernetes-preserve-unknown-fields" not in schema
    assert schema.get("additionalProperties") is not False


def test_status_starts_as_not_looked_at():
    assert crd.STATUS_SCHEMA["default"] == {"observedGeneration": -1}


def test_every_rule_tells_the_remedy():
    rules = [rule for _, schema in SPEC_NODES for rule in schema.get("x-kubernetes-validations", ())]
    assert len(rules) >= 12
    for rule in rules:
        assert ": " in rule["message"] or "write each" in rule["message"], rule["message"]


def test_scale_subresource_and_columns():
    version = crd.definition()["spec"]["versions"][0]
    assert version["subresources"]["scale"]["labelSelectorPath"] == ".status.selector"
    columns = [column["name"] for column in version["additionalPrinterColumns"] if column["priority"] == 0]
    assert columns == ["Ready", "Reason", "Model", "Replicas", "Queue", "URL", "Age"]
    wide = [column["name"] for column in version["additionalPrinterColumns"] if column["priority"] == 1]
    assert wide == ["Limit", "Message"]


def test_yaml_round_trip():
    assert yaml.safe_load(crd.rendered()) == crd.definition()


def test_a_resource_is_read_with_defaults():
    spec = read_spec(resource())
    assert (spec.startup_seconds, spec.drain_seconds, spec.paused) == (1800, 45, False)
    assert spec.scaler is None


EMPTIED = {
    "engine": None,
    "resources": {"requests": None, "limits": None},
    "monitoring": {"labels": None},
    "template": {"affinity": {"nodeAffinity": None, "podAffinity": None}, "volumes": None, "labels": None},
}


@pytest.mark.parametrize("spec", [EMPTIED, dict.fromkeys(EMPTIED), {"template": {"affinity": None}}])
def test_what_server_side_apply_has_emptied_is_absent(spec):
    """It leaves null where something was and nothing shall be; the schema must let that pass."""
    assert revision_of(read_spec(resource(**spec))) == revision_of(read_spec(resource()))
    nodes = dict(SPEC_NODES)
    for path in nulls(spec):
        assert nodes[path].get("nullable") is True, path


def nulls(value, path="spec"):
    """Paths at which there is null."""
    if value is None:
        return [path]
    return [found for key, item in value.items() for found in nulls(item, f"{path}.{key}")]


def test_quantities_may_be_numbers():
    spec = read_spec(resource(resources={"limits": {"nvidia.com/gpu": 1, "memory": "2Gi"}}))
    assert spec.resources.limits == {"nvidia.com/gpu": "1", "memory": "2Gi"}


def test_what_does_not_fit_is_named():
    with pytest.raises(SpecError, match=r"spec\.engine\.maxModelLen"):
        read_spec(resource(engine={"maxModelLen": "many"}))
    with pytest.raises(SpecError, match="cache"):
        read_spec(resource(cache={}))


@pytest.mark.parametrize("flag", cel.RESERVED_FLAGS)
def test_reserved_flags_are_flags_we_render_or_keys(flag):
    assert flag.startswith("--")
    assert flag == flag.lower()


@pytest.mark.parametrize(
    ("parent", "child"),
    [
        ("assistant", "assistant"),
        ("a" * 63, "a" * 63),
    ],
)
def test_a_fitting_name_is_kept(parent, child):
    assert names.child_name(parent) == child


@pytest.mark.parametrize("parent", ["a" * 64, "a" * 253, "7b-chat", "my.model", "a-" * 31 + "b.c"])
def test_any_other_name_becomes_a_dns_label_of_its_own(parent):
    child = names.child_name(parent)
    assert len(child) <= 63
    assert names._DNS_LABEL.match(child)
    assert child != names.child_name(parent + "x")


WHOLE = {
    "model": {
        "source": "hf://org/name",
        "revision": "v1.0",
        "tokenSecretRef": {"name": "hub", "key": "token"},
        "endpoint": "http://hub.example:8080",
    },
    "cache": {"persistentVolumeClaim": "models"},
    "rollout": "InPlace",
    "allowFrom": [
        {"podSelector": {}, "namespaceSelector": {"matchLabels": {"team": "a"}}},
        {"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}},
    ],
    "template": {
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{"matchExpressions": [{"key": "gpu", "operator": "In", "values": ["h100"]}]}]
                }
            }
        },
        "volumes": [{"name": "ca", "mountPath": "/etc/ssl/certs", "configMap": {"name": "ca"}}],
    },
}


def test_a_whole_resource_comes_back_as_it_was_written():
    assert read_spec(resource(**WHOLE)).model_dump(by_alias=True, exclude_unset=True) == WHOLE


@pytest.mark.parametrize(
    ("source", "remote"),
    [("pvc://c/p", False), ("file:///model", False), ("hf://org/name", True), ("s3://bucket/prefix", True)],
)
def test_which_models_are_fetched(source, remote):
    assert read_spec(resource(model={"source": source})).model.remote is remote
