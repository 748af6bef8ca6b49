"""The demo's steps in order. Each prints what it does and how long it took; what is read goes to standard output."""

from __future__ import annotations

import asyncio
import time

from demo import chat, install, watch
from demo.install import NAMESPACE, SERVICE
from node import cli
from node.config import PROMETHEUS_URL, Settings
from node.shell import NodeError
from node.steps import note, step

QUESTION = "What is the capital of France?"


def tell() -> int:
    """Bring everything up, ask, measure, load, scale."""
    began = time.monotonic()
    settings = Settings.from_environment()
    if settings.kubeconfig is not None:
        raise NodeError("the demo loads the machine it runs on and uses the embedded node; unset OCTAVO_KUBECONFIG")
    cli.cluster(["up", "--images"])
    install.everything(settings)
    with step("the model is loaded and ready"):
        install.wait_ready(settings)
    note(install.table(settings))
    client = chat.Client(install.address(settings))
    chapter(f"A streamed answer, through the official OpenAI client: {QUESTION}")
    answer = chat.stream(client, QUESTION)
    if "Paris" not in answer:
        raise NodeError(f"the model should have named Paris; it said: {answer}")
    chapter("A burst of load: the queue grows, a second pod starts, one pooled client reaches both")
    outcome = asyncio.run(chat.burst(client, until=lambda: watch.both_serve(settings)))
    note(outcome.summary)
    if outcome.failed or not watch.both_serve(settings):
        raise NodeError("the second pod did not take its share in time; see kubectl describe osvc")
    chapter("Why it scaled, from the resource's own status")
    note(watch.decisions(settings))
    note(install.table(settings))
    chapter("The four metrics, as Prometheus has them")
    note(watch.four_metrics())
    chapter(f"The whole demo took {time.monotonic() - began:.0f} s. How to explore")
    note(EXPLORE)
    return 0


def remove() -> int:
    """Take the node down, with everything in it; programs and images stay cached."""
    return cli.cluster(["down"])


def chapter(title: str) -> None:
    """A headline between steps."""
    note(f"\n== {title}")


EXPLORE = f"""\
  hack/kubectl -n {NAMESPACE} get osvc,pods          what runs
  hack/kubectl -n {NAMESPACE} describe osvc {SERVICE}  conditions, decisions
  hack/kubectl explain osvc.spec.engine              every field
  hack/kubectl -n {NAMESPACE} logs deploy/{SERVICE}    the engine's log
  {PROMETHEUS_URL}                        Prometheus, reachable from this machine
  dashboards/                                        import into Grafana
  make demo-down                                     remove it all"""
