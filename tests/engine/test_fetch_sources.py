"""Every kind of source, with its real client against a real server: what is fetched, pinned, verified and refused."""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from faulty_http import FaultyServer, running
from fetching import fetch, held, hurry, manifest
from model_sources import BucketFiles, HubFiles, RegistryFiles, WebFiles, sha256
from octavo_engine.errors import (
    CheckpointInvalid,
    InvalidConfiguration,
    ModelAccessDenied,
    ModelChanged,
    ModelNotFound,
    ModelSourceUnreachable,
    ModelUnsupported,
)
from octavo_engine.model.huggingface.pooling_config import FILE as POOLING
from octavo_engine.model.huggingface.pooling_config import read_pooling
from octavo_engine.request import Pooling
from tiny_files import FETCHED, checkpoint, gguf, sharded

COMMIT, OLD = "a" * 40, "b" * 40


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    hurry(monkeypatch)
    for name in ("AWS_ACCESS_KEY_ID", "HF_TOKEN", "HF_ENDPOINT", "GOOGLE_APPLICATION_CREDENTIALS"):
        monkeypatch.delenv(name, raising=False)


@contextmanager
def hub(files: dict[str, bytes] | None = None, **settings: Any) -> Iterator[tuple[HubFiles, FaultyServer]]:
    place = HubFiles({COMMIT: files or checkpoint()}, {"main": COMMIT}, **settings)
    with running(place) as server:
        yield place, server


def wanted(files: dict[str, bytes]) -> dict[str, bytes]:
    return {name: content for name, content in files.items() if name in FETCHED}


def secret(directory: Any, **files: str) -> str:
    directory.mkdir(exist_ok=True)
    for name, text in files.items():
        (directory / name.replace("__", ".")).write_text(text + "\n")
    return str(directory)


def test_a_hub_gives_the_files_of_a_commit(tmp_path):
    with hub() as (place, server):
        found = fetch("hf://org/tiny", tmp_path, endpoint=server.url)
    assert found.revision == COMMIT
    assert held(tmp_path) == wanted(place.commits[COMMIT])
    record = manifest(tmp_path)
    assert record["revision"] == COMMIT
    weights = place.commits[COMMIT]["model.safetensors"]
    assert {entry["name"]: entry["verified"].partition(":")[0] for entry in record["files"]} == {
        "config.json": "git", "tokenizer.json": "git", "tokenizer_config.json": "git", "model.safetensors": "sha256"
    }  # fmt: skip
    assert f"sha256:{sha256(weights)}" in {entry["verified"] for entry in record["files"]}


def test_a_pinned_directory_asks_nobody(tmp_path):
    with hub() as (_, server):
        fetch("hf://org/tiny", tmp_path, endpoint=server.url)
        before = len(server.asked)
        fetch("hf://org/tiny", tmp_path, endpoint=server.url, revision=COMMIT)
        assert len(server.asked) == before
        fetch("hf://org/tiny", tmp_path, endpoint=server.url)  # a branch may have moved: one question
        assert len(server.asked) == before + 1
    assert fetch("hf://org/tiny", tmp_path, endpoint=server.url, revision=COMMIT).revision == COMMIT


def test_a_moved_branch_replaces_what_differs_and_removes_what_is_gone(tmp_path):
    with hub(sharded()) as (place, server):
        fetch("hf://org/tiny", tmp_path, endpoint=server.url)
        (tmp_path / "notes.txt").write_text("not ours")
        place.commits[OLD] = checkpoint(seed=5)
        place.branches["main"] = OLD
        server.asked.clear()
        fetch("hf://org/tiny", tmp_path, endpoint=server.url)
        assert held(tmp_path) == wanted(place.commits[OLD]) | {"notes.txt": b"not ours"}
        assert not server.requests("/config.json")  # it is the same in both


def test_a_large_file_comes_from_elsewhere_without_the_token(tmp_path):
    files = checkpoint()
    storage = WebFiles(files, root="/blobs/")
    token = tmp_path / "token"
    token.write_text("hub-token\n")
    with running(storage) as elsewhere, hub(files, storage=elsewhere.url, token="hub-token") as (_, server):
        # another host name, so that it is another origin
        server.answer.storage = elsewhere.url.replace("127.0.0.1", "localhost")  # type: ignore[attr-defined]
        fetch("hf://org/tiny", tmp_path / "d", endpoint=server.url, token_file=str(token))
        assert elsewhere.requests("Signature")
        assert not any("authorization" in asked.headers for asked in elsewhere.asked)
    assert held(tmp_path / "d") == wanted(files)


