"""Flags: derived from the fields, strict, with errors that name the flag and the remedy."""

from __future__ import annotations

import dataclasses

import pytest

from octavo_engine.config import EngineConfig, ServerConfig, ServeSettings, flag, read_environment, serve_parser
from octavo_engine.errors import InvalidConfiguration


def parse(*args: str) -> ServeSettings:
    return ServeSettings.parse(["model", *args])


def test_defaults_are_the_fields():
    settings = parse()
    assert settings.engine == EngineConfig(model="model")
    assert settings.server == ServerConfig()


def test_the_model_may_be_a_flag():
    assert ServeSettings.parse(["--model", "there"]).engine.model == "there"


def test_every_flag_is_in_the_help_with_its_meaning():
    text = serve_parser().format_help()
    for config in (EngineConfig, ServerConfig):
        for item in dataclasses.fields(config):
            assert flag(item.name).removeprefix("--") in text
            assert item.metadata["help"]


def test_values_arrive_typed():
    settings = parse(
        *("--max-num-seqs=4", "--gpu-memory-utilization=0.5", "--no-enable-prefix-caching", "--api-key=a"),
        *("--api-key=b", "--kv-cache-memory-bytes=123", "--dtype=float32"),
    )
    assert settings.engine.max_num_seqs == 4
    assert settings.engine.gpu_memory_utilization == 0.5
    assert settings.engine.enable_prefix_caching is False
    assert settings.engine.kv_cache_memory_bytes == 123
    assert settings.server.api_key == ("a", "b")


@pytest.mark.parametrize(
    ("args", "named"),
    [
        (["--max-num-seqs=0"], "--max-num-seqs is 0; it must be between 1 and 4096"),
        (["--gpu-memory-utilization=nan"], "--gpu-memory-utilization"),
        (["--gpu-memory-utilization=1.5"], "between 0.05 and 1"),
        (["--port=70000"], "--port"),
        (["--max-num-seqs=many"], "--max-num-seqs"),
        (["--dtype=int3"], "--dtype"),
        (["--max-num-seq=3"], "--max-num-seq"),
        (["--tensor-parallel-size=65"], "--tensor-parallel-size"),
        (["--no-enable-chunked-prefill", "--max-model-len=4096"], "raise --max-num-batched-tokens"),
        (["--scheduling-policy=cache-aware", "--no-enable-prefix-caching"], "--scheduling-policy cache-aware"),
        (["--scheduling-policy=lifo"], "--scheduling-policy"),
        (["--max-decode-slowdown=0.5"], "--max-decode-slowdown is 0.5; it must be between 1 and 1000"),
        (["another"], "another"),
    ],
)
def test_what_is_wrong_is_named(args, named):
    with pytest.raises(InvalidConfiguration) as refused:
        parse(*args)
    assert named in str(refused.value)


def test_a_model_is_needed():
    with pytest.raises(InvalidConfiguration, match="name a model"):
        ServeSettings.parse([])


def test_bounds_hold_for_configs_built_in_code():
    with pytest.raises(InvalidConfiguration, match="--block-size"):
        EngineConfig(block_size=0)
    with pytest.raises(InvalidConfiguration, match="--dtype"):
        EngineConfig(dtype="float8")  # type: ignore[arg-type]


def test_keys_come_from_the_environment_too():
    assert read_environment({"OCTAVO_API_KEY": "one,two,"}) == ("one", "two")
    assert read_environment({}) == ()
