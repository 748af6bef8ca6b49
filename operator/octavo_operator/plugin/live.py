"""`kubectl octavo top`: the four numbers of a service, live, by the program `octavo`, which is told here whom to ask.

Both programs come with the one distribution, and share that command line alone.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo_operator import names
from octavo_operator.errors import OctavoError

Object = dict[str, Any]


@dataclass(frozen=True)
class Cluster:
    """What chooses a cluster, as kubectl's flags do; empty: kubectl's own choice."""

    context: str = ""
    kubeconfig: str = ""


def command(service: Object, cluster: Cluster, interval: float, once: bool) -> list[str]:
    """The arguments of `octavo`. Pure."""
    head = service["metadata"]
    label = names.selector_labels(head["name"])[names.SERVICE_LABEL]
    where = [f"--service={label}", f"--namespace={head['namespace']}"]
    chosen = [f"--context={cluster.context}"] if cluster.context else []
    return ["top", *where, *chosen, f"--interval={interval:g}", *(["--once"] if once else [])]


def show(service: Object, cluster: Cluster, interval: float, once: bool) -> int:
    """Runs it in this terminal until it ends; returns its exit status.

    Raises:
        OctavoError: there is no `octavo`.
    """
    # Beside this program first: another installation's on PATH may be of another version.
    program = shutil.which("octavo", path=str(Path(sys.argv[0]).parent)) or shutil.which("octavo")
    if program is None:
        raise OctavoError("the program octavo, which comes with this one, is not on PATH")
    chosen = {"KUBECONFIG": cluster.kubeconfig} if cluster.kubeconfig else {}
    return subprocess.run(
        [program, *command(service, cluster, interval, once)], env=os.environ | chosen, check=False
    ).returncode
