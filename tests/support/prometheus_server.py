"""A real Prometheus of a test's own: a process over jobs and rules that the test gives, and questions to one anywhere.

It lives on this machine and reaches the node's pods by their addresses. Its clock can be a fast one: rules whose
minutes are seconds (`hastened`) tell in seconds what they would in minutes, and are made from the very rules that users
have.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from cluster_tools import wait_for
from free_ports import free_port
from node import binaries, config, programs
from patience import PATIENCE_SECONDS

Document = dict[str, Any]

_MINUTES = re.compile(r"(?<=[\[:\s])(\d+)([mh])(?=[\]:)\s]|$)")
DOCUMENT = config.CHECKOUT / "docs" / "GRAFANA.md"


@dataclass(frozen=True)
class Prometheus:
    """One that answers at `url`."""

    url: str

    def query(self, promql: str) -> list[Document]:
        """The samples of an instant query. Fails with Prometheus' words where it refuses it."""
        found: list[Document] = self.ask("query", query=promql)["result"]
        return found

    def value(self, promql: str) -> float | None:
        """The value of a query that gives one sample; None where it gives none."""
        found = self.query(promql)
        assert len(found) <= 1, f"{promql} gives {len(found)} series"
        return float(found[0]["value"][1]) if found else None

    def alerts(self) -> dict[tuple[str, str], str]:
        """What is pending or firing: the state by the alert's name and its service, the worst of several."""
        found: dict[tuple[str, str], str] = {}
        for alert in self.ask("alerts")["alerts"]:
            key = alert["labels"]["alertname"], alert["labels"].get("inferenceservice", "")
            found[key] = "firing" if "firing" in (alert["state"], found.get(key)) else "pending"
        return found

    def rules(self) -> dict[str, list[Document]]:
        """Every rule that is loaded, by its group."""
        return {group["name"]: group["rules"] for group in self.ask("rules")["groups"]}

    def targets(self) -> dict[str, list[Document]]:
        """What is scraped, by the name of its job."""
        found: dict[str, list[Document]] = {}
        for target in self.ask("targets", state="active")["activeTargets"]:
            found.setdefault(target["scrapePool"], []).append(target)
        return found

    def ready(self) -> bool:
        """Whether it answers queries."""
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=PATIENCE_SECONDS):
                return True
        except OSError:
            return False

    def ask(self, path: str, **parameters: str) -> Document:
        """The data of an answer of its API."""
        address = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(address, timeout=PATIENCE_SECONDS) as answer:
                data: Document = json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{parameters}: {error.read().decode(errors='replace')}") from error
        return data


@contextmanager
def prometheus(
    settings: config.Settings, jobs: Sequence[Document], groups: Sequence[Document] = (), seconds: int = 1
) -> Iterator[Prometheus]:
    """One over these scrape jobs and groups of rules, which looks every so many seconds; it ends with the body."""
    with tempfile.TemporaryDirectory(prefix="octavo-prometheus-") as name:
        folder, address = Path(name), f"127.0.0.1:{free_port()}"
        every = {
            "scrape_interval": f"{seconds}s",
            "scrape_timeout": f"{seconds}s",
            "evaluation_interval": f"{seconds}s",
        }
        (folder / "rules.json").write_text(json.dumps({"groups": list(groups)}))
        document = {"global": every, "rule_files": [str(folder / "rules.json")], "scrape_configs": list(jobs)}
        (folder / "prometheus.json").write_text(json.dumps(document))
        flags = {"config.file": folder / "prometheus.json", "storage.tsdb.path": folder, "web.listen-address": address}
        command = [
            binaries.built(settings, programs.PROMETHEUS),
            *(f"--{flag}={value}" for flag, value in flags.items()),
        ]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen([str(part) for part in command], stdout=log, stderr=log)
        try:
            server = Prometheus(f"http://{address}")
            _await_start(process, server, folder / "log")
            yield server
        finally:
            process.kill()
            process.wait(PATIENCE_SECONDS)


def _await_start(process: subprocess.Popen[bytes], server: Prometheus, log: Path) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not server.ready():
        assert process.poll() is None, log.read_text(errors="replace")[-2000:]
        assert time.monotonic() < deadline, f"not ready: {log.read_text(errors='replace')[-2000:]}"
        time.sleep(0.1)


def wait_state(server: Prometheus, alert: str, service: str, state: str | None) -> None:
    """Polls until an alert about a service is in a state; None: it is neither pending nor firing."""
    wait_for(
        lambda: server.alerts().get((alert, service)) == state,
        f"{alert} of {service} {state or 'resolved'}; now: {server.alerts()}",
    )


def hastened(groups: Sequence[Document], minute: int = 1) -> list[Document]:
    """The groups with a minute that lasts so many seconds: every range, offset and `for`."""
    return [group | {"rules": [_hastened_rule(rule, minute) for rule in group["rules"]]} for group in groups]


def _hastened_rule(rule: Document, minute: int) -> Document:
    parts = {part: hastened_text(rule[part], minute) for part in ("expr", "for") if part in rule}
    return rule | parts


def hastened_text(text: str, minute: int) -> str:
    """A query or a duration in which minutes and hours last so much less."""

    def shorter(found: re.Match[str]) -> str:
        minutes = int(found[1]) * (60 if found[2] == "h" else 1)
        return f"{minutes * minute}s"

    return _MINUTES.sub(shorter, f" {text}").removeprefix(" ")


def static_job(name: str, address: str, **labels: str) -> Document:
    """One target whose labels are those that a pod's would be given."""
    return {"job_name": name, "static_configs": [{"targets": [address], "labels": labels}]}


def documented_jobs(settings: config.Settings, namespaces: Collection[str], *names: str) -> list[Document]:
    """Scrape jobs as docs/GRAFANA.md gives them, word for word; only who asks, and in which namespaces, is added."""
    found: dict[str, Document] = {}
    for block in re.findall(r"```yaml\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL):
        document = yaml.safe_load(block)
        if isinstance(document, Mapping) and "scrape_configs" in document:
            found |= {job["job_name"]: job for job in document["scrape_configs"]}
    access = {
        "kubeconfig_file": str(settings.kubeconfigs / "prometheus.json"),
        "namespaces": {"names": list(namespaces)},
    }
    return [
        found[name] | {"kubernetes_sd_configs": [item | access for item in found[name]["kubernetes_sd_configs"]]}
        for name in names
    ]
