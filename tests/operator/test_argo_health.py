"""Argo CD's health script on services of a real cluster (`tests/cluster/operator/test_verdicts.py` records them)."""

import copy
import json
from pathlib import Path

import pytest

from argo_health import health

RECORDED = Path(__file__).parent / "recorded_services"

EXPECTED = {
    "new": ("Progressing", "operator"),
    "waiting": ("Progressing", "Unschedulable: "),
    "ready": ("Healthy", "1 of 1 replicas serve"),
    "stalled": ("Degraded", "InvalidConfiguration: "),
    "failing": ("Degraded", "ModelNotFound: "),
    "zero": ("Healthy", "ScaledToZero: "),
    "paused": ("Suspended", "spec.paused"),
    "deleting": ("Progressing", "deleted"),
}


def service(phase):
    return json.loads((RECORDED / f"{phase}.json").read_text())


def test_every_recording_has_an_expectation():
    assert {path.stem for path in RECORDED.glob("*.json")} == set(EXPECTED)


@pytest.mark.parametrize("phase", EXPECTED)
def test_argo_cd_shows_what_octavo_says(phase):
    status, message = health(service(phase))
    assert status == EXPECTED[phase][0]
    assert EXPECTED[phase][1] in message


def test_a_change_that_was_not_seen_yet_is_under_way():
    live = service("ready")
    live["metadata"]["generation"] += 1
    assert health(live)[0] == "Progressing"


def test_trouble_of_a_rollout_counts_although_old_replicas_serve():
    live = service("stalled")
    ready = next(item for item in live["status"]["conditions"] if item["type"] == "Ready")
    assert ready["status"] == "True"
    assert health(live)[0] == "Degraded"


@pytest.mark.parametrize("cut", ["status", "conditions", "message", "spec"])
def test_what_is_not_there_breaks_nothing(cut):
    for phase in EXPECTED:
        live = copy.deepcopy(service(phase))
        if cut in ("status", "spec"):
            live.pop(cut, None)
        elif cut == "conditions":
            live.get("status", {}).pop("conditions", None)
        else:
            for item in live.get("status", {}).get("conditions", ()):
                item.pop("message", None)
        assert health(live)[0] in {"Healthy", "Progressing", "Degraded", "Suspended"}
