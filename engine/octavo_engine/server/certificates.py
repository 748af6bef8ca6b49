"""The API's certificate: checked as a pair with its key, and exchanged under a running server when its files change.

Each time a whole new context is made of what the files say, and used only if all of it fits together. Connections keep
the certificate that they began with.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from octavo_engine.config import ServerConfig
from octavo_engine.errors import InvalidConfiguration
from octavo_engine.server.watched_files import Stamp, stamp

log = logging.getLogger(__name__)

LOOK_SECONDS = 5.0  # how long a file may have changed before that is seen
NO_PASSPHRASE = ""  # else OpenSSL would ask for one at the terminal, and wait


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateFiles:
    """Paths of PEM files."""

    certificate: str  # with its chain
    key: str
    client_ca: str | None = None  # clients need certificates that these authorities have signed

    @classmethod
    def of(cls, config: ServerConfig) -> Self | None:
        """Those that the flags name, if any; raises InvalidConfiguration for a half of them."""
        if config.tls_cert_file and config.tls_key_file:
            return cls(certificate=config.tls_cert_file, key=config.tls_key_file, client_ca=config.tls_client_ca_file)
        if config.tls_cert_file or config.tls_key_file:
            raise InvalidConfiguration("--tls-cert-file and --tls-key-file go together: name both")
        if config.tls_client_ca_file:
            raise InvalidConfiguration("--tls-client-ca-file needs --tls-cert-file and --tls-key-file: name them")
        return None

    @property
    def stamps(self) -> tuple[Stamp | None, ...]:
        """What they are now."""
        return tuple(stamp(path) for path in (self.certificate, self.key, self.client_ca) if path is not None)


class Certificates:
    """The context that handshakes begin with, and the newest, which they go on with."""

    def __init__(self, files: CertificateFiles, on_reload: Callable[[bool], None] = lambda _: None) -> None:
        """`on_reload` is told whether changed files were taken. Raises InvalidConfiguration for files that do not
        serve."""
        self._files = files
        self._on_reload = on_reload
        self._seen = files.stamps
        self._newest = self.context = load(files)
        self.context.sni_callback = self._exchange

    def _exchange(self, handshake: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        """OpenSSL calls this in every handshake, whether the client names a host or not."""
        handshake.context = self._newest

    def look(self) -> None:
        """Take the files if they are others than before; of wrong ones it is told once, and those before stay."""
        seen, self._seen = self._seen, self._files.stamps
        if seen == self._seen:
            return
        try:
            self._newest = load(self._files)
        except InvalidConfiguration as error:
            log.error("the certificate has changed and is not used: %s; the one before stays", error)
            self._on_reload(False)
        else:
            log.info("the certificate has changed: new connections get the new one")
            self._on_reload(True)

    async def watch(self) -> None:
        """Look now and then, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self.look()


def load(files: CertificateFiles) -> ssl.SSLContext:
    """A server's context; raises InvalidConfiguration that names the flag and what is wrong."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(files.certificate, files.key, password=NO_PASSPHRASE)
    except OSError as error:
        pair = f"--tls-cert-file {files.certificate} with --tls-key-file {files.key}"
        raise InvalidConfiguration(f"{pair}: {_why(error)}") from error
    if files.client_ca is not None:
        _demand_certificates(context, files.client_ca)
    return context


def _demand_certificates(context: ssl.SSLContext, authorities: str) -> None:
    try:
        context.load_verify_locations(authorities)
    except OSError as error:
        raise InvalidConfiguration(f"--tls-client-ca-file {authorities}: {_why(error)}") from error
    context.verify_mode = ssl.CERT_REQUIRED
    context.num_tickets = 0  # a session that is taken up again would not be asked for its certificate


def _why(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        reason = (error.reason or "no PEM that can be read").replace("_", " ").lower()
        return f"{reason} (a certificate and its own key are needed, in PEM, without a passphrase)"
    return error.strerror or type(error).__name__
