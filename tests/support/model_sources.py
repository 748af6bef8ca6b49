"""Places that hold models: hub, bucket, web server, registry, each speaking well enough for the real clients."""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass, field
from urllib.parse import parse_qs, quote, unquote, urlsplit
from xml.sax.saxutils import escape

from faulty_http import Asked, Reply

NOT_FOUND = Reply(b"not here", 404)


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def json_reply(document: object, **headers: str) -> Reply:
    return Reply(json.dumps(document).encode(), headers={"Content-Type": "application/json"} | headers)


@dataclass
class WebFiles:
    """Files below a path, as nginx has them."""

    files: dict[str, bytes]
    root: str = "/models/tiny/"
    ranged: bool = True
    etags: bool = True
    token: str | None = None
    checksums: bool = False
    dates: bool = False

    def __call__(self, asked: Asked) -> Reply:
        path = unquote(urlsplit(asked.path).path)
        if self.token and asked.headers.get("authorization") != f"Bearer {self.token}":
            return Reply(status=401)
        content = self.files.get(path.removeprefix(self.root))
        if content is None:
            return NOT_FOUND
        headers = {"ETag": f'"{hashlib.sha1(content, usedforsecurity=False).hexdigest()[:12]}"'} if self.etags else {}
        headers |= {"Last-Modified": f"day {sha256(content)[:8]}"} if self.dates else {}
        headers |= {"X-Checksum-Sha256": sha256(content)} if self.checksums else {}
        return Reply(content, headers=headers, ranged=self.ranged)


@dataclass
class HubFiles:
    """A hub: `/api/models/ORG/NAME/revision/R` and `/ORG/NAME/resolve/COMMIT/FILE`, which redirects for large files."""

    commits: dict[str, dict[str, bytes]]  # commit -> files
    branches: dict[str, str]  # branch -> commit
    repo: str = "org/tiny"
    token: str | None = None
    gated: bool = False
    sizes: bool = True  # some mirrors list names alone
    storage: str = ""  # where large files are, by redirect; empty: here
    large: int = 1024

    def __call__(self, asked: Asked) -> Reply:
        path = unquote(urlsplit(asked.path).path)
        if self.token and asked.headers.get("authorization") != f"Bearer {self.token}":
            return Reply(status=401, headers={"X-Error-Code": "RepoNotFound", "X-Error-Message": "secret-of-the-hub"})
        if self.gated:
            return Reply(status=403, headers={"X-Error-Code": "GatedRepo"})
        if path.startswith(f"/api/models/{self.repo}"):
            return self._info(path.rpartition("/revision/")[2] if "/revision/" in path else "main")
        if path.startswith(f"/{self.repo}/resolve/"):
            commit, _, name = path.removeprefix(f"/{self.repo}/resolve/").partition("/")
            return self._file(commit, name)
        return Reply(status=404, headers={"X-Error-Code": "RepoNotFound"})

    def _info(self, revision: str) -> Reply:
        commit = self.branches.get(revision, revision)
        if commit not in self.commits:
            return Reply(status=404, headers={"X-Error-Code": "RevisionNotFound"})
        siblings = [self._sibling(name, content) for name, content in self.commits[commit].items()]
        return json_reply({"id": self.repo, "sha": commit, "siblings": siblings, "tags": [], "downloads": 0})

    def _sibling(self, name: str, content: bytes) -> dict[str, object]:
        if not self.sizes:
            return {"rfilename": name}
        blob = hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
        entry: dict[str, object] = {"rfilename": name, "size": len(content), "blobId": blob}
        if len(content) >= self.large:
            entry["lfs"] = {"size": len(content), "sha256": sha256(content), "pointerSize": 134}
        return entry

    def _file(self, commit: str, name: str) -> Reply:
        content = self.commits.get(commit, {}).get(name)
        if content is None:
            return Reply(status=404, headers={"X-Error-Code": "EntryNotFound"})
        headers = {"X-Repo-Commit": commit, "ETag": f'"{sha256(content)[:40]}"'}
        if len(content) >= self.large and self.storage:
            linked = {"X-Linked-Size": str(len(content)), "X-Linked-Etag": f'"{sha256(content)}"'}
            location = f"{self.storage}/blobs/{quote(name)}?Signature=very-secret"
            return Reply(status=302, headers=headers | linked | {"Location": location})
        return Reply(content, headers=headers)


