"""The operator as something to be operated: its metrics, its lines, its Events, its memory, and a poisoned service."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from cluster_api import path_of
from cluster_tools import wait_for
from fault_rules import Answer, Rule
from stage import Stage

DEPLOYMENT = ("apps/v1", "deployments")
EVENTS_AN_HOUR = 30
MANY = 15
ROUNDS = 5
SERIES = (
    r'reconciles_total\{result="ok"\}',
    r'reconciles_total\{result="error"\}',
    r'reconcile_errors_total\{kind="Retryable"\}',
    r"reconcile_seconds_sum",
    r"queue_depth",
    r"queue_wait_seconds_count",
    r'api_requests_total\{code="200",resource="deployments",verb="GET"\}',
    r'api_requests_total\{code="500",resource="services",verb="PATCH"\}',
    r'api_requests_total\{code="201",resource="events",verb="POST"\}',
    r"watch_starts_total",
    r"missed_events_total",
    r"leading",
)


def lines(stage: Stage) -> list[dict[str, Any]]:
    """Everything logged; each line must be a JSON object."""
    return [json.loads(line) for line in stage.operator.log().splitlines()]


def missing(text: str) -> list[str]:
    """The series that a page of metrics has not."""
    return [series for series in SERIES if not re.search(rf"^octavo_operator_{series} ", text, re.MULTILINE)]


def test_metrics_lines_and_events_tell_what_happens_and_no_more(stage: Stage) -> None:
    # Nor does a busy machine make it believe that its watches are dead, as where it is to find that soon.
    stage.start(log_format="json", log_level="debug", heartbeat_seconds=60)
    began = time.monotonic()
    with stage.proxy.failing(Rule(Answer(500), verbs=["patch"], resources=["services"], times=2)):
        stage.apply("told")
        stage.wait_settled("told")
    deployment = path_of(DEPLOYMENT, stage.namespace, "told")
    edits = 40
    for number in range(edits):  # somebody and the operator disagree
        stage.api.merge(deployment, {"spec": {"progressDeadlineSeconds": 3000 + number}})
    wait_for(lambda: stage.api.get(deployment)["spec"]["progressDeadlineSeconds"] < 3000, "the repair")  # type: ignore[index]
    stage.wait_settled("told")

    # What is told of a look is told once it is over.
    wait_for(lambda: not missing(stage.operator.metrics()), f"series; none of {missing(stage.operator.metrics())}")
    assert re.search(r"^octavo_operator_watch_starts_total 1.0$", stage.operator.metrics(), re.MULTILINE)

    logged = lines(stage)
    about = [line for line in logged if line.get("service") == "told"]
    assert len({line["reconcile"] for line in about}) > 1
    assert {"ok", "error"} <= {line.get("result") for line in about}
    assert all(line["seconds"] < time.monotonic() - began for line in about if "seconds" in line)
    # One line for each repair at most, one for each look, and those of the failures.
    assert len(about) < 4 * edits
    token = json.loads(Path(stage.operator.kubeconfig).read_text())["users"][0]["user"]["token"]
    assert token not in stage.operator.log()
    assert not [line for line in logged if line["level"] in ("error", "critical")]

    events = stage.api.items(f"/api/v1/namespaces/{stage.namespace}/events")
    ours = [event for event in events if event["involvedObject"]["name"] == "told"]
    assert 0 < len(ours) <= EVENTS_AN_HOUR
    annotations = stage.api.get(deployment)["metadata"]["annotations"]  # type: ignore[index]
    assert len(json.dumps(annotations)) < 64 * 1024


def latency(stage: Stage, name: str, value: int) -> float:
    """Seconds from a change to its Deployment."""
    began = time.monotonic()
    stage.apply(name, engine={"maxNumSeqs": value})
    flag = f"--max-num-seqs={value}"
    wait_for(lambda: flag in json.dumps(stage.child(DEPLOYMENT, name)), f"the change of {name}", interval=0.01)
    return time.monotonic() - began


def test_a_poisoned_service_delays_no_other(stage: Stage) -> None:
    """Calls about it fail or hang; the others' changes take no longer than before, but for what the machine does.

    What the machine does may differ between the two: then both are measured again.
    """
    stage.start()
    names = [f"sound-{number}" for number in range(MANY)]
    for name in names:
        stage.apply(name)
    stage.wait_settled(*names)
    taken = []
    for round_ in range(1, ROUNDS + 1):
        before = median(latency(stage, name, 10 * round_) for name in names)
        with stage.proxy.failing(Rule(Answer(500), about="poisoned")) as (rule,):
            began = time.monotonic()
            for number in range(5):
                stage.apply(f"poisoned-{number}", engine={"maxNumSeqs": round_})
            wait_for(lambda rule=rule: rule.hits > 10, "failing calls")
            after = median(latency(stage, name, 10 * round_ + 1) for name in names)
            assert rule.hits < 300 + 10 * (time.monotonic() - began), "its retries are bounded"
        taken.append((before, after))
        if after < 2 * before + 0.5:
            break
    else:
        pytest.fail(f"seconds that a change takes, without and with a poisoned service: {taken}")
    assert stage.operator.unexpected_lines() == []


def memory(stage: Stage) -> float:
    """Resident memory of the operator, in MiB."""
    status = Path(f"/proc/{stage.operator.pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS"))) / 1024


def churn(stage: Stage, rounds: int, count: int) -> list[float]:
    """Services that come and go; the memory after each round."""
    after = []
    for _ in range(rounds):
        names = [f"churn-{number}" for number in range(count)]
        for name in names:
            stage.apply(name)
        stage.wait_settled(*names)
        for name in names:
            stage.delete(name)
        wait_for(lambda: not stage.api.items(path_of(DEPLOYMENT, stage.namespace)), "the end of the children")
        after.append(memory(stage))
    return after


def test_memory_stays_flat_and_small(stage: Stage) -> None:
    stage.start()
    after = churn(stage, rounds=3, count=12)
    assert after[-1] < 150
    assert after[-1] < 1.1 * after[1], f"resident memory, in MiB: {after}"


@pytest.mark.soak
def test_memory_stays_flat_for_long(stage: Stage) -> None:
    stage.start()
    after = churn(stage, rounds=60, count=50)
    assert after[-1] < 150
    assert after[-1] < 1.1 * after[5], f"resident memory, in MiB: {after}"