def test_one_gguf_of_several_is_named(tmp_path):
    files = {"a.gguf": gguf(2), "Q4/b.gguf": gguf(3), "c.gguf": gguf()}
    with hub(files) as (_, server):
        with pytest.raises(InvalidConfiguration, match=r"a\.gguf, c\.gguf"):
            fetch("hf://org/tiny", tmp_path, endpoint=server.url)
        fetch("hf://org/tiny/Q4/b.gguf", tmp_path, endpoint=server.url)
    assert held(tmp_path) == {"b.gguf": files["Q4/b.gguf"]}


def test_a_mirror_that_lists_names_alone_is_asked_for_sizes(tmp_path):
    with hub(sizes=False) as (place, server):
        fetch("hf://org/tiny", tmp_path, endpoint=server.url)
        assert held(tmp_path) == wanted(place.commits[COMMIT])


@pytest.mark.parametrize(
    ("place", "asked", "error", "words"),
    [
        ({"token": "x"}, {}, ModelAccessDenied, r"private or does not exist.*tokenSecretRef"),
        ({"gated": True}, {}, ModelAccessDenied, r"gated: accept.*tokenSecretRef"),
        ({}, {"source": "hf://org/other"}, ModelNotFound, r"hf://org/other: not found"),
        ({}, {"revision": "v2"}, ModelNotFound, r"no revision 'v2'"),
        ({}, {"source": "hf://org/tiny/x.gguf"}, ModelNotFound, r"no such file"),
    ],
)
def test_a_hubs_refusals_are_named(tmp_path, place, asked, error, words):
    with hub(**place) as (_, server), pytest.raises(error, match=words) as refused:
        fetch(**{"source": "hf://org/tiny", "destination": tmp_path, "endpoint": server.url} | asked)
    assert "secret-of-the-hub" not in str(refused.value)
    assert refused.value.reason == error.__name__


def test_nobody_there_is_unreachable(tmp_path):
    with running(WebFiles({})) as server:
        url = server.url
    cases = (
        ("hf://org/tiny", {"endpoint": url}, "refused"),
        (f"{url}/x", {}, "refused"),
        ("s3://bucket/x", {"endpoint": url}, "refused"),
        ("oci://r.io/x", {"endpoint": url}, "refused"),
        ("https://no-such-host.invalid/x", {}, "cannot be resolved"),
    )

    def is_told(number: int) -> None:
        source, settings, words = cases[number]
        with pytest.raises(ModelSourceUnreachable, match=words):
            fetch(source, tmp_path / str(number), patience_seconds=1, **settings)

    with ThreadPoolExecutor(len(cases)) as pool:  # each takes as long as its patience
        list(pool.map(is_told, range(len(cases))))


@pytest.mark.parametrize("ranged", [True, False])
@pytest.mark.parametrize("files", [checkpoint(), sharded()], ids=["one", "sharded"])
def test_a_web_directory_is_found_by_known_names(tmp_path, files, ranged):
    with running(WebFiles(files, ranged=ranged)) as server:
        found = fetch(f"{server.url}/models/tiny", tmp_path)
        assert held(tmp_path) == {name: files[name] for name in held(tmp_path)}
        assert {entry.name for entry in found.files} == {n for n in files if n.endswith(("json", "safetensors"))}
        server.asked.clear()
        fetch(f"{server.url}/models/tiny", tmp_path, revision=found.revision)
        assert not server.asked


def test_a_web_file_with_a_signature_and_a_token(tmp_path, caplog):
    caplog.set_level(logging.DEBUG, "octavo_engine")
    token = tmp_path / "token"
    token.write_text("bearer-secret")
    with running(WebFiles({"m.gguf": gguf(3)}, token="bearer-secret", checksums=True)) as server:
        source = f"{server.url}/models/tiny/m.gguf?sig=signed-secret"
        with pytest.raises(ModelAccessDenied, match="tokenSecretRef"):
            fetch(source, tmp_path / "d")
        fetch(source, tmp_path / "d", token_file=str(token))
        assert all("sig=signed-secret" in asked.path for asked in server.asked)
    assert manifest(tmp_path / "d")["files"][0]["verified"].startswith("sha256:")
    everything = caplog.text + json.dumps(manifest(tmp_path / "d"))
    assert "signed-secret" not in everything
    assert "bearer-secret" not in everything


def test_a_changed_web_directory_is_another_revision(tmp_path):
    place = WebFiles(checkpoint())
    with running(place) as server:
        first = fetch(f"{server.url}/models/tiny", tmp_path).revision
        place.files = checkpoint(seed=1)
        with pytest.raises(ModelChanged, match=first):
            fetch(f"{server.url}/models/tiny", tmp_path / "other", revision=first)
        assert fetch(f"{server.url}/models/tiny", tmp_path).revision != first
        assert held(tmp_path) == wanted(place.files)


def test_an_empty_web_directory(tmp_path):
    with running(WebFiles({"x.txt": b""})) as server, pytest.raises(ModelNotFound, match=r"config\.json"):
        fetch(f"{server.url}/models/tiny", tmp_path)


