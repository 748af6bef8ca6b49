"""A source at one moment: its revision and the files to fetch, chosen and fixed. What becomes of them is elsewhere."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import PurePosixPath

from octavo_engine.errors import CheckpointInvalid, ModelChanged
from octavo_engine.fetch.location import Location
from octavo_engine.fetch.remote import RemoteFile, Source
from octavo_engine.fetch.retry import Patience
from octavo_engine.fetch.selection import choose
from octavo_engine.model.huggingface.checkpoint_files import INDEX

MAX_DOCUMENT_BYTES = 32 * 1024 * 1024
FINGERPRINT = re.compile(r"files-[0-9a-f]{16}")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What is to be fetched, from where, and the revision that it is."""

    source: Source
    label: str
    revision: str
    files: tuple[RemoteFile, ...]

    @property
    def total_bytes(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)


def take(source: Source, location: Location, wanted: str | None, patience: Patience) -> Snapshot:
    """List, choose, and check against the fingerprint that was asked for; raises StartupError."""
    listing = patience.call(source.list, location.label)
    patience.progress()

    def read_index() -> bytes:
        return read_whole(source, listing.files[INDEX], patience)

    named = PurePosixPath(location.file).name if location.file else None
    names = choose(listing.files, read_index, location.label, named)
    files = tuple(listing.files[name] for name in names)
    revision = listing.revision or fingerprint(files)
    if wanted is not None and FINGERPRINT.fullmatch(wanted) and wanted != revision:
        raise ModelChanged(
            f"{location.label} holds other files now ({revision}) than {wanted};"
            " roll the service to take them, or put the old ones back"
        )
    return Snapshot(source, location.label, revision, files)


def fingerprint(files: tuple[RemoteFile, ...]) -> str:
    """The revision of a source that has none: it changes with any name, size, hash or tag of a file."""
    return "files-" + hashlib.sha256("".join(sorted(file.identity for file in files)).encode()).hexdigest()[:16]


def is_pinned(scheme: str, revision: str | None) -> bool:
    """True for a revision that can only ever mean the same bytes."""
    patterns = {"hf": r"[0-9a-f]{40}", "oci": r"sha256:[0-9a-f]{64}"}
    return revision is not None and re.fullmatch(patterns.get(scheme, FINGERPRINT.pattern), revision) is not None


def read_whole(source: Source, file: RemoteFile, patience: Patience) -> bytes:
    """All bytes of a small file, whole or not at all; raises CheckpointInvalid for one that is not small."""
    if file.size > MAX_DOCUMENT_BYTES:
        raise CheckpointInvalid(f"{file.name} has {file.size} bytes; {MAX_DOCUMENT_BYTES} are the most")
    return patience.call(lambda: b"".join(source.read(file, 0, file.size)) if file.size else b"", file.name)
