"""TLS of the API port: what is refused at the start, and certificates that are exchanged while connections go on."""

from __future__ import annotations

import asyncio
import logging
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from starlette.types import Receive, Scope, Send

from authority import Authority, MountedSecret
from moved_clock import MovedClock
from octavo_engine.config import ServerConfig
from octavo_engine.errors import InvalidConfiguration
from octavo_engine.metrics import WatchedFile
from octavo_engine.server import certificates
from octavo_engine.server.certificates import CertificateFiles, Certificates
from octavo_engine.server.deadlines import Deadlines
from octavo_engine.server.door import open_door
from octavo_engine.server.listeners import Listener, api_listener, bind
from patience import PATIENCE_SECONDS

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
HEAD_SECONDS = 60.0


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directories with certificates, which cost a quarter of a second each."""
    folder = tmp_path_factory.mktemp("certificates")
    ours = Authority.make(folder / "ca")
    for name in ("first", "second", "client"):
        ours.issue(folder / name, name)
    Authority.make(folder / "other-ca", "Other CA").issue(folder / "stranger", "stranger")
    return folder


def files(folder: Path, client_ca: Path | None = None) -> CertificateFiles:
    return CertificateFiles(
        certificate=str(folder / "tls.crt"),
        key=str(folder / "tls.key"),
        client_ca=None if client_ca is None else str(client_ca),
    )


async def well(scope: Scope, receive: Receive, send: Send) -> None:
    assert scope["scheme"] == "https"
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
    await send({"type": "http.response.body", "body": b"well"})


class Served:
    def __init__(self, port: int, client: ssl.SSLContext, listener: Listener) -> None:
        self.port, self.client, self.listener = port, client, listener

    async def connect(
        self, client: ssl.SSLContext | None = None, **named: str
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port, ssl=client or self.client, **named)

    async def name(self, **named: str) -> str:
        """Of the certificate that a new connection is shown."""
        reader, writer = await self.connect(**named)
        shown = common_name(writer)
        assert await asked(reader, writer)
        writer.close()
        return shown


def common_name(writer: asyncio.StreamWriter) -> str:
    return dict(pair for part in writer.get_extra_info("peercert")["subject"] for pair in part)["commonName"]


async def asked(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    writer.write(GET)
    async with asyncio.timeout(PATIENCE_SECONDS):
        return (await reader.readuntil(b"well")).startswith(b"HTTP/1.1 200")


@asynccontextmanager
async def serving(used: Certificates, client: ssl.SSLContext) -> AsyncIterator[Served]:
    bound = bind("--port", "127.0.0.1", 0)
    listener = api_listener(well, Deadlines(head=HEAD_SECONDS), used)
    await listener.start(bound, on_end=lambda: None)
    try:
        yield Served(bound.getsockname()[1], client, listener)
    finally:
        await listener.stop()


async def test_a_new_certificate_is_shown_to_new_connections_and_old_ones_go_on(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As cert-manager renews one, and the kubelet brings it into the pod."""
    monkeypatch.setattr(certificates, "LOOK_SECONDS", 0.05)
    secret, told = MountedSecret(tmp_path / "tls", made / "first"), []
    used = Certificates(files(secret.folder), told.append)
    async with serving(used, Authority(made / "ca").client()) as served:
        reader, writer = await served.connect()
        assert await asked(reader, writer)
        secret.turn_to(made / "second")
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not told:
                await asyncio.sleep(0.01)
        assert await served.name() == "second"
        assert await served.name(server_hostname="127.0.0.1") == "second"
        assert await asked(reader, writer), "the connection of before goes on"
        assert common_name(writer) == "first"
        writer.close()
    assert told == [True]


