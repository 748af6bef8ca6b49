"""Alerts and recorded series, by Prometheus' own promtool: each fires for its trouble alone, and all are silent else.

A story is a healthy service, and what differs from it. Whatever fires in the end is compared as a whole, so that each
story is also a test of silence for every other alert.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from boards.__main__ import FOLDER, RULES
from node import prerequisites
from node.config import CHECKOUT, Settings
from octavo_engine.metrics import FIRST_TOKEN_SECONDS, TOKEN_SECONDS
from octavo_operator.manifests.alerts import FIRST_TOKEN_BOUNDS, INTER_TOKEN_BOUNDS
from patience import PATIENCE_SECONDS

pytestmark = pytest.mark.contract

MINUTES = 60
SERVICE = 'namespace="team",inferenceservice="assistant"'
POD = f'{SERVICE},pod="assistant-1",model_name="assistant"'
OPERATOR = f'{SERVICE},pod="octavo-1"'
RUNBOOKS = CHECKOUT / "docs" / "runbooks"
Series = dict[str, str]


def steady(value: float) -> str:
    return f"{value:g}x{MINUTES}"


def rising(per_minute: float) -> str:
    return f"0+{per_minute:g}x{MINUTES}"


def histogram(name: str, bound: str, in_time: float, all_of_them: float, where: str = POD) -> Series:
    """A histogram's series as far as alerts ask for them: observations a minute."""
    return {
        f'{name}_bucket{{{where},le="{bound}"}}': rising(in_time),
        f'{name}_bucket{{{where},le="+Inf"}}': rising(all_of_them),
        f"{name}_count{{{where}}}": rising(all_of_them),
    }


def first_tokens(in_time: float, all_of_them: float) -> Series:
    return histogram("octavo_time_to_first_token_seconds", "5.0", in_time, all_of_them)


def tokens(in_time: float, all_of_them: float) -> Series:
    return histogram("octavo_inter_token_latency_seconds", "0.2", in_time, all_of_them)


def waiting(reason: str, values: str) -> Series:
    return {f'octavo_requests_waiting{{{POD},reason="{reason}"}}': values}


def rejected(reason: str, per_minute: float) -> Series:
    return {f'octavo_requests_rejected_total{{{POD},reason="{reason}"}}': rising(per_minute)}


def replicas(desired: str, ready: str) -> Series:
    name = "octavo_operator_service_replicas"
    return {f'{name}{{{OPERATOR},state="{state}"}}': values for state, values in
            (("desired", desired), ("present", desired), ("ready", ready))}  # fmt: skip


def condition(kind: str, status: str, reason: str, values: str = steady(1)) -> Series:
    words = f'type="{kind}",status="{status}",reason="{reason}"'
    return {f"octavo_operator_service_condition{{{OPERATOR},{words}}}": values}


def looks(result: str, per_minute: float) -> Series:
    return {f'octavo_operator_reconciles_total{{pod="octavo-1",result="{result}"}}': rising(per_minute)}


OPERATORS = {
    'octavo_operator_leading{pod="octavo-1"}': steady(1),
    'octavo_operator_leading{pod="octavo-2"}': steady(0),
    **looks("ok", 10),
    'octavo_operator_queue_wait_seconds_bucket{pod="octavo-1",le="0.1"}': rising(10),
    'octavo_operator_queue_wait_seconds_bucket{pod="octavo-1",le="30"}': rising(10),
    'octavo_operator_queue_wait_seconds_bucket{pod="octavo-1",le="+Inf"}': rising(10),
}
LOADED: Series = {
    **OPERATORS,
    **first_tokens(30, 30),
    **tokens(3000, 3000),
    **waiting("new", steady(1)),
    **waiting("kv_full", steady(0)),
    **rejected("queue_full", 0),
    **rejected("invalid", 0),
    **replicas(steady(1), steady(1)),
    **condition("Ready", "True", "Serving"),
    **condition("MetricsAvailable", "True", "AllReplicasReport"),
    **condition("ScalingLimited", "False", "NotLimited"),
    f"octavo_operator_service_restarts{{{OPERATOR}}}": steady(1),
    f"octavo_requests_running{{{POD}}}": steady(8),
    f'octavo_requests_total{{{POD},finish_reason="stop"}}': rising(30),
    f'octavo_step_seconds_count{{{POD},kind="decode"}}': rising(1200),
    f"octavo_kv_cache_usage_ratio{{{POD}}}": steady(0.5),
    f'octavo_prompt_tokens_total{{{POD},source="computed"}}': rising(30_000),
    f'octavo_prompt_tokens_total{{{POD},source="recomputed"}}': rising(0),
    f'octavo_preemptions_total{{{POD},reason="kv_full"}}': rising(0),
    f'octavo_server_state{{{POD},state="serving"}}': steady(1),
    f'octavo_server_state{{{POD},state="starting"}}': steady(0),
}
IDLE = (
    {
        name: steady(0) if "octavo_operator" not in name and ("_requests_" in name or "usage" in name) else values
        for name, values in LOADED.items()
    }
    | {name: steady(1000) for name in LOADED if name.split("{")[0].endswith(("_total", "_count", "_bucket"))}
    | OPERATORS
)
SCALED_TO_ZERO = {
    **OPERATORS,
    **replicas(steady(0), steady(0)),
    **condition("Ready", "True", "ScaledToZero"),
    **condition("MetricsAvailable", "Unknown", "NoReadyReplicas"),
    f"octavo_operator_service_restarts{{{OPERATOR}}}": steady(0),
}


