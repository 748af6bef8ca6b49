"""What `octavo fetch` is told, and the flags that say where a model is, which `octavo preflight` has too."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from octavo_engine.config import FlagParser, add_flags, check_bounds, from_namespace, option
from octavo_engine.errors import InvalidConfiguration
from octavo_engine.fetch.sources import Access


@dataclass(frozen=True, kw_only=True)
class SourceConfig:
    """Where a model is, and what opens the door."""

    source: str = option("", "hf://ORG/NAME[/FILE.gguf], s3://..., gs://..., https://... or oci://...")
    revision: str | None = option(
        None, "branch, tag or commit of a hub; digest of an artifact; or the files-... that an earlier fetch reported"
    )
    endpoint: str | None = option(None, "URL of a hub's mirror, an S3-compatible store or a registry's mirror")
    token_file: str | None = option(None, "file with a bearer token, for hf:// and https://")
    credentials_directory: str | None = option(
        None, "directory of files named like the client's variables (AWS_ACCESS_KEY_ID, ...), for s3://, gs://, oci://"
    )

    @property
    def access(self) -> Access:
        """The same without the address."""
        return Access(self.revision, self.endpoint, self.token_file, self.credentials_directory)


@dataclass(frozen=True, kw_only=True)
class FetchConfig(SourceConfig):
    """`octavo fetch`: from a source into a directory."""

    destination: str = option("", "directory to write to; made if it is not there")
    management_host: str = option("127.0.0.1", "address of /progress and /livez")
    management_port: int | None = option(None, "port of /progress and /livez; default: none", minimum=0, maximum=65535)
    connections: int = option(8, "transfers at once", minimum=1, maximum=64)
    patience_seconds: float = option(
        300.0, "longest time without a byte before giving up; what is there is kept", minimum=1, maximum=86400
    )

    def __post_init__(self) -> None:
        check_bounds(self)

    @classmethod
    def parse(cls, args: Sequence[str]) -> Self:
        """Read the arguments; raises InvalidConfiguration naming the flag."""
        parsed = fetch_parser().parse_args(args)
        parsed.source = getattr(parsed, "source", None) or parsed.source_argument
        parsed.destination = getattr(parsed, "destination", None) or parsed.destination_argument
        if not parsed.source or not parsed.destination:
            raise InvalidConfiguration("name a source and a directory: octavo fetch hf://ORG/NAME DIRECTORY")
        return from_namespace(cls, parsed)


def fetch_parser() -> argparse.ArgumentParser:
    """The parser of `octavo fetch`."""
    parser = FlagParser(prog="octavo fetch", allow_abbrev=False, description="Fetch a model into a directory.")
    parser.add_argument("source_argument", nargs="?", metavar="SOURCE", help="the same as --source")
    parser.add_argument("destination_argument", nargs="?", metavar="DIRECTORY", help="the same as --destination")
    add_flags(parser, FetchConfig)
    return parser
