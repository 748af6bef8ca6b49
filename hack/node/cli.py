"""The commands `cluster`, `images`, `model`, `s3` and `schemas`: their arguments, and what each calls."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from node import (
    addons,
    binaries,
    config,
    images,
    kind,
    lifecycle,
    model,
    pressure,
    programs,
    pruning,
    s3,
    schemas,
    space,
)
from node.bound import become
from node.config import Settings
from node.shell import NodeError, guarded
from node.steps import note, step

_PROGRAMS = {item.name: item for item in (*programs.NODE, *programs.TESTS)}


def cluster(arguments: list[str] | None = None) -> int:
    """Entry point of hack/cluster."""
    options = _cluster_parser().parse_args(arguments)
    settings = Settings.from_environment(options.kubeconfig)
    command: Callable[[Settings, argparse.Namespace], int] = options.command
    return guarded(lambda: command(settings, options))


def _cluster_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="cluster", description="A real single-node Kubernetes on this machine.")
    parser.add_argument("--kubeconfig", help="use the cluster of this kubeconfig instead (also OCTAVO_KUBECONFIG)")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    up = commands.add_parser("up", help="build what is missing, start the node or repair it")
    up.add_argument(
        "--images", action="store_true", help="build and load Octavo's images, too, while programs are built"
    )
    up.add_argument("--tests", action="store_true", help="all that the tests need: images, add-ons and programs")
    up.add_argument("--kind", action="store_true", help="a kind cluster instead, where a Docker engine runs")
    up.set_defaults(command=_up)
    addon = commands.add_parser("addon", help="bring the node up with an optional add-on, which stays")
    addon.add_argument("names", nargs="+", choices=addons.OPTIONAL, metavar="NAME", help=", ".join(addons.OPTIONAL))
    addon.set_defaults(command=_addon)
    build = commands.add_parser("build", help="only build programs, all without a name")
    build.add_argument("names", nargs="*", choices=[*_PROGRAMS, []], metavar="NAME", help=", ".join(_PROGRAMS))
    build.set_defaults(command=_build)
    for name, command, text in (
        ("down", _down, "remove the node, or the kind cluster; the cache of programs and images stays"),
        ("status", _status, "show each component and its health"),
        ("pressure", _pressure, "say whether the node ran out of disk within the last hour"),
    ):
        commands.add_parser(name, help=text).set_defaults(command=command)
    prune = commands.add_parser("prune", help="remove from the disk what of ours nothing needs any more")
    prune.add_argument(
        "--all", action="store_true", help="also what takes minutes to have again; first `down`, and end benchmarks"
    )
    prune.set_defaults(command=_prune)
    stop = commands.add_parser("stop", help="end one component, to try a failure; `up` starts it again")
    stop.add_argument("component")
    stop.set_defaults(command=_stop)
    gpus = commands.add_parser("gpus", help="make the node claim COUNT nvidia.com/gpu, for scheduling without a GPU")
    gpus.add_argument("count", type=int)
    gpus.set_defaults(command=_gpus)
    return parser


def _up(settings: Settings, options: argparse.Namespace) -> int:
    if options.kind:
        settings = replace(settings, kubeconfig=kind.up(settings))
        note(f"export OCTAVO_KUBECONFIG={settings.kubeconfig}")
    wanted = list(images.IMAGES.values()) if options.images or options.tests else []
    if settings.kubeconfig is None:
        _bring_up(settings, wanted, tests=options.tests)
    else:
        _check_foreign(settings)
        wanted = wanted if kind.meant(settings) else []
    for image in wanted:
        images.load(settings, image)
    return 0


def _bring_up(settings: Settings, wanted: Sequence[images.Image], *, tests: bool) -> None:
    started = time.monotonic()
    # Images are mostly network and disk, programs the processors' work.
    with ThreadPoolExecutor(1) as pool:
        building = pool.submit(images.build_missing, settings, wanted)
        lifecycle.up(settings, addons.OPTIONAL if tests else (), programs.TESTS if tests else ())
        building.result()
    note(f"the node is up after {time.monotonic() - started:.1f}s")
    note(f"API {config.API_URL}  Prometheus {config.PROMETHEUS_URL}  kubeconfig {settings.admin_kubeconfig}")


def _addon(settings: Settings, options: argparse.Namespace) -> int:
    _refuse_foreign(settings, "addon")
    lifecycle.up(settings, options.names)
    return 0


def _build(settings: Settings, options: argparse.Namespace) -> int:
    binaries.ensure(settings, [_PROGRAMS[name] for name in options.names or _PROGRAMS])
    return 0


def _check_foreign(settings: Settings) -> int:
    with step(f"check the cluster of {settings.kubeconfig}"):
        binaries.ensure(settings, [programs.KUBECTL])
        addons.kubectl(settings, "version")
        addons.kubectl(settings, "wait", "--for=condition=Ready", "nodes", "--all", "--timeout=30s")
    return 0


def _down(settings: Settings, _: argparse.Namespace) -> int:
    if kind.meant(settings):
        kind.down(settings)
        return 0
    _refuse_foreign(settings, "down")
    _tell_pressure(settings)
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
        _tell_pressure(settings)
    return 0 if well else 1


def _tell_pressure(settings: Settings) -> None:
    said = pressure.sentence(settings)
    if said:
        note(said)


def _pressure(settings: Settings, _: argparse.Namespace) -> int:
    _refuse_foreign(settings, "pressure")
    print(pressure.sentence(settings) or "the node has had room on its disk")
    return 0


def _prune(settings: Settings, options: argparse.Namespace) -> int:
    _refuse_foreign(settings, "prune")
    if options.all and settings.state.exists():
        raise NodeError("prune --all takes the node's images, too: run hack/cluster down first")
    wanted = pruning.remedies(settings, images.wanted_now())
    for remedy in [*wanted, *(pruning.costly(settings) if options.all else [])]:
        space.apply(settings.cache, remedy)
    note(f"{space.gigabytes(space.free_at(settings.cache))} are free at {settings.cache}")
    return 0


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


def image_commands(arguments: list[str] | None = None) -> int:
    """Entry point of hack/images: prints one reference for each image."""
    parser = argparse.ArgumentParser(prog="images", description="Octavo's images, named by their content.")
    commands = {"build": images.build, "load": images.load, "ref": images.current}
    parser.add_argument(
        "command", choices=commands, help="build; load into the node (builds too); ref: print the reference"
    )
    parser.add_argument("image", nargs="*", choices=[*images.IMAGES, []], help="engine, operator; both without")
    parser.add_argument("--variant", default="", help="the same image under another tag: one to upgrade to")
    options = parser.parse_args(arguments)
    settings = Settings.from_environment()

    def act() -> int:
        for name in options.image or images.IMAGES:
            image = replace(images.IMAGES[name], variant=options.variant)
            print(commands[options.command](settings, image))
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


def s3_command(arguments: list[str] | None = None) -> int:
    """Entry point of hack/s3: serves until it is interrupted; the first line printed is the endpoint."""
    parser = argparse.ArgumentParser(
        prog="s3", description="An S3 server over a folder; each folder in it is a bucket."
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--address", default=s3.ADDRESS, help="HOST:PORT to listen on (default %(default)s)")
    options = parser.parse_args(arguments)
    settings = Settings.from_environment()

    def act() -> int:
        server = binaries.built(settings, programs.S3)
        note(f"access key {s3.ACCESS_KEY}, secret key {s3.SECRET_KEY}")
        print(f"http://{options.address}", flush=True)
        return become(server, s3.arguments(options.folder, options.address))

    return guarded(act)


def schemas_command(arguments: list[str] | None = None) -> int:
    """Entry point of hack/schemas: prints where kubeconform finds them."""
    parser = argparse.ArgumentParser(prog="schemas", description="The API server's OpenAPI as schemas for kubeconform.")
    parser.add_argument("folder", type=Path)
    options = parser.parse_args(arguments)
    settings = Settings.from_environment()

    def act() -> int:
        binaries.ensure(settings, [programs.KUBECTL])
        note(f"{schemas.export(settings, options.folder)} schemas")
        print(options.folder.resolve() / schemas.LOCATION)
        return 0

    return guarded(act)
