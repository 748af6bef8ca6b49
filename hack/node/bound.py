"""The pinned programs as commands of the checkout, those that speak to a cluster bound to ours.

Tests call kubectl hundreds of times: this module imports no more than it needs to find a program and become it.
"""

from __future__ import annotations

import os
from pathlib import Path

from node import binaries, prerequisites, programs
from node.config import Settings
from node.shell import NodeError, guarded


def kubectl(arguments: list[str]) -> int:
    """Entry point of hack/kubectl: replaces this process by kubectl, as the cluster's administrator."""
    settings = Settings.from_environment()
    return guarded(lambda: _on_the_cluster(settings, binaries.built(settings, programs.KUBECTL), arguments))


def helm(arguments: list[str]) -> int:
    """Entry point of hack/helm. Charts can be linted and rendered without a cluster; never against another one."""
    settings = Settings.from_environment()

    def act() -> int:
        place = settings.admin_kubeconfig
        os.environ["KUBECONFIG"] = str(place if place.exists() else os.devnull)
        return become(binaries.built(settings, programs.HELM), arguments)

    return guarded(act)


def promtool(arguments: list[str]) -> int:
    """Entry point of hack/promtool: checks and tests of Prometheus rules."""
    settings = Settings.from_environment()
    return guarded(lambda: become(prerequisites.unpacked(settings, "promtool"), arguments))


def browser(arguments: list[str]) -> int:
    """Entry point of hack/browser: a Chromium without a window, installed on first use (100 MB to fetch)."""

    def act() -> int:
        prerequisites.ensure_tools({prerequisites.BROWSER: prerequisites.BROWSER})
        return become(Path(prerequisites.find(prerequisites.BROWSER)), arguments)

    return guarded(act)


def program(name: str, arguments: list[str]) -> int:
    """Entry point of hack/kstatus and hack/kubeconform: programs that speak to no cluster."""
    settings = Settings.from_environment()
    known = {item.name: item for item in programs.TESTS}
    return guarded(lambda: become(binaries.built(settings, known[name]), arguments))


def become(program: Path, arguments: list[str]) -> int:
    """Replace this process by a program; returns only by an error."""
    os.execv(program, [str(program), *arguments])  # noqa: S606 - there is no shell to want


def _on_the_cluster(settings: Settings, program: Path, arguments: list[str]) -> int:
    if not settings.admin_kubeconfig.exists():
        raise NodeError("there is no cluster yet: run hack/cluster up")
    os.environ["KUBECONFIG"] = str(settings.admin_kubeconfig)
    return become(program, arguments)
