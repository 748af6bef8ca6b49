"""Where models come from, one module for each kind of place. `open_source` chooses."""

from __future__ import annotations

from dataclasses import dataclass

from octavo_engine.errors import InvalidConfiguration
from octavo_engine.fetch.location import Location
from octavo_engine.fetch.remote import Source

__all__ = ["Access", "open_source"]


@dataclass(frozen=True, slots=True)
class Access:
    """How a source is reached, beside its address: what `octavo fetch` and `octavo preflight` are told."""

    revision: str | None = None
    endpoint: str | None = None
    token_file: str | None = None
    credentials_directory: str | None = None


def open_source(location: Location, access: Access) -> Source:
    """The source at `location`; contacts nobody. Each client is imported only where it is needed: they are heavy."""
    if access.endpoint is not None and not access.endpoint.startswith(("https://", "http://")):
        raise InvalidConfiguration("--endpoint must be an http:// or https:// URL (model.endpoint)")
    match location.scheme:
        case "hf":
            from octavo_engine.fetch.sources.hub import Hub  # noqa: PLC0415

            return Hub(location, access.revision, access.endpoint, access.token_file)
        case "s3" | "gs":
            from octavo_engine.fetch.sources.object_store import ObjectStore  # noqa: PLC0415

            return ObjectStore(location, access.endpoint, access.credentials_directory)
        case "oci":
            from octavo_engine.fetch.sources.registry import Registry  # noqa: PLC0415

            return Registry(location, access.revision, access.endpoint, access.credentials_directory)
    from octavo_engine.fetch.sources.web import Web  # noqa: PLC0415

    return Web(location, access.token_file)