@dataclass(frozen=True)
class Story:
    """What differs from the healthy service, and which alerts there are at the end, as `NAME SEVERITY`.

    Attributes:
        without: series whose name begins so are not there.
        minute: when it is asked what fires.
    """

    fires: tuple[str, ...] = ()
    differs: Series = field(default_factory=dict)
    base: Series = field(default_factory=lambda: LOADED)
    without: tuple[str, ...] = ()
    minute: int = 40

    def series(self) -> list[dict[str, str]]:
        found = {name: values for name, values in self.base.items() if not name.startswith(self.without or ("-",))}
        return [{"series": name, "values": values} for name, values in (found | self.differs).items()]


BURST = f"0x10 40x3 30 20 10 0x{MINUTES}"
STORIES = {
    # -- silence
    "a loaded service": Story(),
    "no load": Story(base=IDLE),
    "no replica, none wanted": Story(base=SCALED_TO_ZERO),
    "no service at all": Story(base=OPERATORS),
    "a few late tokens in a thousand": Story((), first_tokens(29.9, 30) | tokens(2990, 3000)),
    "one late of a handful": Story((), first_tokens(0, 0.5)),
    "late an hour ago, in time now": Story(
        (), {"octavo_time_to_first_token_seconds_bucket{" + POD + ',le="5.0"}': f"0+10x10 100+30x{MINUTES}"}, minute=58
    ),
    "a burst that drains": Story((), waiting("token_budget", BURST), minute=20),
    "a long queue that does not grow": Story((), waiting("batch_full", steady(30))),
    "a nearly full cache that nobody waits for": Story((), {f"octavo_kv_cache_usage_ratio{{{POD}}}": steady(0.98)}),
    "a preemption now and then": Story(
        (),
        {
            f'octavo_preemptions_total{{{POD},reason="kv_full"}}': rising(2),
            f'octavo_prompt_tokens_total{{{POD},source="recomputed"}}': rising(3000),
        },
    ),
    "requests that are not valid": Story((), rejected("invalid", 30)),
    "a start of five minutes": Story(
        (),
        replicas(steady(1), f"0x5 1x{MINUTES}")
        | {f'octavo_server_state{{{POD},state="starting"}}': f"1x5 0x{MINUTES}"},
        minute=12,
    ),
    "a step that is limited for the moment": Story((), condition("ScalingLimited", "True", "StepLimit")),
    "one restart": Story((), {f"octavo_operator_service_restarts{{{OPERATOR}}}": f"0x20 1x{MINUTES}"}),
    "a replaced pod that had restarted often": Story(
        (), {f"octavo_operator_service_restarts{{{OPERATOR}}}": f"9x20 0x{MINUTES}"}
    ),
    "a change of the acting operator": Story(
        (),
        {
            'octavo_operator_leading{pod="octavo-1"}': "1x20 _x60",
            'octavo_operator_leading{pod="octavo-2"}': f"0x22 1x{MINUTES}",
        },
    ),
    "one refused write": Story((), looks("error", 0.1)),
    # -- trouble
    "a third of the first tokens is late": Story(
        ("OctavoFirstTokenLate critical", "OctavoFirstTokenLate warning"), first_tokens(20, 30)
    ),
    "a tenth of the first tokens is late": Story(("OctavoFirstTokenLate warning",), first_tokens(27, 30)),
    "a third of the tokens is slow": Story(
        ("OctavoTokensSlow critical", "OctavoTokensSlow warning"), tokens(2000, 3000)
    ),
    "a tenth of the tokens is slow": Story(("OctavoTokensSlow warning",), tokens(2700, 3000)),
    "a queue that grows": Story(("OctavoQueueGrowing warning",), waiting("batch_full", rising(2))),
    "a full queue": Story(("OctavoRequestsRejected warning",), rejected("queue_full", 5)),
    "a full queue by tokens": Story(("OctavoRequestsRejected warning",), rejected("queue_tokens_full", 5)),
    "an engine that computes nothing": Story(
        ("OctavoEngineStuck critical",),
        {f'octavo_step_seconds_count{{{POD},kind="decode"}}': f"0+1200x20 24000x{MINUTES}"},
    ),
    "an engine that never began": Story(
        ("OctavoEngineStuck critical",), {f'octavo_step_seconds_count{{{POD},kind="decode"}}': steady(0)}
    ),
    "requests that wait for memory": Story(
        ("OctavoKvCacheFull warning",),
        waiting("kv_full", steady(3)) | {f"octavo_kv_cache_usage_ratio{{{POD}}}": steady(0.97)},
    ),
    "work that is done twice": Story(
        ("OctavoPreemptionStorm warning",),
        {
            f'octavo_preemptions_total{{{POD},reason="kv_full"}}': rising(20),
            f'octavo_prompt_tokens_total{{{POD},source="recomputed"}}': rising(15_000),
        },
    ),
    "no replica, one wanted": Story(
        ("OctavoNoReadyReplica critical",),
        replicas(steady(1), steady(0)) | condition("MetricsAvailable", "Unknown", "NoReadyReplicas"),
        without=("octavo_operator_service_condition{" + OPERATOR + ',type="MetricsAvailable"', "octavo_server_state"),
    ),
    "a start that does not end": Story(
        ("OctavoSlowStart warning",),
        {f'octavo_server_state{{{POD},state="warming"}}': steady(1)},
    ),
    "an engine that crashes again and again": Story(
        ("OctavoRestartLoop critical",),
        {f"octavo_operator_service_restarts{{{OPERATOR}}}": f"0x20 1 1 2 2 3 3 4x{MINUTES}"},
    ),
    "more replicas than there may be": Story(
        ("OctavoScalingLimited warning",), condition("ScalingLimited", "True", "MaxReplicas")
    ),
    "replicas that Prometheus does not scrape": Story(
        ("OctavoMetricsMissing warning",),
        base={name: values for name, values in LOADED.items() if name.startswith("octavo_operator")},
    ),
    "one of two replicas that is not scraped": Story(("OctavoMetricsMissing warning",), replicas(steady(2), steady(2))),
    "replicas that do not tell the operator their load": Story(
        ("OctavoMetricsMissing warning",),
        condition("MetricsAvailable", "False", "NoData"),
    ),
    "no operator": Story(
        ("OctavoOperatorMissing warning",),
        {'octavo_operator_leading{pod="octavo-1"}': f"1x10 _x{MINUTES}"},
    ),
    "operators of which none leads": Story(
        ("OctavoOperatorMissing warning",), {'octavo_operator_leading{pod="octavo-1"}': steady(0)}
    ),
    "writes that are refused": Story(("OctavoReconcilesFail warning",), looks("error", 5)),
    "a fault of the operator": Story(("OctavoOperatorBug warning",), looks("bug", 0.2)),
    "an operator that is behind": Story(
        ("OctavoOperatorBehind warning",),
        {'octavo_operator_queue_wait_seconds_bucket{pod="octavo-1",le="0.1"}': rising(0)},
    ),
}


