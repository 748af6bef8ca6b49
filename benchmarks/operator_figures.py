"""The operator measured on the embedded node: how soon it acts, what it writes, how much memory it takes.

    hack/cluster up && .venv/bin/python benchmarks/operator_figures.py [--count 100] [--json FILE]

The operator runs as a local process under its chart's own roles, with the settings the chart gives it. Calls are those
that the API server has in its audit log under the operator's account, leases aside. In brackets: LLMKube, an operator
of the same kind in Go, on the same node.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(CHECKOUT / folder) for folder in ("hack", "tests/support")]

from cluster_api import SERVICES, ClusterApi, Object, path_of  # noqa: E402
from node import addons, config  # noqa: E402
from operator_process import RELEASE, OperatorProcess  # noqa: E402

DEPLOYMENTS = ("apps/v1", "deployments")
MINUTE = 60.0
PEER = {
    "one": "0.17 s",
    "many": "3.6 s",
    "steady": "87",
    "missing": "1,247",
    "memory": "73 MB",
    "poisoned": "-",
    "none": "-",
}
WRITES = {"create", "update", "patch", "delete"}


class Bench:
    """One namespace with one operator."""

    def __init__(self, settings: config.Settings, audit_log: Path) -> None:
        self.audit_log = audit_log
        self.api = ClusterApi(settings.admin_kubeconfig)
        self.namespace = f"bench-{uuid.uuid4().hex[:8]}"
        self.api.create("/api/v1/namespaces", {"metadata": {"name": self.namespace}})
        chart = {"lease_seconds": 15, "scrape_seconds": 5, "scale_down_seconds": 300, "log_format": "json"}
        self.operator = OperatorProcess(kubectl, settings, [self.namespace], "localhost/none:1").start(**chart)
        wait(self.operator_leads, 60, "the operator's lead")

    def operator_leads(self) -> bool:
        """Whether it acts."""
        return "holding the lease" in self.operator.log()

    def close(self) -> None:
        """Takes everything away."""
        self.operator.stop()
        self.api.delete(f"/api/v1/namespaces/{self.namespace}")
        self.api.close()

    def manifest(self, name: str, **spec: Any) -> Object:
        """A service of no replica, unless `spec` says otherwise."""
        body = {"model": {"source": "file:///model"}, "replicas": 0} | spec
        head = {"name": name, "namespace": self.namespace}
        return {"apiVersion": SERVICES[0], "kind": "InferenceService", "metadata": head, "spec": body}

    def apply(self, *documents: Object) -> None:
        """`kubectl apply`, whose own time counts."""
        listed = {"apiVersion": "v1", "kind": "List", "items": list(documents)}
        kubectl("apply", "--server-side", "-f", "-", stdin=json.dumps(listed))

    def deployments(self, prefix: str) -> int:
        """How many Deployments there are."""
        names = (item["metadata"]["name"] for item in self.api.items(path_of(DEPLOYMENTS, self.namespace)))
        return sum(name.startswith(prefix) for name in names)

    def settle(self, prefix: str, count: int) -> None:
        """Until status speaks of every service, and nothing was written for a while."""
        wait(lambda: self._reported(prefix) >= count, 300, "all status")
        wait(lambda: not self.writes_within(5.0), 300, "the end of writing")

    def writes_within(self, seconds: float) -> list[str]:
        """Waits, and returns what was written meanwhile."""
        position = self.audit_log.stat().st_size
        time.sleep(seconds)
        return list(written(self.audit_log, position, self.account))

    def latency(self, name: str) -> float:
        """Seconds from an edit that asks for another Deployment to that Deployment."""
        path, value = path_of(DEPLOYMENTS, self.namespace, name), str(time.monotonic_ns())
        document = self.manifest(name, restartedAt=value)
        began = time.monotonic()
        self.api.apply(path_of(SERVICES, self.namespace, name), document, manager="kubectl")
        wait(lambda: value in json.dumps(self.api.get(path)), 60, f"the change of {name}", 0.005)
        return time.monotonic() - began

    def requests(self, position: int) -> int:
        """How often the operator asked the API server for anything since a position of the audit log."""
        return sum(1 for _ in asked(self.audit_log, position, self.account))

    @contextmanager
    def elsewhere(self) -> Iterator[None]:
        """Everything within happens in a namespace that no operator serves."""
        home, self.namespace = self.namespace, f"{self.namespace}-unserved"
        self.api.create("/api/v1/namespaces", {"metadata": {"name": self.namespace}})
        try:
            yield
        finally:
            self.api.delete(path := f"/api/v1/namespaces/{self.namespace}")
            wait(lambda: self.api.get(path) is None, 60, "the end of a namespace")  # which would be measured, too
            self.namespace = home

    @property
    def account(self) -> str:
        """Whose entries of the audit log are the operator's."""
        return f"system:serviceaccount:{self.namespace}:{RELEASE}"

    def processor(self) -> float:
        """Processor seconds that the operator has used."""
        fields = Path(f"/proc/{self.operator.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory(self) -> float:
        """Resident memory of the operator, in MiB."""
        status = Path(f"/proc/{self.operator.pid}/status").read_text()
        kilobytes = next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS"))
        return int(kilobytes) / 1024

    def _reported(self, prefix: str) -> int:
        items = self.api.items(path_of(SERVICES, self.namespace))
        mine = (item for item in items if item["metadata"]["name"].startswith(prefix))
        return sum(item.get("status", {}).get("observedGeneration") == item["metadata"]["generation"] for item in mine)


def asked(log: Path, position: int, account: str) -> Iterator[tuple[str, str]]:
    """Verb and object of an account's requests in the audit log after a position, leases aside."""
    with log.open() as stream:
        stream.seek(position)
        for line in stream:
            if account not in line:
                continue
            entry = json.loads(line)
            target = entry.get("objectRef", {})
            if entry["user"]["username"] == account and target.get("resource") not in ("leases", None):
                yield entry["verb"], f"{target['resource']}/{target.get('name', '')}"


def written(log: Path, position: int, account: str) -> Iterator[str]:
    """Those of them that change something."""
    return (f"{verb} {target}" for verb, target in asked(log, position, account) if verb in WRITES)


def kubectl(*arguments: str, stdin: str | None = None, check: bool = True, timeout: float = 120) -> str:
    """Runs the program itself: hack/kubectl is Python, and would count against the operator."""
    assert check
    settings = config.Settings.from_environment()
    return addons.kubectl(settings, *arguments, stdin=stdin.encode() if stdin else None, timeout=timeout)


def wait(condition: Callable[[], object], timeout: float, what: str, interval: float = 0.01) -> None:
    """Polls; raises TimeoutError."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not come within {timeout:.0f} s")
        time.sleep(interval)


@contextmanager
def benched(settings: config.Settings, audit_log: Path) -> Iterator[Bench]:
    bench = Bench(settings, audit_log)
    try:
        yield bench
    finally:
        bench.close()


def first_deployment(bench: Bench) -> float:
    """Median of five, with kubectl's own time."""
    times = []
    for number in range(5):
        began = time.monotonic()
        bench.apply(bench.manifest(f"one-{number}"))
        wait(lambda number=number: bench.deployments(f"one-{number}"), 60, "a Deployment", 0.005)
        times.append(time.monotonic() - began)
    return median(times)


def unserved(bench: Bench, count: int) -> float:
    """Seconds of kubectl and the API server alone: services in a namespace that no operator serves."""
    began = time.monotonic()
    with bench.elsewhere():
        bench.apply(*(bench.manifest(f"many-{number}") for number in range(count)))
        return time.monotonic() - began


def many_deployments(bench: Bench, count: int) -> dict[str, float]:
    """Services at once: seconds to their Deployments, and what it costs until all are settled."""
    position, used = bench.audit_log.stat().st_size, bench.processor()
    began = time.monotonic()
    bench.apply(*(bench.manifest(f"many-{number}") for number in range(count)))
    wait(lambda: bench.deployments("many-") == count, 300, "all Deployments", 0.02)
    seconds = time.monotonic() - began
    bench.settle("many-", count)
    requests = bench.requests(position) / count
    return {"many": seconds, "requests": requests, "processor": bench.processor() - used}


def poisoned(bench: Bench) -> tuple[float, float]:
    """Latency of others, without and with a service that cannot be served: medians of twenty changes."""
    names = [f"one-{number}" for number in range(5)] * 4
    before = median(bench.latency(name) for name in names)
    # Requests above limits pass the resource's schema, and no Deployment can be made of them: refused again and again.
    wish = {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}
    bench.apply(bench.manifest("poisoned", resources=wish))
    wait(lambda: "ApplyRefused" in json.dumps(bench.api.items(path_of(SERVICES, bench.namespace))), 60, "the refusal")
    after = median(bench.latency(name) for name in names)
    bench.api.delete(path_of(SERVICES, bench.namespace, "poisoned"))
    return before, after


def measured(settings: config.Settings, audit_log: Path, count: int) -> dict[str, Any]:
    """All figures, in the order of the issue they answer."""
    figures: dict[str, Any] = {"count": count, "load": os.getloadavg()[0]}
    with benched(settings, audit_log) as bench:
        figures["one"] = first_deployment(bench)
        figures["unserved"] = unserved(bench, count)
        figures |= many_deployments(bench, count)
        steady = bench.writes_within(MINUTE)
        figures["steady"], figures["steady_writes"] = len(steady), steady[:20]
        figures["poisoned"] = poisoned(bench)
        waiting = [
            bench.manifest(f"wait-{number}", replicas=1, model={"source": "pvc://missing/model"})
            for number in range(count)
        ]
        bench.apply(*waiting)
        bench.settle("wait-", count)
        missing = bench.writes_within(MINUTE)
        figures["missing"], figures["missing_writes"] = len(missing), missing[:20]
        figures["memory"] = bench.memory()
        figures["log"] = bench.operator.unexpected_lines()
    return figures


def report(figures: dict[str, Any]) -> str:
    """The table for people."""
    before, after = figures["poisoned"]
    count = figures["count"]
    rows = [
        ("apply to Deployment, 1 service, kubectl included", f"{figures['one']:.2f} s", PEER["one"]),
        (f"apply to {count} Deployments at zero replicas", f"{figures['many']:.1f} s", PEER["many"]),
        ("  of these, kubectl where no operator serves", f"{figures['unserved']:.1f} s", PEER["none"]),
        ("  requests of the operator for each until settled", f"{figures['requests']:.0f}", PEER["none"]),
        ("  its processor time for all", f"{figures['processor']:.1f} s", PEER["none"]),
        (f"API writes in a steady minute, {count} services", str(figures["steady"]), PEER["steady"]),
        (f"API writes in a minute, {count} services wait for a model", str(figures["missing"]), PEER["missing"]),
        ("resident memory", f"{figures['memory']:.0f} MiB", PEER["memory"]),
        ("a change of others, without / with a poisoned service", f"{before:.3f} / {after:.3f} s", PEER["poisoned"]),
    ]
    width = max(len(row[0]) for row in rows)
    table = "\n".join(f"{name:<{width}}  {ours:>16}  [{peer}]" for name, ours, peer in rows)
    busy = figures["load"] / (os.cpu_count() or 1)
    return table + (f"\nthe machine was busy ({busy:.1f} others a processor): times say little" if busy > 0.5 else "")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=100, help="services at once")
    parser.add_argument("--audit-log", type=Path, help="of the API server, where it is not the embedded node's")
    parser.add_argument("--json", type=Path, help="write all figures here")
    options = parser.parse_args()
    settings = config.Settings.from_environment()
    kubectl("apply", "--server-side", "--force-conflicts", "-f", str(CHECKOUT / "crds"))
    figures = measured(settings, options.audit_log or settings.logs / "audit.log", options.count)
    print(report(figures))
    for line in figures["log"]:
        print(f"unexpected: {line}")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