@dataclass
class BucketFiles:
    """A bucket as S3's XML API shows it: ListObjectsV2 with a delimiter, HEAD and GET with ranges and If-Match."""

    files: dict[str, bytes]  # whole keys
    bucket: str = "models"
    access_key: str | None = None
    encrypted: bool = False  # then tags look like MD5 sums and are none

    def __call__(self, asked: Asked) -> Reply:
        parts = urlsplit(asked.path)
        path = unquote(parts.path)
        if self.access_key and f"Credential={self.access_key}/" not in asked.headers.get("authorization", ""):
            return Reply(b"<Error><Code>AccessDenied</Code></Error>", 403)
        if path.rstrip("/") == f"/{self.bucket}":
            return self._list(parse_qs(parts.query).get("prefix", [""])[0])
        content = self.files.get(path.removeprefix(f"/{self.bucket}/"))
        if not path.startswith(f"/{self.bucket}/") or content is None:
            return Reply(b"<Error><Code>NoSuchKey</Code></Error>", 404)
        return Reply(content, headers={"ETag": self._etag(content), "Last-Modified": "Tue, 06 Jan 2026 10:00:00 GMT"})

    def _etag(self, content: bytes) -> str:
        salt = b"encrypted" if self.encrypted else b""
        return f'"{hashlib.md5(salt + content, usedforsecurity=False).hexdigest()}"'

    def _list(self, prefix: str) -> Reply:
        rows = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{len(content)}</Size><ETag>{escape(self._etag(content))}</ETag>"
            "<LastModified>2026-01-06T10:00:00.000Z</LastModified><StorageClass>STANDARD</StorageClass></Contents>"
            for key, content in sorted(self.files.items())
            if key.startswith(prefix) and "/" not in key[len(prefix) :]
        )
        below = {key[len(prefix) :].partition("/") for key in self.files if key.startswith(prefix)}
        rows += "".join(
            f"<CommonPrefixes><Prefix>{escape(prefix + folder)}/</Prefix></CommonPrefixes>"
            for folder in sorted({first for first, slash, _ in below if slash})
        )
        text = f"<ListBucketResult><Name>{self.bucket}</Name><IsTruncated>false</IsTruncated>{rows}</ListBucketResult>"
        return Reply(text.encode(), headers={"Content-Type": "application/xml"})


@dataclass
class RegistryFiles:
    """An OCI registry with one artifact, behind a token service as the distribution specification has it."""

    files: dict[str, bytes]
    repo: str = "org/tiny"
    tag: str = "v1"
    login: tuple[str, str] | None = None
    annotation: str = "org.opencontainers.image.title"
    kind: str = "application/octet-stream"
    address: str = ""  # of itself: where the token service is
    issued: int = 0
    titles: dict[str, str] = field(default_factory=dict)  # file -> another title

    def __call__(self, asked: Asked) -> Reply:
        path = urlsplit(asked.path).path
        if path == "/token":
            return self._token(asked)
        if self.login and asked.headers.get("authorization") != f"Bearer token-{self.issued}":
            challenge = f'Bearer realm="{self.address}/token",service="registry",scope="repository:{self.repo}:pull"'
            return Reply(status=401, headers={"WWW-Authenticate": challenge})
        manifest = self.manifest()
        if path in (f"/v2/{self.repo}/manifests/{self.tag}", f"/v2/{self.repo}/manifests/sha256:{sha256(manifest)}"):
            return Reply(manifest, headers={"Content-Type": "application/vnd.oci.image.manifest.v1+json"})
        blobs = {f"/v2/{self.repo}/blobs/sha256:{sha256(content)}": content for content in self.files.values()}
        return Reply(blobs[path]) if path in blobs else NOT_FOUND

    def expire(self) -> None:
        """From now on a new token is needed."""
        self.issued += 1

    def manifest(self) -> bytes:
        layers = [
            {
                "mediaType": self.kind,
                "digest": f"sha256:{sha256(content)}",
                "size": len(content),
                "annotations": {self.annotation: self.titles.get(name, name)},
            }
            for name, content in self.files.items()
        ]
        media = "application/vnd.oci.image.manifest.v1+json"
        return json.dumps({"schemaVersion": 2, "mediaType": media, "layers": layers}).encode()

    def _token(self, asked: Asked) -> Reply:
        expected = "Basic " + base64.b64encode(":".join(self.login or ("", "")).encode()).decode()
        if asked.headers.get("authorization") != expected:
            return Reply(status=401)
        return json_reply({"token": f"token-{self.issued}"})
