"""What a daemon of the node is: how it runs, the files it reads, how to see that it is well."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

Document = Mapping[str, object]


@dataclass(frozen=True)
class Component:
    """One daemon.

    `health` is a URL that answers 200, or `unix:` and a socket that accepts; `files` are written, `folders` made and
    `prepare` run to its end before a start.
    """

    name: str
    argv: tuple[str, ...]
    health: str
    files: Mapping[Path, str] = field(default_factory=dict)
    folders: tuple[Path, ...] = ()
    prepare: tuple[str, ...] = ()

    def fingerprint(self, surroundings: str) -> str:
        """Changes with anything that calls for a restart: arguments, files, or the `surroundings` it was started in."""
        content = [*self.argv, *(f"{path}={text}" for path, text in sorted(self.files.items())), surroundings]
        return hashlib.sha256("\0".join(content).encode()).hexdigest()


def command(program: Path, flags: Mapping[str, object]) -> tuple[str, ...]:
    """`--name=value` for each flag; None stands for a flag without a value."""
    return (str(program), *(f"--{name}" if value is None else f"--{name}={value}" for name, value in flags.items()))


def text(document: Document) -> str:
    """JSON, which every one of these programs takes for YAML."""
    return json.dumps(document, indent=2) + "\n"
