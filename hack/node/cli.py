"""The commands: `cluster`, and `kubectl` and `helm` bound to its cluster."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from node import addons, binaries, config, images, lifecycle, model, prerequisites
from node.config import Settings
from node.shell import NodeError
from node.steps import note, step


def cluster(arguments: list[str] | None = None) -> int:
    """Entry point of hack/cluster."""
    options = _cluster_parser().parse_args(arguments)
    settings = Settings.from_environment(options.kubeconfig)
    command: Callable[[Settings, argparse.Namespace], int] = options.command
    return guarded(lambda: command(settings, options))


def kubectl(arguments: list[str]) -> int:
    """Entry point of hack/kubectl: replaces this process by kubectl, as the cluster's administrator."""
    settings = Settings.from_environment()
    return guarded(lambda: _become(settings, binaries.kubernetes(settings) / "kubectl", arguments))


def helm(arguments: list[str]) -> int:
    """Entry point of hack/helm. Charts can be linted and rendered without a cluster; never against another one."""
    settings = Settings.from_environment()

    def act() -> int:
        place = settings.admin_kubeconfig
        os.environ["KUBECONFIG"] = str(place if place.exists() else os.devnull)
        return _exec(binaries.installed(settings, config.HELM_MODULE), arguments)

    return guarded(act)


def promtool(arguments: list[str]) -> int:
    """Entry point of hack/promtool: checks and tests of Prometheus rules."""
    settings = Settings.from_environment()
    return guarded(lambda: _exec(prerequisites.unpacked(settings, "promtool"), arguments))


def guarded(command: Callable[[], int]) -> int:
    """Run a command; what a person has to act on is printed as one message, without a traceback."""
    try:
        return command()
    except NodeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; run hack/cluster up again to go on, or hack/cluster down", file=sys.stderr)
        return 130


def _cluster_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="cluster", description="A real single-node Kubernetes on this machine.")
    parser.add_argument("--kubeconfig", help="use the cluster of this kubeconfig instead (also OCTAVO_KUBECONFIG)")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, command, text in (
        ("up", _up, "build what is missing, start the node or repair it"),
        ("down", _down, "remove the node; the cache of programs and images stays"),
        ("status", _status, "show each component and its health"),
    ):
        commands.add_parser(name, help=text).set_defaults(command=command)
    stop = commands.add_parser("stop", help="end one component, to try a failure; `up` starts it again")
    stop.add_argument("component")
    stop.set_defaults(command=_stop)
    gpus = commands.add_parser("gpus", help="make the node claim COUNT nvidia.com/gpu, for scheduling without a GPU")
    gpus.add_argument("count", type=int)
    gpus.set_defaults(command=_gpus)
    return parser


def _up(settings: Settings, _: argparse.Namespace) -> int:
    if settings.kubeconfig is not None:
        return _check_foreign(settings)
    started = time.monotonic()
    lifecycle.up(settings)
    note(f"the node is up after {time.monotonic() - started:.1f}s")
    note(f"API {config.API_URL}  Prometheus {config.PROMETHEUS_URL}  kubeconfig {settings.admin_kubeconfig}")
    return 0


def _check_foreign(settings: Settings) -> int:
    with step(f"check the cluster of {settings.kubeconfig}"):
        binaries.kubernetes(settings)
        addons.kubectl(settings, "version")
        addons.kubectl(settings, "wait", "--for=condition=Ready", "nodes", "--all", "--timeout=30s")
    return 0


def _down(settings: Settings, _: argparse.Namespace) -> int:
    _refuse_foreign(settings, "down")
    lifecycle.down(settings)
    note(f"kept: {settings.cache} (programs, images, downloads)")
    return 0


def _status(settings: Settings, _: argparse.Namespace) -> int:
    if settings.kubeconfig is not None:
        return _check_foreign(settings)
    found = lifecycle.status(settings)
    if not found:
        raise NodeError("there is no node; hack/cluster up makes one")
    for item in found:
        print(f"{item.name:<24} {item.state:<10} {item.pid or '-':<8} {item.health}")
    well = all(item.state == "running" for item in found)
    if well:
        print(addons.kubectl(settings, "get", "nodes", "-o", "wide").rstrip())
    return 0 if well else 1


def _stop(settings: Settings, options: argparse.Namespace) -> int:
    _refuse_foreign(settings, "stop")
    names = [item.name for item in lifecycle.status(settings)]
    if options.component not in names:
        raise NodeError(f"no component {options.component}; there are {', '.join(names)}")
    lifecycle.stop(settings, options.component)
    return 0


def _gpus(settings: Settings, options: argparse.Namespace) -> int:
    _refuse_foreign(settings, "gpus")
    claim = {"nvidia.com/gpu": str(options.count)}
    # The kubelet would derive the second from the first, but only with its next report.
    patch = json.dumps({"status": {"capacity": claim, "allocatable": claim}})
    addons.kubectl(
        settings, "patch", "node", config.NODE_NAME, "--subresource=status", "--type=merge", "--patch", patch
    )
    return 0


def _refuse_foreign(settings: Settings, command: str) -> None:
    if settings.kubeconfig is not None:
        raise NodeError(f"{command} is for the embedded node only; {settings.kubeconfig} names another cluster")


def _become(settings: Settings, program: Path, arguments: list[str]) -> int:
    if not settings.admin_kubeconfig.exists():
        raise NodeError("there is no cluster yet: run hack/cluster up")
    os.environ["KUBECONFIG"] = str(settings.admin_kubeconfig)
    return _exec(program, arguments)


def _exec(program: Path, arguments: list[str]) -> int:
    os.execv(program, [str(program), *arguments])  # noqa: S606 - there is no shell to want


def image_commands(arguments: list[str] | None = None) -> int:
    """Entry point of hack/images: prints one reference for each image."""
    parser = argparse.ArgumentParser(prog="images", description="Octavo's images, named by their content.")
    commands = {"build": images.build, "load": images.load, "ref": images.current}
    parser.add_argument(
        "command", choices=commands, help="build; load into the node (builds too); ref: print the reference"
    )
    parser.add_argument("image", nargs="*", choices=[*images.IMAGES, []], help="engine, operator; both without")
    options = parser.parse_args(arguments)
    settings = Settings.from_environment()

    def act() -> int:
        for name in options.image or images.IMAGES:
            print(commands[options.command](settings, images.IMAGES[name]))
        return 0

    return guarded(act)


def model_command(arguments: list[str] | None = None) -> int:
    """Entry point of hack/model: prints the model's source for an InferenceService."""
    parser = argparse.ArgumentParser(prog="model", description="SmolLM2-135M-Instruct on a local volume of the node.")
    parser.add_argument("--namespace", "-n", help="make the claim here; without, only fetch and print the file's path")
    options = parser.parse_args(arguments)
    settings = Settings.from_environment()

    def act() -> int:
        namespace = options.namespace
        print(model.publish(settings, namespace) if namespace else model.ensure_file(settings))
        return 0

    return guarded(act)