@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_an_object_store_gives_what_is_below_a_prefix(tmp_path, scheme):
    files = checkpoint()
    keys = {f"team/tiny/{name}": content for name, content in files.items()}
    place = BucketFiles(keys | {"team/tiny/deep/model.safetensors": b"x", "team/tiny2/config.json": b"x"})
    with running(place) as server:
        found = fetch(f"{scheme}://models/team/tiny/", tmp_path, endpoint=server.url)
        assert held(tmp_path) == wanted(files)
        assert {entry["verified"].partition(":")[0] for entry in manifest(tmp_path)["files"]} == {"md5"}
        assert found.revision.startswith("files-")
        with pytest.raises(ModelNotFound, match="no object below"):
            fetch(f"{scheme}://models/nothing", tmp_path / "x", endpoint=server.url)
        with pytest.raises(ModelNotFound, match="no such object"):
            fetch(f"{scheme}://models/team/x.gguf", tmp_path / "x", endpoint=server.url)


def test_a_store_with_credentials_from_files(tmp_path):
    place = BucketFiles({"m.gguf": gguf(4)}, access_key="AKIDTEST")
    keys = secret(tmp_path / "keys", AWS_ACCESS_KEY_ID="AKIDTEST", AWS_SECRET_ACCESS_KEY="store-secret")
    with running(place) as server:
        with pytest.raises(ModelAccessDenied, match="credentialsSecretRef"):
            fetch("s3://models/m.gguf", tmp_path / "d", endpoint=server.url)
        fetch("s3://models/m.gguf", tmp_path / "d", endpoint=server.url, credentials_directory=keys)
    assert held(tmp_path / "d") == place.files


def test_tags_that_are_no_md5_are_noticed_and_accepted(tmp_path, caplog):
    place = BucketFiles({f"x/{name}": content for name, content in checkpoint().items()}, encrypted=True)
    with running(place) as server:
        fetch("s3://models/x", tmp_path, endpoint=server.url)
    assert held(tmp_path) == wanted(checkpoint())
    assert {entry["verified"] for entry in manifest(tmp_path)["files"]} == {"size"}
    assert "no MD5" in caplog.text


@pytest.mark.parametrize("annotation", ["org.opencontainers.image.title", "org.cncf.model.filepath"])
def test_a_registrys_layers_are_files(tmp_path, annotation):
    files = checkpoint()
    place = RegistryFiles(files, annotation=annotation)
    with running(place) as server:
        host = server.url.removeprefix("http://")
        found = fetch(f"oci://{host}/org/tiny:v1", tmp_path)
        assert found.revision == f"sha256:{sha256(place.manifest())}"
        assert held(tmp_path) == wanted(files)
        server.asked.clear()
        fetch(f"oci://{host}/org/tiny:v1", tmp_path, revision=found.revision)
        assert not server.asked
        with pytest.raises(ModelNotFound):
            fetch(f"oci://{host}/org/tiny:v2", tmp_path / "x")


@pytest.mark.parametrize("form", ["docker", "basic", "variables"])
def test_a_registry_with_a_token_service(tmp_path, form):
    place = RegistryFiles(checkpoint(), login=("user", "pass:word"))
    with running(place) as server:
        place.address, host = server.url, server.url.removeprefix("http://")
        auth = base64.b64encode(b"user:pass:word").decode()
        files = {
            "docker": {"__dockerconfigjson": json.dumps({"auths": {f"https://{host}": {"auth": auth}}})},
            "basic": {"username": "user", "password": "pass:word"},
            "variables": {"REGISTRY_USERNAME": "user", "REGISTRY_PASSWORD": "pass:word"},
        }[form]
        with pytest.raises(ModelAccessDenied, match="credentialsSecretRef") as refused:
            fetch(f"oci://{host}/org/tiny:v1", tmp_path / "d")
        assert "pass:word" not in str(refused.value)
        fetch(f"oci://{host}/org/tiny:v1", tmp_path / "d", credentials_directory=secret(tmp_path / "s", **files))
    assert held(tmp_path / "d") == wanted(place.files)


