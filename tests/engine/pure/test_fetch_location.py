"""Addresses of models, which files are chosen, and where secrets may stand."""

from __future__ import annotations

import json

import pytest

from octavo_engine.errors import CheckpointInvalid, InvalidConfiguration, ModelNotFound, ModelUnsupported
from octavo_engine.fetch.location import parse
from octavo_engine.fetch.selection import choose
from octavo_engine.fetch.settings import FetchConfig


@pytest.mark.parametrize(
    ("text", "host", "path", "file"),
    [
        ("hf://org/name", "", "org/name", None),
        ("hf://org/na.me-7B/", "", "org/na.me-7B", None),
        ("hf://org/name/Q4/model.gguf", "", "org/name", "Q4/model.gguf"),
        ("s3://bucket", "bucket", "", None),
        ("s3://bucket/a/b/", "bucket", "a/b", None),
        ("gs://bucket/a/m.gguf", "bucket", "a", "m.gguf"),
        ("https://host/models/tiny/", "host", "/models/tiny", None),
        ("https://host:8443/m%20x.gguf", "host:8443", "", "m x.gguf"),
        ("http://[::1]:80/x", "[::1]:80", "/x", None),
        ("oci://ghcr.io/org/tiny:v1", "ghcr.io", "org/tiny", None),
        ("oci://localhost:5000/tiny", "localhost:5000", "tiny", None),
    ],
)
def test_an_address_is_taken_apart(text, host, path, file):
    found = parse(text)
    assert (found.host, found.path, found.file) == (host, path, file)


def test_a_registry_has_a_tag_or_a_digest():
    digest = "sha256:" + "0" * 64
    assert parse("oci://r.io/a/b").reference == "latest"
    assert parse("oci://r.io/a/b:v1").reference == "v1"
    assert parse(f"oci://r.io/a/b:v1@{digest}").reference == digest


@pytest.mark.parametrize(
    "text",
    ["", "model", "/models/x", "ftp://host/x", "hf://name", "hf://a/b/c", "hf://../x", "hf://a/b?x.gguf", "s3://", "s3:///key",
     "oci://host", "oci://host/UPPER", "https://", "https:///x", "https://host:port/x", "file:///models/x"],
)  # fmt: skip
def test_what_is_no_address_is_refused(text):
    with pytest.raises(InvalidConfiguration, match="--source"):
        parse(text)


def test_no_secret_of_an_address_is_repeated():
    assert "secret" not in parse("https://host/m.gguf?sig=secret").label
    for text in ("https://user:secret@host/x", "ftp://user:secret@host/x?sig=secret", "hf://a/b/c?token=secret"):
        with pytest.raises(InvalidConfiguration) as refused:
            parse(text)
        assert "secret" not in str(refused.value)


CONFIGS = ["config.json", "tokenizer.json"]
INDEX = "model.safetensors.index.json"
NO_INDEX = json.dumps({}).encode()


def chosen(names: list[str], index: object = None, named: str | None = None) -> list[str]:
    return choose(names, lambda: json.dumps({"weight_map": index}).encode(), "hf://a/b", named)


@pytest.mark.parametrize(
    ("names", "weights"),
    [
        (["model.safetensors", "consolidated.safetensors", "x.gguf", "pytorch_model.bin"], ["model.safetensors"]),
        (["other.safetensors", "train.py", "optimizer.pt"], ["other.safetensors"]),
        ([INDEX, "a.safetensors", "b.safetensors", "c.safetensors"], [INDEX, "a.safetensors", "b.safetensors"]),
        ([INDEX, "a.safetensors", "b.safetensors", "model.safetensors"], [INDEX, "a.safetensors", "b.safetensors"]),
        ([INDEX, "a.safetensors", "model.safetensors"], ["model.safetensors"]),  # the index is an older one: b is gone
    ],
)
def test_weights_are_chosen_as_the_engine_reads_them(names, weights):
    names = [*names, *CONFIGS, ".gitattributes", "README.md", "chat_template.jinja"]
    index = {"t": "b.safetensors", "u": "a.safetensors", "v": "b.safetensors"}
    assert chosen(names, index) == [*CONFIGS, "chat_template.jinja", *weights]


def test_a_gguf_is_a_model_alone():
    assert chosen(["x.gguf", "config.json", "README.md"]) == ["x.gguf"]
    assert chosen(["x.gguf", "y.gguf", "model.safetensors"], named="y.gguf") == ["y.gguf"]


@pytest.mark.parametrize(
    ("names", "index", "error", "words"),
    [
        (["x.gguf", "y.gguf"], None, InvalidConfiguration, r"add one of them: x\.gguf, y\.gguf"),
        (["pytorch_model.bin", "config.json"], None, ModelUnsupported, "pickles"),
        (["config.json", "README.md"], None, ModelNotFound, "neither .safetensors nor .gguf"),
        (["a.safetensors", "b.safetensors"], None, CheckpointInvalid, "neither model.safetensors nor"),
        ([INDEX, "a.safetensors"], {"t": "b.safetensors"}, CheckpointInvalid, "b.safetensors is named by"),
        ([INDEX, "../a.safetensors"], {"t": "../a.safetensors"}, CheckpointInvalid, "not a file beside"),
        ([INDEX, "/a.safetensors"], {"t": "/a.safetensors"}, CheckpointInvalid, "not a file beside"),
        ([INDEX], "nonsense", CheckpointInvalid, "no weight_map"),
        ([INDEX], None, CheckpointInvalid, "no weight_map"),
        ([INDEX], {}, CheckpointInvalid, "places no tensor"),
        (["../x.gguf"], None, CheckpointInvalid, "no plain file name"),
        (["a\\b.gguf"], None, CheckpointInvalid, "no plain file name"),
        (["m-00001-of-00002.gguf"], None, ModelUnsupported, "split model"),
        ([".hidden.gguf"], None, CheckpointInvalid, "no plain file name"),
        (["a\nb.safetensors"], None, CheckpointInvalid, "no plain file name"),
    ],
)
def test_what_cannot_be_chosen_is_explained(names, index, error, words):
    with pytest.raises(error, match=words):
        chosen(names, index)


def test_the_command_is_strict_about_its_flags():
    settings = FetchConfig.parse(["hf://a/b", "there"])
    assert (settings.source, settings.destination, settings.management_port) == ("hf://a/b", "there", None)
    assert FetchConfig.parse(["--source=s3://b/p", "--destination=x", "--management-port=0"]).management_port == 0
    for args in (
        ["hf://a/b"],
        [],
        ["a", "b", "c"],
        ["hf://a/b", "x", "--revison=main"],
        ["hf://a/b", "x", "--connections=0"],
    ):
        with pytest.raises(InvalidConfiguration):
            FetchConfig.parse(args)
