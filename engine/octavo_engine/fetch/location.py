"""The address of a model: `scheme://...` as users write it, taken apart and checked. Pure text: nobody is contacted."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from octavo_engine.errors import InvalidConfiguration

SCHEMES = ("hf", "s3", "gs", "https", "http", "oci")
FORMS = "hf://ORG/NAME[/FILE.gguf], s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, https://HOST/PATH or oci://REGISTRY/REPO"
_PART = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_HUB = re.compile(rf"(?P<repo>{_PART}/{_PART})(?:/(?P<file>[^?#]+\.gguf))?/?")
_BUCKET = re.compile(r"(?P<bucket>[A-Za-z0-9][A-Za-z0-9._-]{1,221})(?:/(?P<key>.*))?")
_REGISTRY = re.compile(
    r"(?P<host>[A-Za-z0-9.-]+(?::\d+)?|\[[0-9a-fA-F:]+\](?::\d+)?)/(?P<repo>[a-z0-9]+(?:[._/-]+[a-z0-9]+)*)"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9._-]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)


@dataclass(frozen=True, slots=True)
class Location:
    """Where a model is. `label` is the address without anything secret, for messages and records."""

    scheme: str
    host: str  # hub: empty; object store: the bucket; web and registry: the authority
    path: str  # hub: ORG/NAME; object store: the prefix; web: the path; registry: the repository
    label: str
    file: str | None = None  # the one .gguf that was named, as the source calls it
    reference: str | None = None  # registry: tag or digest
    query: str = ""  # web: may be a signature, so never in a message


def parse(text: str) -> Location:
    """Take an address apart; raises InvalidConfiguration naming the form that is expected."""
    scheme, separator, rest = text.partition("://")
    if not separator or scheme not in SCHEMES:
        raise InvalidConfiguration(f"--source {_shown(text)!r} is no model source; it must be {FORMS}")
    match scheme:
        case "hf":
            return _hub(rest, text)
        case "s3" | "gs":
            return _bucket(scheme, rest, text)
        case "oci":
            return _registry(rest, text)
    return _web(text)


def _hub(rest: str, text: str) -> Location:
    found = _HUB.fullmatch(rest)
    if found is None:
        raise InvalidConfiguration(f"--source {_shown(text)!r} must be hf://ORG/NAME, or hf://ORG/NAME/FILE.gguf")
    return Location("hf", "", found["repo"], f"hf://{rest.rstrip('/')}", file=found["file"])


def _bucket(scheme: str, rest: str, text: str) -> Location:
    found = _BUCKET.fullmatch(rest)
    if found is None:
        raise InvalidConfiguration(f"--source {_shown(text)!r} must be {scheme}://BUCKET/PREFIX")
    key = (found["key"] or "").strip("/")
    folder, _, name = key.rpartition("/")
    label = f"{scheme}://{found['bucket']}/{key}".rstrip("/")
    if name.endswith(".gguf"):
        return Location(scheme, found["bucket"], folder, label, file=name)
    return Location(scheme, found["bucket"], key, label)


def _registry(rest: str, text: str) -> Location:
    found = _REGISTRY.fullmatch(rest)
    if found is None:
        raise InvalidConfiguration(f"--source {_shown(text)!r} must be oci://REGISTRY/REPO[:TAG | @sha256:...]")
    reference = found["digest"] or found["tag"] or "latest"
    return Location("oci", found["host"], found["repo"], f"oci://{rest}", reference=reference)


def _web(text: str) -> Location:
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise InvalidConfiguration("--source is no valid URL") from None
    if parts.username is not None or parts.password is not None:
        raise InvalidConfiguration("--source must not hold a password; give a token by --token-file (tokenSecretRef)")
    if not parts.hostname:
        raise InvalidConfiguration(f"--source {_shown(text)!r} must be https://HOST/PATH")
    host = parts.hostname if ":" not in parts.hostname else f"[{parts.hostname}]"
    host = f"{host}:{port}" if port else host
    folder, _, name = parts.path.rstrip("/").rpartition("/")
    label = f"{parts.scheme}://{host}{parts.path}".rstrip("/")
    if name.endswith(".gguf"):
        return Location(parts.scheme, host, folder, label, file=unquote(name), query=parts.query)
    return Location(parts.scheme, host, parts.path.rstrip("/"), label, query=parts.query)


def _shown(text: str) -> str:
    """The address as a message may quote it: whatever could be a secret in it is cut off."""
    head = re.split(r"[?#]", text, maxsplit=1)[0][:200]
    return re.sub(r"//[^/]*@", "//", head) if not head.startswith("oci://") else head
