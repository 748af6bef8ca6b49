"""What stands before the API, as the flags say: keys and what they may take, TLS, web pages' origins, deadlines.

Opened before the model is loaded, so that what cannot work is known at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import partial

from octavo_engine.config import ServerConfig, flag, read_environment
from octavo_engine.errors import InvalidConfiguration
from octavo_engine.metrics import WatchedFile
from octavo_engine.server.auth import KeyRing, why
from octavo_engine.server.certificates import CertificateFiles, Certificates
from octavo_engine.server.cors import check_origins
from octavo_engine.server.deadlines import Deadlines
from octavo_engine.server.key_file import KeyLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """All of it."""

    keys: KeyRing
    certificates: Certificates | None
    origins: tuple[str, ...]
    deadlines: Deadlines

    @property
    def scheme(self) -> str:
        """What URLs of the API begin with."""
        return "http" if self.certificates is None else "https"


def open_door(
    server: ServerConfig,
    environment: Mapping[str, str],
    on_reload: Callable[[WatchedFile, bool], None] = lambda _, __: None,
) -> Door:
    """Raises InvalidConfiguration. `on_reload` is told of each file that has changed, and whether it was taken."""
    check_origins(server.cors_allow_origin)
    files = CertificateFiles.of(server)
    told = partial(on_reload, WatchedFile.CERTIFICATE)
    return Door(
        keys=_open_keys(server, environment, partial(on_reload, WatchedFile.API_KEYS)),
        certificates=None if files is None else Certificates(files, told),
        origins=server.cors_allow_origin,
        deadlines=Deadlines(
            head=server.header_timeout_seconds, body=server.body_timeout_seconds, write=server.write_timeout_seconds
        ),
    )


def _open_keys(server: ServerConfig, environment: Mapping[str, str], on_reload: Callable[[bool], None]) -> KeyRing:
    limits = {field.name: getattr(server, f"key_{field.name}") for field in fields(KeyLimits)}
    try:
        keys = (*server.api_key, *read_environment(environment))
        ring = KeyRing(keys, server.api_key_file, limits=KeyLimits(**limits), on_reload=on_reload)
    except (OSError, ValueError) as error:
        raise InvalidConfiguration(f"--api-key-file {server.api_key_file}: {why(error)}") from error
    if not ring.required:
        for name, limit in limits.items():
            if limit is not None:
                raise InvalidConfiguration(f"{flag(f'key_{name}')} is a limit of keys, and there are none: set some")
    return ring
