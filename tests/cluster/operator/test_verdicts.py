"""One verdict through a service's life: kstatus' library, Argo CD's script and Octavo's own conditions.

With OCTAVO_RECORD set, the objects at rest become the fixtures of `tests/operator/test_argo_health.py`.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from argo_health import health
from cluster_tools import Kubectl, wait_for
from node import binaries, config, programs
from operator_process import OperatorProcess, Services
from patience import PATIENCE_SECONDS

MakeOperator = Callable[..., OperatorProcess]
Object = dict[str, Any]
RECORDED = config.CHECKOUT / "tests" / "operator" / "recorded_services"

REST = {
    # phase: kstatus, Argo CD
    "new": ("InProgress", "Progressing"),
    "waiting": ("InProgress", "Progressing"),
    "ready": ("Current", "Healthy"),
    "stalled": ("Failed", "Degraded"),
    "failing": ("Failed", "Degraded"),
    "zero": ("Current", "Healthy"),
    "paused": ("Current", "Suspended"),
    "deleting": ("Terminating", "Progressing"),
}
SAME = {
    ("Current", "Healthy"),
    ("Current", "Suspended"),
    ("InProgress", "Progressing"),
    ("InProgress", "Suspended"),
    ("Failed", "Degraded"),
    ("Failed", "Suspended"),
    ("Terminating", "Progressing"),
}


def kstatus(live: Object) -> str:
    """The verdict of the kstatus library."""
    program = binaries.built(config.Settings.from_environment(), programs.KSTATUS)
    done = subprocess.run(
        [program], input=json.dumps(live), capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=True
    )
    return str(json.loads(done.stdout)["status"])


def conditions(live: Object) -> dict[str, Object]:
    return {item["type"]: item for item in live.get("status", {}).get("conditions", ())}


@contextmanager
def watched(namespace: str, name: str) -> Iterator[Callable[[], list[Object]]]:
    """Every version of a service from now on."""
    with tempfile.TemporaryFile("w+") as output:
        command = [str(config.HACK / "kubectl"), "get", "osvc", name, "-n", namespace, "--watch", "-o", "json"]
        with subprocess.Popen(command, stdout=output, stderr=subprocess.DEVNULL) as process:

            def versions() -> list[Object]:
                output.seek(0)
                return list(_documents(output.read()))

            try:
                yield versions
            finally:
                process.terminate()


def _documents(text: str) -> Iterator[Object]:
    decoder, position = json.JSONDecoder(), 0
    while position < len(text):
        try:
            document, end = decoder.raw_decode(text, position)
        except ValueError:
            return  # the last one is still being written
        yield document
        position = end
        while position < len(text) and text[position].isspace():
            position += 1


class Life:
    """One service, led through its phases; what it is at rest in each."""

    def __init__(self, services: Services, name: str) -> None:
        self.services, self.name = services, name
        self.rest: dict[str, Object] = {}

    def reaches(self, phase: str, there: Callable[[Object], bool], **spec: Any) -> None:
        """Applies a spec and waits; the operator must have seen it."""
        if spec:
            self.services.apply(self.name, **spec)

        def arrived() -> Object | None:
            live = self.services.get("osvc", self.name)
            seen = live and live["status"].get("observedGeneration") == live["metadata"]["generation"]
            return live if live and seen and there(live) else None

        self.rest[phase] = wait_for(arrived, f"the phase {phase}")


def quiet(live: Object) -> bool:
    return not {"Reconciling", "Stalled"} & set(conditions(live))


def stalled(reason: str) -> Callable[[Object], bool]:
    return lambda live: conditions(live).get("Stalled", {}).get("reason") == reason


def ready(reason: str) -> Callable[[Object], bool]:
    return lambda live: quiet(live) and conditions(live)["Ready"]["reason"] == reason


def test_kstatus_argo_cd_and_octavo_agree_through_a_life(
    kubectl: Kubectl, namespace: str, make_operator: MakeOperator
) -> None:
    services = Services(kubectl, namespace)
    operator = make_operator(namespace)
    life = Life(services, "life")
    services.apply("life", template={"nodeSelector": {"no": "where"}})
    life.rest["new"] = services.get("osvc", "life") or {}
    with watched(namespace, "life") as versions:
        operator.start()
        life.reaches("waiting", lambda live: conditions(live)["Ready"]["reason"] == "Unschedulable")
        life.reaches("ready", ready("Serving"), replicas=1)
        kubectl("wait", "--for=condition=Ready", "osvc/life", "-n", namespace, "--timeout=240s")
        life.reaches("rolled", ready("Serving"), replicas=1, engine={"maxNumSeqs": 7})
        life.reaches("stalled", stalled("InvalidConfiguration"), replicas=1, engine={"maxNumSeqs": 666})
        life.reaches("zero", ready("ScaledToZero"), replicas=0)
        life.reaches("paused", quiet, replicas=0, paused=True)
        services.apply("broken", model={"source": "file:///missing"})
        broken = Life(services, "broken")
        broken.reaches("failing", stalled("ModelNotFound"))
        life.rest |= broken.rest
        life.rest["deleting"] = held_while_deleted(kubectl, services, "life")
        wait_for(lambda: any("deletionTimestamp" in live["metadata"] for live in versions()), "the last version")
        seen = versions()
    for phase, expected in REST.items():
        live = life.rest[phase]
        assert (kstatus(live), health(live)[0]) == expected, (phase, live.get("status"))
    agree_in_every_version(seen)
    times_move_with_the_status_alone(seen)
    record(life.rest)
    assert operator.unexpected_lines() == []


def held_while_deleted(kubectl: Kubectl, services: Services, name: str) -> Object:
    """A deleted service that a finalizer of somebody else holds; then it is let go."""
    where = (f"osvc/{name}", "-n", services.namespace)
    kubectl("patch", *where, "--type=merge", "-p", '{"metadata":{"finalizers":["example.com/hold"]}}')
    kubectl("delete", *where, "--wait=false")
    live = services.get("osvc", name)
    assert live is not None
    kubectl("patch", *where, "--type=merge", "-p", '{"metadata":{"finalizers":null}}')
    wait_for(lambda: services.get("osvc", name) is None, "the end of the service")
    return live


def agree_in_every_version(seen: list[Object]) -> None:
    """Also in those that last a moment: no tool calls a service done that another calls under way."""
    assert len(seen) > 8
    for live in seen:
        verdicts = kstatus(live), health(live)[0]
        assert verdicts in SAME, live
        found = conditions(live)
        assert not {"Reconciling", "Stalled"} <= set(found), live
        if verdicts[0] == "Current":
            status = live["status"]
            assert status["readyReplicas"] == status["desiredReplicas"] or live["spec"].get("paused"), live
            assert status["observedGeneration"] == live["metadata"]["generation"], live


def times_move_with_the_status_alone(seen: list[Object]) -> None:
    """No flapping of lastTransitionTime, and no version that differs from the one before in nothing."""
    for before, after in itertools.pairwise(live for live in seen if "deletionTimestamp" not in live["metadata"]):
        for kind, item in conditions(after).items():
            old = conditions(before).get(kind)
            if old and old["status"] == item["status"]:
                assert old["lastTransitionTime"] == item["lastTransitionTime"], (kind, before, after)
        parts = [(live["metadata"].get("generation"), live.get("status")) for live in (before, after)]
        ends = [set(live["metadata"]) for live in (before, after)]
        assert parts[0] != parts[1] or ends[0] != ends[1], after


def record(rest: dict[str, Object]) -> None:
    if not os.environ.get("OCTAVO_RECORD"):
        return
    RECORDED.mkdir(exist_ok=True)
    for phase in REST:
        live = rest[phase]
        live["metadata"].pop("managedFields", None)
        live["metadata"] |= {"namespace": "team", "uid": f"uid-of-{phase}"}
        (RECORDED / f"{phase}.json").write_text(json.dumps(live, indent=1, sort_keys=True) + "\n")
