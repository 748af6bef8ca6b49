"""Models from a real S3 server: the protocol is the server's own, not our idea of it."""

from __future__ import annotations

import ssl
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest

import s3_server
from cluster_tools import wait_for
from faulty_http import running
from fetching import fetch, held, hurry, leftovers, manifest, start
from held_relay import held_relay
from model_sources import BucketFiles, HubFiles, RegistryFiles, WebFiles
from octavo_engine.errors import ModelAccessDenied, ModelNotFound, ModelSourceUnreachable
from octavo_engine.preflight.command import preflight
from octavo_engine.preflight.settings import PreflightSettings
from patience import PATIENCE_SECONDS
from tiny_files import FETCHED, checkpoint, large


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A folder of buckets."""
    for prefix, files in (("tiny", checkpoint()), ("large", large(80_000_000))):
        (tmp_path / "store/models/team" / prefix).mkdir(parents=True)
        for name, content in files.items():
            (tmp_path / "store/models/team" / prefix / name).write_bytes(content)
    return tmp_path / "store"


def keys(place: Path, variables: dict[str, str]) -> str:
    """A Secret as it is mounted."""
    place.mkdir(exist_ok=True)
    for name, value in variables.items():
        (place / name).write_text(value)
    return str(place)


def test_a_real_s3_server_from_listing_to_digest(tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch, span=8 << 20, record=1 << 20)
    with s3_server.serve(store) as server:
        access = {"endpoint": server.url, "credentials_directory": keys(tmp_path / "keys", server.environment)}
        flags = [f"--endpoint={server.url}", f"--credentials-directory={tmp_path / 'keys'}"]
        report = preflight(PreflightSettings.parse(["--source=s3://models/team/tiny", *flags, "--", "m"]))
        found = fetch("s3://models/team/tiny/", tmp_path / "tiny", revision=report.revision, **access)
        assert (found.revision, found.total_bytes) == (report.revision, report.total_bytes)
        expected = {name: content for name, content in checkpoint().items() if name in FETCHED}
        assert held(tmp_path / "tiny") == expected
        assert {entry["verified"].partition(":")[0] for entry in manifest(tmp_path / "tiny")["files"]} == {"md5"}
        with pytest.raises(ModelAccessDenied, match="credentialsSecretRef"):
            fetch("s3://models/team/tiny", tmp_path / "x", endpoint=server.url)
        wrong = keys(tmp_path / "wrong", server.environment | {"AWS_SECRET_ACCESS_KEY": "marker-of-a-secret"})
        with pytest.raises(ModelAccessDenied) as denied:
            fetch("s3://models/team/tiny", tmp_path / "x", endpoint=server.url, credentials_directory=wrong)
        assert "marker" not in str(denied.value)
        for missing in ("s3://models/team/nothing", "s3://no-such-bucket/team"):
            with pytest.raises(ModelNotFound):
                fetch(missing, tmp_path / "x", **access)


def test_a_real_s3_server_that_goes_away_and_comes_back(
    tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hurry(monkeypatch)
    directory = keys(tmp_path / "keys", s3_server.Endpoint("").environment)
    destination = tmp_path / "large"

    def begun() -> bool:
        return any(journal.stat().st_size > 200 for journal in destination.glob(".octavo/*.journal"))

    with s3_server.serve(store) as server:
        port = int(server.url.rpartition(":")[2])
        with held_relay(port, after=20_000_000) as relay:
            process = start(
                "s3://models/team/large", destination, f"--endpoint={relay.url}",
                f"--credentials-directory={directory}", "--patience-seconds=3",
            )  # fmt: skip
            wait_for(lambda: relay.held.is_set() or process.poll() is not None, "the middle of the fetch")
            wait_for(begun, "a record of what has come")
    _, said = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 3, said
    assert "ModelSourceUnreachable: s3://models/team/large" in said
    assert leftovers(destination)
    access = {"endpoint": f"http://127.0.0.1:{port}", "credentials_directory": directory}
    with pytest.raises(ModelSourceUnreachable):
        fetch("s3://models/team/large", destination, patience_seconds=1, **access)
    with s3_server.serve(store, port=port):
        fetch("s3://models/team/large", destination, patience_seconds=PATIENCE_SECONDS, **access)
    assert held(destination) == {name: text for name, text in large(80_000_000).items() if name in FETCHED}
    assert leftovers(destination) == []


@pytest.fixture
def private_tls(tmp_path: Path) -> ssl.SSLContext:
    """A certificate for loopback by an authority of our own, in `ca.pem`."""

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=tmp_path, check=True, capture_output=True)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-days", "2", "-subj", "/CN=test authority")
    openssl("req", *key, "-keyout", "leaf.key", "-out", "leaf.csr", "-subj", "/CN=localhost")
    (tmp_path / "extensions").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\nbasicConstraints=CA:FALSE\n")
    authority = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "extensions")
    openssl("x509", "-req", "-in", "leaf.csr", *authority, "-days", "2", "-out", "leaf.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "leaf.pem", tmp_path / "leaf.key")
    return context


def test_a_private_authority_is_named_by_ssl_cert_file(
    tmp_path: Path, private_tls: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    hurry(monkeypatch)
    files, commit = checkpoint(), "f" * 40
    expected = {name: content for name, content in files.items() if name in FETCHED}
    places = {
        "web": WebFiles(files),
        "hf": HubFiles({commit: files}, {"main": commit}),
        "s3": BucketFiles({f"t/{name}": content for name, content in files.items()}),
        "oci": RegistryFiles(files),
    }
    with ExitStack() as stack:
        urls = {kind: stack.enter_context(running(place, private_tls)).url for kind, place in places.items()}
        sources = {
            "web": (f"{urls['web']}/models/tiny", {}),
            "hf": ("hf://org/tiny", {"endpoint": urls["hf"]}),
            "s3": ("s3://models/t", {"endpoint": urls["s3"]}),
            "oci": ("oci://registry.example/org/tiny:v1", {"endpoint": urls["oci"]}),
        }
        for source, access in sources.values():
            with pytest.raises(ModelSourceUnreachable, match="TLS certificate is not trusted"):
                fetch(source, tmp_path / "refused", patience_seconds=1, **access)
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
        for kind, (source, access) in sources.items():
            fetch(source, tmp_path / kind, **access)
            assert held(tmp_path / kind) == expected
