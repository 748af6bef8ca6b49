"""Secrets, from the files that Kubernetes mounts. A value is read when it is needed and never logged."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from octavo_engine.errors import InvalidConfiguration

TOKEN_REMEDY = "give a token that has access (model.tokenSecretRef, or --token-file)"
CREDENTIALS_REMEDY = "give credentials that have access (model.credentialsSecretRef, or --credentials-directory)"
DOCKER_FILES = (".dockerconfigjson", "config.json")  # of a kubernetes.io/dockerconfigjson Secret; of a home directory
MAX_SECRET_BYTES = 1 << 20


def read_token(path: str | None) -> str | None:
    """The bearer token of a file; None without one. Raises InvalidConfiguration when it cannot be one."""
    if path is None:
        return None
    token = _read("--token-file", Path(path)).strip()
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise InvalidConfiguration("--token-file must hold one token (model.tokenSecretRef)")
    return token


def read_variables(directory: str | None) -> dict[str, str]:
    """The files of a directory as `name -> content`; hidden ones too, but not Kubernetes' own links."""
    if directory is None:
        return {}
    place = Path(directory)
    try:
        files = [entry for entry in place.iterdir() if entry.is_file() and not entry.name.startswith("..")]
    except OSError as error:
        raise InvalidConfiguration(f"--credentials-directory cannot be read: {error.strerror}") from None
    return {entry.name: _read("--credentials-directory", entry).strip() for entry in files}


def registry_login(variables: Mapping[str, str], host: str) -> tuple[str, str] | None:
    """Name and password for a registry: of a Docker config, else of REGISTRY_USERNAME or `username` and their like."""
    for name in DOCKER_FILES:
        if name in variables and (login := _docker_login(variables[name], host)):
            return login
    for user, password in (("REGISTRY_USERNAME", "REGISTRY_PASSWORD"), ("username", "password")):
        if user in variables and password in variables:
            return variables[user], variables[password]
    return None


def _docker_login(text: str, host: str) -> tuple[str, str] | None:
    try:
        entries: dict[str, Any] = json.loads(text).get("auths", {})
        entry = next((value for key, value in entries.items() if _registry_of(key) == host), None)
        if entry is None:
            return None
        if "auth" in entry:
            user, _, password = base64.b64decode(entry["auth"], validate=True).decode().partition(":")
            return user, password
        return str(entry["username"]), str(entry["password"])
    except (ValueError, KeyError, AttributeError, TypeError, binascii.Error):
        raise InvalidConfiguration("the registry's credentials are no Docker config (credentialsSecretRef)") from None


def _registry_of(key: str) -> str:
    return key.removeprefix("https://").removeprefix("http://").split("/", 1)[0]


def _read(flag: str, path: Path) -> str:
    try:
        with path.open(encoding="utf-8") as file:
            return file.read(MAX_SECRET_BYTES)
    except (OSError, UnicodeDecodeError):
        raise InvalidConfiguration(f"{flag}: {path.name} cannot be read as text") from None
