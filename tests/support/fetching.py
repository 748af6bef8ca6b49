"""`octavo fetch` inside a test: quick retries, small pieces, and what the directory holds afterwards."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from octavo_engine.fetch import command, directory, retry, transfer
from octavo_engine.fetch.directory import STATE
from octavo_engine.fetch.settings import FetchConfig
from patience import PATIENCE_SECONDS

SPAN, RECORD = 64 * 1024, 16 * 1024
# A process of its own with the same small pieces, to which a test may be silent for long; what comes after are the
# arguments of `octavo`.
PROGRAM = f"""\
import sys
from functools import partial
from octavo_engine.fetch import http
http.READ_SECONDS = {PATIENCE_SECONDS}
from octavo_engine.cli import main
from octavo_engine.fetch import command
command.Pace = partial(command.Pace, span_bytes={SPAN}, record_bytes={RECORD})
sys.exit(main(sys.argv[1:]))
"""


def hurry(monkeypatch: pytest.MonkeyPatch, *, span: int = SPAN, record: int = RECORD) -> None:
    """Retries wait next to nothing, and small files have many pieces."""
    monkeypatch.setattr(retry, "FIRST_WAIT", 0.01)
    monkeypatch.setattr(retry, "LONGEST_WAIT", 0.05)
    monkeypatch.setattr(directory, "LOCK_SECONDS", 0.01)
    monkeypatch.setattr(command, "Pace", partial(transfer.Pace, span_bytes=span, record_bytes=record))


def fetch(source: str, destination: Path, **settings: Any) -> directory.Manifest:
    """Run it here."""
    given: dict[str, Any] = {"source": source, "destination": str(destination), "patience_seconds": PATIENCE_SECONDS}
    return command.fetch(FetchConfig(**given | settings))


def start(source: str, destination: Path, *flags: str) -> subprocess.Popen[str]:
    """Run it in a process of its own."""
    arguments = ["fetch", source, str(destination), *flags]
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def held(destination: Path) -> dict[str, bytes]:
    """The files of a directory, without what is known about them."""
    files = {str(entry.relative_to(destination)): entry for entry in destination.rglob("*") if entry.is_file()}
    return {name: entry.read_bytes() for name, entry in files.items() if STATE not in entry.parts}


def leftovers(destination: Path) -> list[str]:
    """What is still on its way."""
    return sorted(entry.name for entry in (destination / ".octavo").iterdir() if entry.suffix in (".part", ".journal"))


def manifest(destination: Path) -> dict[str, Any]:
    """The record that is written last."""
    document: dict[str, Any] = json.loads((destination / ".octavo/manifest.json").read_text())
    return document
