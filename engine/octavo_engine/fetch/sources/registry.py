"""oci://REGISTRY/REPO: model artifacts of an OCI registry, whose layers are files.

A pull needs three requests of the distribution specification (manifest, token, blob), so they are made here: the usual
Python client reads a blob only from its beginning, and repeats requests by rules of its own.
Known layouts: ORAS (a title on each layer), ModelPack (its file path), and Docker's (one GGUF layer without a name).
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar
from urllib.parse import urlencode

from octavo_engine.errors import ModelUnsupported
from octavo_engine.fetch.credentials import CREDENTIALS_REMEDY, read_variables, registry_login
from octavo_engine.fetch.http import Http, Unauthorized
from octavo_engine.fetch.location import Location
from octavo_engine.fetch.remote import Broken, Digest, Listing, RemoteFile

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
ACCEPT = {"Accept": f"{MANIFEST}, {INDEX}, {DOCKER_MANIFEST}"}
NAMES = ("org.opencontainers.image.title", "org.cncf.model.filepath")  # annotations, in the order of trust
SHA256 = re.compile(r"sha256:[0-9a-f]{64}")
LOOPBACK = re.compile(r"(localhost|127\.\d+\.\d+\.\d+|\[::1\])(:\d+)?")
T = TypeVar("T")


class Registry:
    """One artifact of a registry."""

    def __init__(
        self, location: Location, revision: str | None, endpoint: str | None, credentials_directory: str | None
    ) -> None:
        host = "registry-1.docker.io" if location.host == "docker.io" else location.host
        scheme = "http" if LOOPBACK.fullmatch(host) else "https"
        self._base = f"{endpoint.rstrip('/') if endpoint else f'{scheme}://{host}'}/v2/{location.path}"
        self._label, self._repository = location.label, location.path
        self._reference = revision or location.reference or "latest"
        self._login = registry_login(read_variables(credentials_directory), location.host)
        self._http = Http(remedy=CREDENTIALS_REMEDY)
        self._authorization: dict[str, str] = {}
        self._renewing = threading.Lock()

    def list(self) -> Listing:
        """The files of the artifact; its revision is the digest of its manifest."""
        manifest, digest = self._manifest(self._reference)
        if "manifests" in manifest:
            manifest, _ = self._manifest(_only_manifest(manifest, self._label))
        files = [file for layer in manifest.get("layers") or () if (file := _file(layer, self._label))]
        return Listing({file.name: file for file in files}, digest)

    def read(self, file: RemoteFile, start: int, end: int) -> Iterator[bytes]:
        """A range of a blob."""
        what, url = f"{self._label}: {file.name}", f"{self._base}/blobs/{file.locator}"

        def attempt() -> Iterator[bytes]:
            return self._http.read_range(url, start, end, what=what, size=file.size, headers=self._authorization)

        try:
            yield from attempt()
        except Unauthorized as refused:  # before the first byte: the token is missing or has expired
            self._authorize(refused)
            yield from attempt()

    def close(self) -> None:
        """Let go of the connections."""
        self._http.close()

    def _manifest(self, reference: str) -> tuple[dict[str, Any], str]:
        """A manifest and its digest, which is checked where the reference is one."""
        url = f"{self._base}/manifests/{reference}"
        body = self._authorized(lambda: self._http.read_document(url, what=self._label, headers=self._headers()))[0]
        digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
        if SHA256.fullmatch(reference) and reference != digest:
            raise Broken("the registry answered with another manifest than was asked for")
        try:
            manifest = json.loads(body)
        except (ValueError, RecursionError):
            manifest = None
        if not isinstance(manifest, dict):
            raise Broken("what the registry answers is no manifest")
        return manifest, digest

    def _headers(self) -> dict[str, str]:
        return ACCEPT | self._authorization

    def _authorized(self, action: Callable[[], T]) -> T:
        try:
            return action()
        except Unauthorized as refused:
            self._authorize(refused)
            return action()

    def _authorize(self, refused: Unauthorized) -> None:
        """Answer the registry's challenge with a token for pulling, or the password; re-raises what has no answer."""
        with self._renewing:
            scheme, _, rest = (refused.challenge or "").partition(" ")
            basic = _basic(self._login) if self._login else {}
            if scheme.lower() == "basic" and basic:
                self._authorization = basic
                return
            fields = dict(re.findall(r'(\w+)="([^"]*)"', rest))
            if scheme.lower() != "bearer" or not fields.get("realm", "").startswith(("https://", "http://")):
                raise refused
            query = {"scope": f"repository:{self._repository}:pull"}
            query |= {"service": fields["service"]} if "service" in fields else {}
            url = f"{fields['realm']}?{urlencode(query)}"
            body, _ = self._http.read_document(url, what=f"{self._label}: its token service", headers=basic)
            self._authorization = {"Authorization": f"Bearer {_token(body)}"}


def _basic(login: tuple[str, str]) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(":".join(login).encode()).decode()}


def _token(body: bytes) -> str:
    try:
        answer = json.loads(body)
        return str(answer.get("token") or answer["access_token"])
    except (ValueError, KeyError, AttributeError, TypeError):
        raise Broken("the token service's answer holds no token") from None


def _only_manifest(index: Mapping[str, Any], label: str) -> str:
    """The digest of an index's one manifest."""
    digests = [str(entry.get("digest")) for entry in index["manifests"] or () if isinstance(entry, dict)]
    if len(digests) != 1 or not SHA256.fullmatch(digests[0]):
        raise ModelUnsupported(f"{label} is an index of {len(digests)} manifests; name one by its digest")
    return digests[0]


def _file(layer: Mapping[str, Any], label: str) -> RemoteFile | None:
    """A layer as a file; None for one without a name, which is none of a model's."""
    annotations, kind = layer.get("annotations") or {}, str(layer.get("mediaType"))
    name = next((str(annotations[key]) for key in NAMES if annotations.get(key)), None)
    if name is None and "gguf" in kind:
        name = "model.gguf"
    if name is None:
        return None
    if re.search(r"\b(tar|gzip|zstd)\b", kind):
        raise ModelUnsupported(f"{label}: {name[:80]} is packed ({kind[:80]}); push it again with raw layers")
    digest, size = str(layer.get("digest")), layer.get("size")
    if not SHA256.fullmatch(digest) or type(size) is not int or size < 0:
        raise ModelUnsupported(f"{label}: {name[:80]} has no sha256 digest or no size")
    return RemoteFile(name.removeprefix("./"), size, digest, digest=Digest("sha256", digest.removeprefix("sha256:")))
