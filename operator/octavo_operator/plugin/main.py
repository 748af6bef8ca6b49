"""The command `kubectl octavo` (a program named `kubectl-octavo` on PATH is a kubectl plugin)."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from octavo_operator import __version__, names
from octavo_operator.config import OperatorConfig
from octavo_operator.desired import Defaults
from octavo_operator.errors import OctavoError
from octavo_operator.manifests import ManagementPeers
from octavo_operator.plugin import chat, diagnosis, explanation, kubectl, live, rendering, status_view, validation
from octavo_operator.plugin.kubectl import Kubectl

Object = dict[str, Any]
_PIPED_WIDTH = 200
"""Columns of a table that goes to no terminal: `grep` wants a service's words in one line."""
OPERATOR_SELECTOR = "app.kubernetes.io/name=octavo-operator"


def build_parser() -> argparse.ArgumentParser:
    """The command line; what chooses a cluster is named as in kubectl, and allowed before or after the verb."""
    cluster = argparse.ArgumentParser(add_help=False, argument_default=argparse.SUPPRESS)
    cluster.add_argument("-n", "--namespace", help="namespace; default: the context's")
    cluster.add_argument("--context", help="kubeconfig context")
    cluster.add_argument("--kubeconfig", help="kubeconfig file")
    parser = argparse.ArgumentParser(
        prog="kubectl octavo", description="Octavo's services, for people.", parents=[cluster]
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    verbs = parser.add_subparsers(dest="verb", required=True)

    def verb(name: str, run: Callable[..., int], help: str, needs_cluster: bool = True) -> argparse.ArgumentParser:
        made = verbs.add_parser(name, help=help, parents=[cluster] if needs_cluster else [])
        made.set_defaults(run=run)
        return made

    shown = verb("status", show_status, "what each service does, or all about one")
    shown.add_argument("name", nargs="?", help="a service; default: all of the namespace")
    shown.add_argument("-A", "--all-namespaces", action="store_true", help="services of all namespaces")
    explained = verb("explain", show_explanation, "why this many replicas, and why not ready")
    explained.add_argument("name")
    logs = verb("logs", show_logs, "log lines of a service's pods, or of the operator")
    logs.add_argument("name", nargs="?", help="a service")
    logs.add_argument(
        "--operator", action="store_true", help="of the operator: those about the service, if one is named"
    )
    logs.add_argument("-f", "--follow", action="store_true", help="go on with new lines")
    logs.add_argument("-p", "--previous", action="store_true", help="of the containers before their last restart")
    logs.add_argument("--tail", type=int, default=200, help="lines of each container (default: 200, -1: all)")
    looked = verb("doctor", show_diagnosis, "what limits each replica of a service, why, and what to change")
    looked.add_argument("name")
    looked.add_argument("--seconds", type=float, default=5.0, help="how long to look, under load (default: 5)")
    watched = verb("top", show_top, "the four numbers of a service, live, and what limits each replica")
    watched.add_argument("name")
    watched.add_argument("--interval", type=float, default=2.0, help="seconds between two looks (default: 2)")
    watched.add_argument("--once", action="store_true", help="print what one interval saw, and end")
    talk = verb("chat", hold_chat, "talk with a service")
    talk.add_argument("name")
    talk.add_argument("-m", "--message", help="say this, print the answer, and end")
    talk.add_argument("--system", help="system message")
    talk.add_argument("--max-tokens", type=int, help="longest answer, in tokens")
    talk.add_argument("--temperature", type=float, help="0: the likeliest answer; default: the server's")
    talk.add_argument("--api-key", default=os.environ.get("OCTAVO_API_KEY", ""), help="default: $OCTAVO_API_KEY")
    checked = verb("validate", validate_files, "check files as the API server would, without one", needs_cluster=False)
    checked.add_argument("files", nargs="+", type=Path, help="YAML files; - reads standard input")
    shown_ahead = verb(
        "render", render_files, "what would be applied for files, without a cluster", needs_cluster=False
    )
    shown_ahead.add_argument("files", nargs="+", type=Path, help="YAML files; - reads standard input")
    shown_ahead.add_argument(
        "-n", "--namespace", default="default", help="of services that name none (default: default)"
    )
    shown_ahead.add_argument("--engine-image", default=OperatorConfig.engine_image, help="of services that name none")
    shown_ahead.add_argument("--monitoring", action="store_true", help="as where the Prometheus Operator is installed")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit status."""
    options = build_parser().parse_args(arguments)
    try:
        status: int = options.run(options)
    except OctavoError as error:
        sys.stderr.write(f"kubectl octavo: {error}\n")
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return status


def show_status(options: argparse.Namespace) -> int:
    """All services in a table, or one in full."""
    console, cluster = _console(), _cluster(options)
    if options.name:
        console.print(status_view.detail(cluster.service(options.name)))
        return 0
    services = cluster.services(options.all_namespaces)
    if services:
        console.print(status_view.overview(services, options.all_namespaces))
    else:
        console.print("no InferenceServices found; -A looks into all namespaces")
    return 0


def show_explanation(options: argparse.Namespace) -> int:
    """Why a service is as it is."""
    cluster = _cluster(options)
    service = cluster.service(options.name)
    console = _console()
    for line in explanation.explain(service, cluster.of_service("pods", service)):
        console.print(line, markup=False, highlight=False, soft_wrap=not console.is_terminal)
    return 0


def show_logs(options: argparse.Namespace) -> int:
    """kubectl's logs with the right selector."""
    cluster = _cluster(options)
    flags = ["--tail", str(options.tail), *(["--follow"] if options.follow else [])]
    if options.operator:
        pods = cluster.get("pods", "--all-namespaces", "--selector", OPERATOR_SELECTOR)["items"]
        if not pods:
            raise kubectl.KubectlError("no operator runs in this cluster")
        namespace = pods[0]["metadata"]["namespace"]
        return cluster.run(["logs", "--namespace", namespace, "--selector", OPERATOR_SELECTOR, "--prefix", *flags])
    if not options.name:
        raise kubectl.KubectlError("name a service, or ask for --operator")
    service = cluster.service(options.name)
    where = ["--namespace", service["metadata"]["namespace"], "--selector", kubectl.selector(options.name)]
    more = ["--all-containers", "--prefix", "--ignore-errors", "--max-log-requests", "64"]
    return cluster.run(["logs", *where, *more, *flags, *(["--previous"] if options.previous else [])])


def show_diagnosis(options: argparse.Namespace) -> int:
    """`octavo doctor` in each replica at the same time: its metrics are read where they are."""
    cluster = _cluster(options)
    service = cluster.service(options.name)
    replicas = diagnosis.ready(cluster.of_service("pods", service))
    if not replicas:
        raise kubectl.KubectlError(f"no replica of {options.name} is ready; explain says why")
    for name, words in diagnosis.of_each(cluster, service["metadata"]["namespace"], replicas, options.seconds):
        sys.stdout.write(f"{name}\n{words}\n")
    return 0


def show_top(options: argparse.Namespace) -> int:
    """`octavo top` over all replicas of a service."""
    service = _cluster(options).service(options.name)
    where = live.Cluster(getattr(options, "context", ""), getattr(options, "kubeconfig", ""))
    return live.show(service, where, options.interval, options.once)


def hold_chat(options: argparse.Namespace) -> int:
    """One question, or a conversation until the end of input."""
    cluster = _cluster(options)
    service = cluster.service(options.name)
    model = service.get("status", {}).get("modelName", options.name)
    messages = [{"role": "system", "content": options.system}] if options.system else []
    with chat.forwarded(cluster, service["metadata"]["namespace"], options.name) as base:
        for text in [options.message] if options.message else _typed():
            messages.append({"role": "user", "content": text})
            wishes = {"max_tokens": options.max_tokens, "temperature": options.temperature}
            given = {name: value for name, value in wishes.items() if value is not None}
            body = {"model": model, "messages": messages} | given
            messages.append({"role": "assistant", "content": _say(base, body, options.api_key)})
    return 0


def validate_files(options: argparse.Namespace) -> int:
    """Names every problem of every InferenceService in the files."""
    failed = False
    for path in options.files:
        for resource in services_in(_text(path), str(path)):
            found = validation.problems(resource)
            name = f"{path}: {names.KIND} {(resource.get('metadata') or {}).get('name', '?')}"
            sys.stdout.write("".join(f"{name}: {problem}\n" for problem in found) or f"{name}: valid\n")
            failed = failed or bool(found)
    return 1 if failed else 0


def render_files(options: argparse.Namespace) -> int:
    """Writes the children of every InferenceService in the files as YAML."""
    settings = OperatorConfig()
    defaults = Defaults(options.engine_image, ManagementPeers.of(settings), settings.cache_group_id)
    for path in options.files:
        for resource in services_in(_text(path), str(path)):
            if found := validation.problems(resource):
                raise OctavoError(f"{path}: {found[0]}; validate lists all problems")
            children = rendering.rendered(
                resource, defaults, namespace=options.namespace, monitoring=options.monitoring
            )
            for child in children:
                sys.stdout.write("---\n" + yaml.safe_dump(child, sort_keys=False, width=120))
    return 0


def services_in(text: str, where: str) -> list[Object]:
    """The InferenceServices among the documents of a file.

    Raises:
        OctavoError: it is no YAML, or holds none.
    """
    try:
        documents = [item for item in yaml.safe_load_all(text) if item]
    except yaml.YAMLError as error:
        raise OctavoError(f"{where}: is not YAML: {error}") from error
    found = [item for item in documents if isinstance(item, dict) and item.get("kind") == names.KIND]
    if not found:
        raise OctavoError(f"{where}: holds no {names.KIND}")
    return found


def _text(path: Path) -> str:
    try:
        return sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise OctavoError(f"{path}: cannot be read: {error}") from error


def _console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=_PIPED_WIDTH)


def _cluster(options: argparse.Namespace) -> Kubectl:
    chosen = [(flag, getattr(options, flag, None)) for flag in ("namespace", "context", "kubeconfig")]
    return Kubectl(tuple(f"--{flag}={value}" for flag, value in chosen if value))


def _typed() -> Iterator[str]:
    while True:
        try:
            text = input("> " if sys.stdin.isatty() else "")
        except EOFError:
            return
        if text.strip():
            yield text


def _say(base: str, body: Object, key: str) -> str:
    """Prints an answer as it comes; returns it."""
    figures, whole = chat.Figures(), ""
    for piece in chat.answer(base, body, key, figures):
        sys.stdout.write(piece)
        sys.stdout.flush()
        whole += piece
    sys.stdout.write("\n")
    sys.stderr.write(f"({figures.words()})\n")
    return whole
