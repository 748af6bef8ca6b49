"""kubectl as the way into a cluster: its JSON in, its own words when it fails."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from octavo_operator import names
from octavo_operator.errors import OctavoError

Object = dict[str, Any]
RESOURCE = f"{names.PLURAL}.{names.GROUP}"


class KubectlError(OctavoError):
    """kubectl is missing or refused; the message is kubectl's own."""


@dataclass(frozen=True)
class Kubectl:
    """One way to call kubectl.

    Attributes:
        options: what every call carries: --context, --kubeconfig, --namespace.
    """

    options: tuple[str, ...] = ()

    def command(self, *arguments: str) -> list[str]:
        """The whole command line."""
        program = shutil.which("kubectl")
        if program is None:
            raise KubectlError("kubectl is not on PATH")
        return [program, *self.options, *arguments]

    def get(self, *arguments: str) -> Object:
        """`kubectl get ... -o json`."""
        done = subprocess.run(
            self.command("get", *arguments, "-o", "json"), capture_output=True, text=True, timeout=60, check=False
        )
        if done.returncode:
            raise KubectlError(done.stderr.strip() or f"kubectl get {' '.join(arguments)} failed")
        answer: Object = json.loads(done.stdout)
        return answer

    def services(self, everywhere: bool = False) -> list[Object]:
        """All InferenceServices of the namespace, or of all of them."""
        items: list[Object] = self.get(RESOURCE, *(["--all-namespaces"] if everywhere else []))["items"]
        return items

    def service(self, name: str) -> Object:
        """One of them."""
        return self.get(RESOURCE, name)

    def of_service(self, kind: str, service: Object) -> list[Object]:
        """Objects of that kind that carry the service's label, whatever namespace kubectl is in."""
        head = service["metadata"]
        items: list[Object] = self.get(kind, "--namespace", head["namespace"], "--selector", selector(head["name"]))[
            "items"
        ]
        return items

    def run(self, arguments: Sequence[str]) -> int:
        """kubectl with the terminal's own input and output; returns its exit status."""
        return subprocess.run(self.command(*arguments), check=False).returncode


def selector(service: str) -> str:
    """The label selector of a service's pods."""
    return ",".join(f"{key}={value}" for key, value in names.selector_labels(service).items())
