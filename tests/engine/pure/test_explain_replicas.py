"""`octavo top --service`: replicas found and reached through a kubectl, and what they say together."""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from octavo_engine import cli
from octavo_engine.batch import SchedulerStats
from octavo_engine.explain.replicas import ClusterUnreachable, Replicas, ready_pods
from octavo_engine.explain.together import load_of_all
from octavo_engine.explain.top import top
from octavo_engine.metrics import Metrics
from octavo_engine.request import WaitReason
from patience import PATIENCE_SECONDS

KUBECTL = """#!/bin/sh
echo "$*" >> {folder}/calls
case "$*" in
*"get pods"*) cat {folder}/pods.json;;
*port-forward*pod/refused*) echo "error: pod is gone" >&2; exit 1;;
*port-forward*)
    all="$*"; pod="${{all#*pod/}}"
    echo "Forwarding from 127.0.0.1:$(cat {folder}/${{pod%% *}}) -> 8001"
    exec sleep 60;;
esac
"""


class Engine:
    """A replica: real metrics and a load, on a port of its own."""

    def __init__(self, running: int, waiting: int) -> None:
        self.registry = CollectorRegistry()
        stats = SchedulerStats(running=running, waiting={WaitReason.BATCH_FULL: waiting}, used_blocks=1, free_blocks=1)
        self.metrics = Metrics(self.registry, model_name="m", stats=lambda: stats)
        self.load = {
            "model_name": "m", "state": "serving", "waiting": {"batch_full": waiting}, "running": running,
            "max_num_seqs": 4, "oldest_wait_seconds": float(waiting), "estimated_queue_seconds": 0.0,
            "kv_cache_usage_ratio": 0.5,
        }  # fmt: skip

    @contextmanager
    def served(self) -> Iterator[int]:
        engine = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                engine.metrics._generated.add(10)  # ten tokens from look to look
                self.send_response(200)
                self.end_headers()
                known = {"/metrics": generate_latest(engine.registry), "/load": json.dumps(engine.load).encode()}
                self.wfile.write(known[self.path])

            def log_message(self, *_: object) -> None: ...

        with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
            thread = threading.Thread(target=server.serve_forever, daemon=True)
            thread.start()
            yield server.server_address[1]
            server.shutdown()
            thread.join(PATIENCE_SECONDS)


def pod(name: str, ready: str = "True", **head: str) -> dict[str, Any]:
    return {"metadata": {"name": name, **head}, "status": {"conditions": [{"type": "Ready", "status": ready}]}}


class Cluster:
    """A kubectl that knows some pods, and where they are."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        program = folder / "kubectl"
        program.write_text(KUBECTL.format(folder=folder))
        program.chmod(0o755)
        self.has()

    def has(self, *pods: dict[str, Any], **ports: int) -> None:
        (self.folder / "pods.json").write_text(json.dumps({"items": list(pods)}))
        for name, port in ports.items():
            (self.folder / name).write_text(str(port))

    @property
    def calls(self) -> list[str]:
        return (self.folder / "calls").read_text().splitlines()


LONG = "assistant-58b877b65c-pqp27"  # as pods are called


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return Cluster(tmp_path)


def test_replicas_are_shown_together_and_what_limits_each(cluster: Cluster) -> None:
    out = StringIO()
    with Engine(4, 3).served() as first, Engine(1, 0).served() as second:
        cluster.has(pod("a1"), pod(LONG), pod("c3", ready="False"), **{"a1": first, LONG: second})
        where = ["--service=assistant", "--namespace=team", "--context=here"]
        assert top([*where, "--once", "--interval=0.1"], out, {}, rest=lambda seconds: None) == 0
    page = out.getvalue()
    assert page.startswith("m: serving\n")
    assert "3 waiting (3 batch_full), 5 of 8 running; the oldest for 3.00 s" in page
    assert "a1 limited by         queue: 3 requests wait for batch_full" in page
    assert re.search(rf"^{LONG} limited by \w+: ", page, re.MULTILINE)
    assert "c3" not in page
    options = "--namespace=team --context=here"
    assert f"{options} get pods --selector=octavo.dev/service=assistant --output=json" in cluster.calls
    assert f"{options} port-forward pod/a1 :8001" in cluster.calls


def test_pods_that_come_are_reached_and_those_that_go_are_let_go(cluster: Cluster) -> None:
    cluster.has(pod("a1"), a1=1)
    with Replicas("assistant", ()) as replicas:
        assert set(replicas.refresh()) == {"a1"}
        cluster.has(pod("b2"), pod("a1", deletionTimestamp="now"), b2=2)
        assert {name: port.url for name, port in replicas.refresh().items()} == {"b2": "http://127.0.0.1:2"}
        assert set(replicas.refresh()) == {"b2"}
        cluster.has()
        with pytest.raises(ClusterUnreachable, match="no replica of assistant is ready"):
            replicas.refresh()
    assert sum("port-forward" in call for call in cluster.calls) == 2


def test_what_kubectl_refuses_is_told_in_its_words(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    cluster.has(pod("refused"))
    assert cli.main(["top", "--service=assistant", "--once"]) == 3
    assert capsys.readouterr().err == "octavo top: error: pod is gone\n"


def test_a_place_without_a_service_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["top", "--namespace=team"]) == 2
    assert "--service" in capsys.readouterr().err


def test_without_kubectl_it_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PATH", "")
    assert cli.main(["top", "--service=assistant"]) == 3
    assert "kubectl is not on PATH" in capsys.readouterr().err


def test_only_those_that_serve_are_asked() -> None:
    going = pod("going", deletionTimestamp="now")
    starting: dict[str, Any] = {"metadata": {"name": "starting"}}
    assert ready_pods([pod("b"), going, starting, pod("a"), pod("sick", ready="False")]) == ["a", "b"]


def test_loads_add_up_and_the_longest_wait_counts() -> None:
    both = load_of_all([Engine(4, 3).load, Engine(1, 0).load | {"state": "draining"}])
    assert (both["running"], both["max_num_seqs"], both["oldest_wait_seconds"]) == (5, 8, 3.0)
    assert both["waiting"] == {"batch_full": 3}
    assert both["kv_cache_usage_ratio"] == 0.5
    assert both["state"] == "draining, serving"
