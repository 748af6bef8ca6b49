"""The args the operator renders, read by the engine's own parser; reasons and bounds that both sides spell."""

import typing

import pytest

from octavo_engine import config as engine_config
from octavo_engine import errors as engine_errors
from octavo_operator import cel, engine_args
from octavo_operator.causes import ENGINE_REASONS
from octavo_operator.manifests import volumes
from octavo_operator.spec import Engine, read_spec
from operator_samples import resource

pytestmark = pytest.mark.contract

FULL = {
    "maxModelLen": 4096,
    "maxNumSeqs": 8,
    "maxNumBatchedTokens": 512,
    "gpuMemoryUtilization": 0.8,
    "kvCacheMemoryBytes": 1 << 30,
    "dtype": "float32",
    "blockSize": 32,
    "enablePrefixCaching": False,
    "enableChunkedPrefill": True,
    "schedulingPolicy": "priority",
    "prefixCacheScope": "server",
    "extraArgs": ["--max-waiting-requests=9"],
}


def parsed(**spec):
    args = engine_args.container_args(read_spec(resource(**spec)), "assistant")
    assert engine_args.COMMAND == ["octavo", "serve"]
    return engine_config.serve_parser().parse_args(args)


def test_the_smallest_service_parses():
    found = parsed()
    assert found.model == "/models/smollm2"
    assert (found.port, found.management_port) == (8000, 8001)
    assert (found.host, found.management_host) == ("0.0.0.0", "0.0.0.0")  # noqa: S104
    assert found.drain_seconds == 45


def test_every_engine_field_arrives():
    assert {Engine.model_fields[name].alias or name for name in Engine.model_fields} - {"image", "env"} == set(FULL)
    found = parsed(engine=FULL)
    for name, value in FULL.items():
        if name != "extraArgs":
            field = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)
            assert getattr(found, field) == value, name
    assert found.max_waiting_requests == 9


@pytest.mark.parametrize(("count", "ranks"), [(None, None), (0, None), ("1", None), (2, 2), ("16", 16)])
def test_accelerators_share_the_model(count, ranks):
    """One rank for each; nothing is said of a single one, so that what runs stays as it is."""
    limits = {} if count is None else {"limits": {"nvidia.com/gpu": count}}
    assert getattr(parsed(resources=limits), "tensor_parallel_size", None) == ranks


def test_as_many_ranks_are_known_as_accelerators_are_allowed():
    most = engine_config.EngineConfig.__dataclass_fields__["tensor_parallel_size"].metadata["maximum"]
    assert most >= 16


def test_keys_arrive_as_a_file():
    found = parsed(auth={"apiKeySecretRef": {"name": "keys", "key": "api-key"}})
    assert str(found.api_key_file) == f"{engine_args.KEYS_DIRECTORY}/{engine_args.KEYS_FILE}"


def test_a_changed_secret_reaches_the_file_of_keys():
    """The kubelet updates a directory as a whole; a file that is mounted by a subPath stays as it was."""
    auth = {"apiKeySecretRef": {"name": "keys", "key": "api-key"}}
    ((volume, mount),) = volumes.keys(read_spec(resource(auth=auth)))
    assert "subPath" not in mount
    assert parsed(auth=auth).api_key_file == f"{mount['mountPath']}/{volume['secret']['items'][0]['path']}"


@pytest.mark.parametrize(
    "flag", ["tls-cert-file", "tls-key-file", "tls-client-ca-file", "cors-allow-origin", "key-tokens-per-minute"]
)
def test_flags_without_a_field_are_extra_arguments(flag):
    assert not any(reserved.startswith(f"--{flag}") for reserved in cel.RESERVED_FLAGS)
    found = parsed(engine={"extraArgs": [f"--{flag}=7"]})
    assert getattr(found, flag.replace("-", "_")) in ("7", ["7"], 7)


@pytest.mark.parametrize("name", ["-x", "--port=1", "a b", "模型", "a=b"])
def test_no_served_name_passes_for_a_flag(name):
    assert parsed(model={"source": "file:///m", "servedName": name}).served_model_name in (name, [name])


def test_the_spec_is_within_the_engines_bounds():
    bounds = {item.name: item.metadata for item in engine_config.EngineConfig.__dataclass_fields__.values()}
    for name, field in Engine.model_fields.items():
        engine = bounds.get(name, {})
        for limit in field.metadata:
            low, high = getattr(limit, "ge", None), getattr(limit, "le", None)
            assert low is None or engine.get("minimum") is None or low >= engine["minimum"], name
            assert high is None or engine.get("maximum") is None or high <= engine["maximum"], name


def test_choices_are_the_engines():
    hints = typing.get_type_hints(engine_config.EngineConfig)
    for name in ("dtype", "scheduling_policy", "prefix_cache_scope"):
        ours = typing.get_args(typing.get_args(Engine.model_fields[name].annotation)[0])
        assert set(ours) == set(typing.get_args(hints[name])), name


def test_reserved_flags_exist_and_cover_what_is_rendered():
    known = {flag for action in engine_config.serve_parser()._actions for flag in action.option_strings}
    assert set(cel.RESERVED_FLAGS) <= known
    keys = {"apiKeySecretRef": {"name": "keys", "key": "k"}}
    engine = {key: value for key, value in FULL.items() if key != "extraArgs"}
    spec = read_spec(resource(engine=engine, auth=keys, resources={"limits": {"nvidia.com/gpu": 2}}))
    for arg in engine_args.container_args(spec, "assistant"):
        assert arg.split("=")[0] in cel.RESERVED_FLAGS, arg


def test_start_errors_are_known_reasons():
    assert set(ENGINE_REASONS) == {kind.__name__ for kind in engine_errors.StartupError.__subclasses__()}
