"""`kubectl octavo doctor`: the engine's own diagnosis, asked in each replica through kubectl, in its words."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from octavo_operator import names
from octavo_operator.plugin.kubectl import Kubectl

Object = dict[str, Any]
_MORE_SECONDS = 60.0  # than it looks: kubectl, and a Python that starts on a busy replica
_SIDE_BY_SIDE = 16


def ready(pods: Iterable[Object]) -> list[str]:
    """Names of the replicas that serve and are not on their way out."""
    return sorted(
        pod["metadata"]["name"]
        for pod in pods
        if "deletionTimestamp" not in pod["metadata"]
        and any(
            (item["type"], item["status"]) == ("Ready", "True") for item in pod.get("status", {}).get("conditions", ())
        )
    )


def of_each(cluster: Kubectl, namespace: str, pods: Sequence[str], seconds: float) -> Iterator[tuple[str, str]]:
    """What each says of itself, or kubectl's words where it could not be asked."""
    with ThreadPoolExecutor(_SIDE_BY_SIDE) as pool:
        yield from zip(pods, pool.map(partial(_ask, cluster, namespace, seconds), pods), strict=True)


def _ask(cluster: Kubectl, namespace: str, seconds: float, pod: str) -> str:
    inside = ("--container", names.CONTAINER, "--", "octavo", "doctor", f"--seconds={seconds:g}")
    command = cluster.command("exec", "--namespace", namespace, pod, *inside)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + _MORE_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return "gave no answer"
    return (done.stdout if done.returncode == 0 else done.stderr).rstrip()