@pytest.fixture(scope="module")
def promtool() -> Path:
    return prerequisites.unpacked(Settings.from_environment(), "promtool")


def run(promtool: Path, *arguments: str | Path) -> str:
    """What promtool says; fails with its words."""
    done = subprocess.run([promtool, *arguments], capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def unit_test(folder: Path, series: list[dict[str, str]], *expected: dict[str, Any]) -> Path:
    """A test file of promtool's, with one test."""
    path = folder / "test.yaml"
    story = {"interval": "1m", "input_series": series, "promql_expr_test": list(expected)}
    document = {"rule_files": [str(FOLDER / RULES)], "evaluation_interval": "1m", "tests": [story]}
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return path


def firing(alert: str) -> dict[str, Any]:
    """A sample of `FIRING`."""
    name, severity = alert.split()
    whose = "" if name.startswith(("OctavoOperator", "OctavoReconciles")) else f",{SERVICE}"
    return {"labels": f'{{alertname="{name}",severity="{severity}"{whose}}}', "value": 1}


FIRING = 'count by (alertname, severity, namespace, inferenceservice) (ALERTS{alertstate="firing"})'


@pytest.mark.parametrize("name", STORIES)
def test_what_fires_is_what_is_wrong(name: str, promtool: Path, tmp_path: Path) -> None:
    story = STORIES[name]
    wanted = {"expr": FIRING, "eval_time": f"{story.minute}m", "exp_samples": [firing(each) for each in story.fires]}
    run(promtool, "test", "rules", unit_test(tmp_path, story.series(), wanted))


def test_recorded_series_say_what_happened(promtool: Path, tmp_path: Path) -> None:
    lookups = {
        f'octavo_prefix_cache_tokens_total{{{POD},result="hit"}}': rising(600),
        f'octavo_prefix_cache_tokens_total{{{POD},result="miss"}}': rising(600),
        f"octavo_generation_tokens_total{{{POD}}}": rising(6000),
    }
    values = {
        "octavo_generation_tokens_total:rate5m": 100,
        "octavo_prefix_cache_tokens_total:hit_ratio5m": 0.5,
        "octavo_requests_running:sum": 8,
        "octavo_kv_cache_usage_ratio:max": 0.5,
        "octavo_requests_total:rate5m": 0.5,
        "octavo_time_to_first_token_seconds:p99_5m": 4.95,
    }
    expected = [
        {
            "expr": f"inferenceservice:{name}",
            "eval_time": "30m",
            "exp_samples": [{"labels": f"inferenceservice:{name}{{{SERVICE}}}", "value": value}],
        }
        for name, value in values.items()
    ]
    run(promtool, "test", "rules", unit_test(tmp_path, Story((), lookups).series(), *expected))


def test_promtool_finds_nothing_to_blame(promtool: Path) -> None:
    assert "SUCCESS" in run(promtool, "check", "rules", FOLDER / RULES)


def alerts() -> list[dict[str, Any]]:
    groups = yaml.safe_load((FOLDER / RULES).read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"] if "alert" in rule]


def test_every_alert_has_a_story_in_which_it_fires() -> None:
    told = {alert for story in STORIES.values() for alert in story.fires}
    assert told == {f"{alert['alert']} {alert['labels']['severity']}" for alert in alerts()}


def test_every_alert_says_what_to_do() -> None:
    for alert in alerts():
        told = alert["annotations"]
        assert told["summary"]
        assert told["description"].endswith(".")
        assert (CHECKOUT / told["runbook"]).is_file(), told["runbook"]


def test_every_runbook_is_an_alert_s_and_has_its_parts() -> None:
    pages = {path.stem: path.read_text(encoding="utf-8") for path in RUNBOOKS.glob("Octavo*.md")}
    assert pages.keys() == {alert["alert"] for alert in alerts()}
    for name, text in pages.items():
        assert text.startswith(f"# {name}\n"), name
        headings = [line.removeprefix("## ") for line in text.splitlines() if line.startswith("## ")]
        assert headings == ["What it means", "Look at", "Likely causes", "Do one thing"], name
    index = (RUNBOOKS / "README.md").read_text(encoding="utf-8")
    assert [name for name in pages if f"]({name}.md)" not in index] == []


def test_objectives_count_in_the_buckets_that_the_engine_has() -> None:
    assert FIRST_TOKEN_BOUNDS == FIRST_TOKEN_SECONDS
    assert INTER_TOKEN_BOUNDS == TOKEN_SECONDS
