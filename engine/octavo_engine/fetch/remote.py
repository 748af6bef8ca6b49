"""The values that all sources exchange with all that reads from them: a file, its hash, a listing, what went wrong."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Digest:
    """The hash that a source states for a file: `sha256`, `md5`, or `git` (SHA-1 of a git blob), in hex.

    `certain` is false for an object store's MD5-like ETag: with some kinds of encryption it is no MD5.
    """

    algorithm: str
    value: str
    certain: bool = True


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of a source. Two with equal `identity` have equal content, as far as the source can tell."""

    name: str  # as it is written locally: a plain file name, or one of `selection.NESTED`
    size: int  # bytes
    locator: str = field(repr=False)  # for the source alone: a URL, a key, a digest
    etag: str | None = None  # strong: it changes with the content
    stamp: str | None = None  # what else does: a date, a commit
    digest: Digest | None = None
    ranged: bool = True  # parts can be asked for; otherwise only the whole

    @property
    def identity(self) -> str:
        """Name, size and whatever the source has to tell content apart, as a short word for file names."""
        mark = f"{self.digest.algorithm}:{self.digest.value}" if self.digest else self.etag or self.stamp
        return hashlib.sha256(f"{self.name}\n{self.size}\n{mark}".encode()).hexdigest()[:24]

    @property
    def recognizable(self) -> bool:
        """True when the source would show another content by another identity, so that a part may be continued."""
        return bool(self.digest or self.etag or self.stamp)


@dataclass(frozen=True, slots=True)
class Listing:
    """What a source holds. `revision` is what pins it: a commit or a digest; None where there is no such thing."""

    files: Mapping[str, RemoteFile]
    revision: str | None = None


class Source(Protocol):
    """A place that holds one model. Its calls may raise Broken, Changed or a StartupError."""

    def list(self) -> Listing:
        """The files that a model may consist of, by their local names."""

    def read(self, file: RemoteFile, start: int, end: int) -> Iterator[bytes]:
        """The bytes from `start` up to `end`, in chunks. Called from several threads."""

    def close(self) -> None:
        """Let go of its connections."""


class Broken(Exception):
    """A call that failed and may succeed when repeated. The text is a few words, free of addresses and secrets."""

    def __init__(self, words: str, *, retry_after: float | None = None) -> None:
        super().__init__(words)
        self.retry_after = retry_after  # seconds that the source asks us to wait


class Changed(Exception):
    """The file at the source is no longer the one that was listed."""
