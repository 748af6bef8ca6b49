"""s3://BUCKET/PREFIX and gs://BUCKET/PREFIX by obstore. Repeating is left to us, so that all sources wait alike.

Credentials are files named like the clients' variables (AWS_ACCESS_KEY_ID, ...), else the environment's. Without any,
requests are unsigned: a public bucket works, and no metadata service is asked, which a pod may not reach.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import obstore
from obstore.exceptions import BaseError, PermissionDeniedError, PreconditionError, UnauthenticatedError
from obstore.store import GCSStore, S3Store

from octavo_engine.errors import InvalidConfiguration, ModelAccessDenied, ModelNotFound, OctavoError
from octavo_engine.fetch.credentials import CREDENTIALS_REMEDY, read_variables
from octavo_engine.fetch.http import CONNECT_SECONDS, READ_SECONDS, failure
from octavo_engine.fetch.location import Location
from octavo_engine.fetch.remote import Broken, Changed, Digest, Listing, RemoteFile
from octavo_engine.fetch.selection import NESTED, local_name

S3_IDENTITIES = ("AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_FULL_URI",
                 "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI")  # fmt: skip
S3_VARIABLES = (*S3_IDENTITIES, "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_DEFAULT_REGION",
                "AWS_ROLE_ARN", "AWS_ENDPOINT_URL", "AWS_REQUEST_PAYER")  # fmt: skip
GS_IDENTITIES = ("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_KEY")
CHUNK_BYTES = 64 * 1024  # a cut loses what is not handed on yet
DEFAULT_REGION = "us-east-1"
NO_RETRIES = {"max_retries": 0, "retry_timeout": timedelta(seconds=READ_SECONDS)}
MD5 = re.compile(r'"?([0-9a-f]{32})"?')
STATUS = re.compile(r"status(?: code)?:? (\d{3})")


class ObjectStore:
    """The objects directly below a prefix, and those that have a folder there."""

    def __init__(self, location: Location, endpoint: str | None, credentials_directory: str | None) -> None:
        self._prefix, self._named, self._label = location.path, location.file, location.label
        variables = read_variables(credentials_directory)
        try:
            make = _s3 if location.scheme == "s3" else _gs
            self._store = make(location.host, endpoint, variables, credentials_directory)
        except (BaseError, ValueError):
            raise InvalidConfiguration(
                f"the credentials for {self._label} cannot be used; {CREDENTIALS_REMEDY}"
            ) from None

    def list(self) -> Listing:
        """The named object, or all directly below the prefix."""
        with self._translated(self._label):
            if self._named is not None:
                return Listing({self._named: self._file(obstore.head(self._store, self._key(self._named)))})
            files = list(self._below(self._prefix))
        if not files:
            raise ModelNotFound(f"{self._label}: there is no object below this prefix")
        return Listing({file.name: file for file in files})

    def _below(self, prefix: str) -> Iterator[RemoteFile]:
        """What lies directly there, and of the folders in which a model may have files, those files."""
        found = obstore.list_with_delimiter(self._store, prefix or None)
        yield from (self._file(meta) for meta in found["objects"] if not meta["path"].endswith("/"))
        there = {folder.rstrip("/") for folder in found["common_prefixes"]}
        for folder in sorted({name.rpartition("/")[0] for name in NESTED}):
            if self._key(folder) in there:
                inside = obstore.list_with_delimiter(self._store, self._key(folder))["objects"]
                yield from (self._file(meta) for meta in inside if self._name(meta["path"]) in NESTED)

    def read(self, file: RemoteFile, start: int, end: int) -> Iterator[bytes]:
        """A range of an object, if it is still the one that was listed."""
        with self._translated(f"{self._label}: {file.name}"):
            options: dict[str, Any] = {"range": (start, end)} | ({"if_match": file.etag} if file.etag else {})
            reply = obstore.get(self._store, file.locator, options=options)  # type: ignore[arg-type]
            if reply.meta["size"] != file.size or (file.etag and reply.meta["e_tag"] != file.etag):
                raise Changed
            for chunk in reply.stream(min_chunk_size=CHUNK_BYTES):
                yield bytes(chunk)

    def close(self) -> None:
        """Nothing to let go of: the library closes its connections when the store is collected."""

    def _key(self, name: str) -> str:
        return f"{self._prefix}/{name}" if self._prefix else name

    def _name(self, key: str) -> str:
        return key.removeprefix(f"{self._prefix}/") if self._prefix else key

    def _file(self, meta: Mapping[str, Any]) -> RemoteFile:
        etag = meta["e_tag"]
        found = MD5.fullmatch(etag or "")
        digest = Digest("md5", found[1], certain=False) if found else None
        name = local_name(self._name(meta["path"]))
        return RemoteFile(name, meta["size"], meta["path"], etag=etag, digest=digest)

    @contextmanager
    def _translated(self, what: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise ModelNotFound(f"{what}: there is no such object, or no such bucket") from None
        except (PermissionDeniedError, UnauthenticatedError):
            raise ModelAccessDenied(f"{what}: access denied; {CREDENTIALS_REMEDY}") from None
        except PreconditionError:
            raise Changed from None
        except (BaseError, OSError) as error:
            raise _meaning(error, what) from None


def _s3(bucket: str, endpoint: str | None, given: Mapping[str, str], directory: str | None) -> S3Store:
    names = given if directory else os.environ  # never half of each: that would be a riddle
    config: dict[str, Any] = {key.lower(): names[key] for key in S3_VARIABLES if names.get(key)}
    config.setdefault("aws_region", config.get("aws_default_region") or os.environ.get("AWS_REGION") or DEFAULT_REGION)
    if endpoint:
        config["aws_endpoint_url"] = endpoint
    if not any(key.lower() in config for key in S3_IDENTITIES):
        config["aws_skip_signature"] = True
    http = str(config.get("aws_endpoint_url", "")).startswith("http://")
    return S3Store(bucket, config=config, client_options=_client(http), retry_config=NO_RETRIES)  # type: ignore[arg-type]


def _gs(bucket: str, endpoint: str | None, given: Mapping[str, str], directory: str | None) -> GCSStore:
    config: dict[str, Any] = {}
    key = next((name for name in GS_IDENTITIES if given.get(name)), None)
    if key is not None:
        config["google_service_account_key"] = given[key]
    elif not directory and os.environ.get("GOOGLE_APPLICATION_CREDENTIALS"):
        config["google_application_credentials"] = os.environ["GOOGLE_APPLICATION_CREDENTIALS"]
    else:
        config["google_skip_signature"] = True
    if endpoint:
        config["google_base_url"] = endpoint
    http = (endpoint or "").startswith("http://")
    return GCSStore(bucket, config=config, client_options=_client(http), retry_config=NO_RETRIES)  # type: ignore[arg-type]


def _client(http: bool) -> dict[str, Any]:
    """`timeout` bounds a whole reply in this client, so it is left to hours; what stalls is ended by `read_timeout`."""
    return {
        "allow_http": http,
        "connect_timeout": timedelta(seconds=CONNECT_SECONDS),
        "read_timeout": timedelta(seconds=READ_SECONDS),
        "timeout": timedelta(hours=12),
    }


def _meaning(error: Exception, what: str) -> OctavoError | Broken:
    """What the library says only in words. They hold URLs and bodies, so they are looked at and not repeated."""
    text = str(error).lower().replace("retry_timeout", "")
    found = STATUS.search(text)
    if found:
        return failure(int(found[1]), what, remedy=CREDENTIALS_REMEDY)
    if "certificate" in text:
        return Broken("its TLS certificate is not trusted")
    if "dns" in text or "lookup" in text:
        return Broken("its host name cannot be resolved")
    if "refused" in text:
        return Broken("the connection is refused")
    if "timed out" in text or "timeout" in text:
        return Broken("the server does not answer in time")
    return Broken("the connection was cut")