def test_a_token_that_expires_is_renewed(tmp_path, monkeypatch):
    hurry(monkeypatch, span=1024)
    place = RegistryFiles(checkpoint(), login=("user", "word"))
    keys = secret(tmp_path / "s", username="user", password="word")
    with running(place) as server:
        place.address, host = server.url, server.url.removeprefix("http://")
        answer = place.__call__

        def expiring(asked):
            if "/blobs/" in asked.path and len(server.requests("/blobs/")) % 3 == 0:
                place.expire()
            return answer(asked)

        server.answer = expiring
        # The expired token and its renewal may be seen by several connections at once; one makes it certain.
        fetch(f"oci://{host}/org/tiny:v1", tmp_path / "d", credentials_directory=keys, connections=1)
        assert len(server.requests("/token")) > 2
    assert held(tmp_path / "d") == wanted(place.files)


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"titles": {"model.safetensors": "../../etc/model.safetensors"}}, CheckpointInvalid, "no plain file name"),
        ({"titles": {"model.safetensors": "/etc/model.safetensors"}}, CheckpointInvalid, "no plain file name"),
        ({"kind": "application/vnd.cncf.model.weight.v1.tar"}, ModelUnsupported, "packed"),
    ],
)
def test_hostile_and_packed_layers_are_refused(tmp_path, settings, error, words):
    with running(RegistryFiles(checkpoint(), **settings)) as server, pytest.raises(error, match=words):
        fetch(f"oci://{server.url.removeprefix('http://')}/org/tiny:v1", tmp_path / "d")
    assert not held(tmp_path / "d")


def test_a_registrys_manifest_must_be_the_one_that_was_asked_for(tmp_path):
    with running(RegistryFiles(checkpoint())) as server:
        host, digest = server.url.removeprefix("http://"), "sha256:" + "0" * 64
        server.answer.tag = digest  # type: ignore[attr-defined]  # whatever is asked for, it gives its own
        with pytest.raises(ModelSourceUnreachable, match="another manifest"):
            fetch(f"oci://{host}/org/tiny@{digest}", tmp_path, patience_seconds=1)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"endpoint": "ftp://x"}, "--endpoint"),
        ({"token_file": "/nonexistent"}, "--token-file"),
    ],
)
def test_what_opens_no_door_is_named(tmp_path, settings, words):
    with pytest.raises(InvalidConfiguration, match=words):
        fetch("hf://org/tiny", tmp_path, **settings)
    with pytest.raises(InvalidConfiguration, match="--credentials-directory"):
        fetch("s3://bucket/x", tmp_path, credentials_directory="/nonexistent")


# -- what lies in a folder of its own ----------------------------------------------------------------------------------

MEAN = {POOLING: b'{"pooling_mode_mean_tokens": true}'}
BESIDE = {"1_Pooling/pytorch_model.bin": b"x", "2_Dense/config.json": b"x", "onnx/config.json": b"x"}
EMBEDDER = checkpoint() | MEAN | BESIDE


@contextmanager
def source_of(kind: str, files: dict[str, bytes], commit: str = COMMIT) -> Iterator[dict[str, Any]]:
    """A place of that kind with these files, as `fetch` is told of it."""
    places: dict[str, tuple[Any, str]] = {
        "hub": (HubFiles({commit: files}, {"main": commit}), "hf://org/tiny"),
        "bucket": (BucketFiles({f"a/b/{name}": content for name, content in files.items()}), "s3://models/a/b"),
        "whole bucket": (BucketFiles(files), "s3://models"),
        "google": (BucketFiles({f"a/{name}": content for name, content in files.items()}), "gs://models/a"),
        "web": (WebFiles(files), "{url}/models/tiny"),
        "registry": (RegistryFiles(files), "oci://{host}/org/tiny:v1"),
    }
    place, source = places[kind]
    with running(place) as server:
        address = source.format(url=server.url, host=server.url.removeprefix("http://"))
        yield {"source": address} | ({} if kind in ("web", "registry") else {"endpoint": server.url})


@pytest.mark.parametrize("kind", ["hub", "bucket", "whole bucket", "google", "web", "registry"])
def test_what_embeddings_are_made_of_comes_along_whatever_the_source(tmp_path, kind):
    with source_of(kind, EMBEDDER) as place:
        fetch(destination=tmp_path, **place)
        assert held(tmp_path) == wanted(EMBEDDER) | MEAN
        assert read_pooling(str(tmp_path)) is Pooling.MEAN
        assert POOLING in {entry["name"] for entry in manifest(tmp_path)["files"]}
        before = (tmp_path / POOLING).stat().st_mtime_ns
        fetch(destination=tmp_path, **place)
        assert (tmp_path / POOLING).stat().st_mtime_ns == before
    with source_of(kind, checkpoint(seed=3), OLD) as place:
        fetch(destination=tmp_path, **place)
        assert held(tmp_path) == wanted(checkpoint(seed=3)), "of the other model nothing is left"


@pytest.mark.parametrize("how", ["a link", "a file"])
def test_a_folder_that_leads_elsewhere_is_not_written_to(tmp_path, how):
    place, outside = tmp_path / "d", tmp_path / "outside"
    place.mkdir()
    outside.mkdir()
    if how == "a link":
        (place / "1_Pooling").symlink_to(outside)
    else:
        (place / "1_Pooling").write_text("not ours")
    with hub(EMBEDDER) as (_, server), pytest.raises(InvalidConfiguration, match="1_Pooling in it is not ours"):
        fetch("hf://org/tiny", place, endpoint=server.url)
    assert not list(outside.iterdir())
