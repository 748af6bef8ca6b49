"""A walk through random valid specs and back again: children follow from the spec alone, whatever came before."""

from __future__ import annotations

import time
from typing import Any

import pytest

import children
from cluster_api import SERVICES, Unwilling, path_of
from cluster_tools import wait_for, wait_quiet
from octavo_operator.crd import spec_schema
from random_specs import SpecWriter
from stage import Stage

NAME = "walks"
INVALID: tuple[dict[str, Any], ...] = (
    {"replicas": 65},
    {"replicas": 1, "autoscaling": {"maxReplicas": 2}},
    {"engine": {"maxModelLen": 1}},
    {"model": {"source": "pvc://models/../etc"}},
)


class Walk:
    """One service that changes and changes."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    def step(self, spec: dict[str, Any]) -> dict[str, Any]:
        """Applies a spec and waits until the operator has done what it asks for; the children then."""
        generation = self._stage.apply(NAME, **spec)["metadata"]["generation"]
        wait_for(lambda: self._done(generation, spec), f"the step to {spec}", interval=0.02)
        return self._stage.children(NAME)

    def _done(self, generation: int, spec: dict[str, Any]) -> bool:
        status = self._stage.service(NAME).get("status", {})
        conditions = {item["type"]: item for item in status.get("conditions", ())}
        assert conditions.get("Stalled", {}).get("status") != "True", conditions["Stalled"]
        return status.get("observedGeneration") == generation and (
            spec.get("paused", False) or "Reconciling" not in conditions
        )


def walk_there_and_back(stage: Stage, steps: int, seed: int) -> None:
    """Every stop of the way back has the children of the way there; a paused service keeps those it has."""
    stage.start()
    writer, walk = SpecWriter(spec_schema(), seed), Walk(stage)
    specs = [{"replicas": 0, "model": {"source": "file:///start"}}, *(writer.spec() for _ in range(steps))]
    there: list[dict[str, Any]] = []
    for spec in specs:
        there.append(walk.step(spec))
        if spec.get("paused"):
            assert children.differences(there[-2], there[-1]) == []
    assert children.orphans(stage.api, stage.namespace) == []
    before: dict[str, Any] = there[-1]
    for spec, wanted in list(zip(specs, there, strict=True))[-2::-1]:
        found = walk.step(spec)
        assert children.differences(before if spec.get("paused") else wanted, found) == [], spec
        before = found
    assert children.orphans(stage.api, stage.namespace) == []
    stays_put(stage, specs[0])
    assert stage.operator.unexpected_lines() == []


def stays_put(stage: Stage, spec: dict[str, Any]) -> None:
    """Edits that change nothing, and specs that are refused, cause no write once all that was under way is over."""
    path = path_of(SERVICES, stage.namespace, NAME)
    wait_quiet(lambda: len(stage.proxy.writes()), 2.0, "the end of what was under way")
    began = time.monotonic()
    for _ in range(3):
        stage.apply(NAME, **spec)
    stage.api.merge(path, {"metadata": {"labels": {"theirs": "stays"}, "annotations": {"theirs": "stays"}}})
    for invalid in INVALID:
        with pytest.raises(Unwilling) as refusal:
            stage.apply(NAME, **(spec | invalid))
        assert refusal.value.status == 422
    stage.apply("marker")  # what came before it has been looked at when it is done
    stage.wait_settled("marker")
    assert [call.target for call in stage.proxy.writes(began) if NAME in call.target] == []


@pytest.mark.timeout(1800)  # a hundred and twenty steps
def test_a_walk_of_random_specs_and_back_again(stage: Stage) -> None:
    walk_there_and_back(stage, steps=60, seed=20)


@pytest.mark.soak
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_long_walks(stage: Stage, seed: int) -> None:
    walk_there_and_back(stage, steps=200, seed=seed)