async def test_a_pair_that_does_not_fit_is_not_used_and_told_once(
    made: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder, told = shutil.copytree(made / "first", tmp_path / "tls"), []
    used = Certificates(files(folder), told.append)
    async with serving(used, Authority(made / "ca").client()) as served:
        shutil.copy(made / "second" / "tls.crt", folder)  # and not yet the key
        for _ in range(3):
            used.look()
            assert await served.name() == "first"
        assert told == [False]
        assert caplog.text.count("key values mismatch") == 1
        (folder / "tls.crt").unlink()
        used.look()
        assert await served.name() == "first"
        shutil.copy(made / "second" / "tls.crt", folder)
        shutil.copy(made / "second" / "tls.key", folder)
        with caplog.at_level(logging.INFO):
            used.look()
        assert await served.name() == "second"
    assert told == [False, False, True]
    assert "PRIVATE KEY" not in caplog.text


async def test_clients_show_certificates_where_they_must(made: Path) -> None:
    ours, authority = Certificates(files(made / "first", made / "ca" / "ca.crt")), Authority(made / "ca")
    async with serving(ours, authority.client(made / "client")) as served:
        assert await served.name() == "first"
        for wrong in (authority.client(), authority.client(made / "stranger")):
            with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
                await refused(served, wrong)


async def refused(served: Served, client: ssl.SSLContext) -> None:
    """Under TLS 1.3 a client learns only when it reads that the server did not like its certificate."""
    reader, writer = await served.connect(client)
    try:
        await asked(reader, writer)
    finally:
        writer.close()


async def test_versions_before_1_2_plain_http_and_half_a_handshake_get_nothing(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = Certificates(files(made / "first"))
    assert used.context.minimum_version is ssl.TLSVersion.TLSv1_2
    clock = MovedClock(monkeypatch)
    async with serving(used, Authority(made / "ca").client()) as served:
        for sent in (GET, b"\x16\x03\x01"):
            reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
            writer.write(sent)
            await asyncio.sleep(0.01)
            clock.move_on(HEAD_SECONDS)
            async with asyncio.timeout(PATIENCE_SECONDS):
                with suppress(ConnectionError):
                    assert b"HTTP" not in await reader.read(-1)
            writer.close()
        old = Authority(made / "ca").client()
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        old.set_alpn_protocols(["h2", "http/1.1"])
        reader, writer = await served.connect(old)
        assert writer.get_extra_info("ssl_object").version() == "TLSv1.2"
        assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == "http/1.1"
        assert await asked(reader, writer)
        writer.close()


async def test_a_server_that_stops_does_not_wait_for_the_goodbye_of_idle_clients(
    made: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A pooled client reads nothing between two requests, not even that."""
    async with serving(Certificates(files(made / "first")), Authority(made / "ca").client()) as served:
        reader, writer = await served.connect()
        assert await asked(reader, writer)
        writer.transport.pause_reading()
        served.listener.retire()
    assert "timeout graceful shutdown exceeded" not in caplog.text
    writer.transport.abort()
    await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("certificate", "key", "told"),
    [
        ("first/tls.crt", "second/tls.key", "--tls-cert-file .* with --tls-key-file .*: key values mismatch"),
        ("first/tls.key", "first/tls.key", "--tls-cert-file .* with --tls-key-file .*: "),
        ("first/tls.crt", "nowhere", "--tls-cert-file .* with --tls-key-file .*: No such file"),
        ("first/tls.crt", "", "--tls-cert-file and --tls-key-file go together"),
        ("", "first/tls.key", "--tls-cert-file and --tls-key-file go together"),
        ("first/tls.crt", "locked.key", "--tls-cert-file .* with --tls-key-file .*without a passphrase"),
    ],
)
def test_what_does_not_serve_prevents_the_start(made: Path, certificate: str, key: str, told: str) -> None:
    if key == "locked.key":
        lock(made / "first" / "tls.key", made / key)
    paths = {"tls_cert_file": certificate, "tls_key_file": key}
    config = ServerConfig(**{name: str(made / path) if path else None for name, path in paths.items()})
    with pytest.raises(InvalidConfiguration, match=told):
        open_door(config, {})


def lock(key: Path, locked: Path) -> None:
    command = ["openssl", "pkey", "-in", str(key), "-aes256", "-passout", "pass:secret", "-out", str(locked)]
    subprocess.run(command, check=True, capture_output=True)


def test_authorities_of_clients_are_checked_too(made: Path) -> None:
    pair = {"tls_cert_file": str(made / "first" / "tls.crt"), "tls_key_file": str(made / "first" / "tls.key")}
    with pytest.raises(InvalidConfiguration, match=r"--tls-client-ca-file .*: "):
        open_door(ServerConfig(**pair, tls_client_ca_file=str(made / "first" / "tls.key")), {})
    with pytest.raises(InvalidConfiguration, match="--tls-client-ca-file needs --tls-cert-file"):
        open_door(ServerConfig(tls_client_ca_file=str(made / "ca" / "ca.crt")), {})


def test_a_door_with_a_certificate_is_one_of_https_and_counts_reloads(made: Path, tmp_path: Path) -> None:
    folder, told = shutil.copytree(made / "first", tmp_path / "tls"), []
    config = ServerConfig(tls_cert_file=str(folder / "tls.crt"), tls_key_file=str(folder / "tls.key"))
    door = open_door(config, {}, lambda file, taken: told.append((file, taken)))
    assert door.scheme == "https"
    assert door.certificates is not None
    (folder / "tls.key").write_text("nothing")
    door.certificates.look()
    assert told == [(WatchedFile.CERTIFICATE, False)]
