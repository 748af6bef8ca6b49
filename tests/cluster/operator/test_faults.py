"""Calls and watches that fail, one kind at a time: bounded retries, no hot loop, and in the end children = f(spec)."""

from __future__ import annotations

import time
from typing import Any

import pytest

from cluster_api import SERVICES
from cluster_tools import wait_for
from fault_rules import Answer, Delay, Fault, Garbage, HalfBody, Reset, Rule, Silence, Stream
from fault_watch import STREAMS
from stage import Stage

HITS = 3
HOT = 25
"""Looks at one service, in the seconds of one test, that no sane retrying needs."""

FAULTS: dict[str, Fault] = {
    "a403": Answer(403),
    "a409": Answer(409),
    "a410": Answer(410),
    "a422": Answer(422),
    "a429": Answer(429, retry_after=1),
    "a500": Answer(500),
    "a503": Answer(503, retry_after=1),
    "garbage": Garbage(),
    "reset": Reset(),
    "lost": Reset(done=True),
    "half": HalfBody(),
    "late": Delay(3.0),  # the operator gives up after two seconds; the write is done all the same
}
CALLS: dict[str, dict[str, Any]] = {
    "read": {"verbs": ["get"], "resources": ["inferenceservices"]},
    "look": {"verbs": ["get", "list"], "resources": ["deployments", "pods", "services", "configmaps", "jobs"]},
    "write": {"verbs": ["patch"], "resources": ["deployments"]},
    "tell": {"verbs": ["patch"], "resources": ["inferenceservices/status"]},
}
Case = tuple[str, str]
ALL: list[Case] = [(fault, call) for fault in FAULTS for call in CALLS]
SOME = [case for number, case in enumerate(ALL) if (number // len(CALLS) + number) % 2]
"""Half of all: each fault meets two kinds of calls, and each kind of call half of the faults."""

# What the process may say loudly about watches that break: kopf's own words, which its restart follows.
WATCH_WORDS = (
    r"kopf",
    r"Traceback",
    r"Request attempt #\d",
)


def name_of(fault: str, call: str) -> str:
    return f"svc-{fault}-{call}-end"


@pytest.fixture
def started(stage: Stage) -> Stage:
    stage.start()
    stage.apply("twin")
    stage.wait_settled("twin")
    return stage


def rules(cases: list[Case]) -> list[Rule]:
    return [Rule(FAULTS[fault], **CALLS[call], about=name_of(fault, call), times=HITS) for fault, call in cases]


def occasions(cases: list[Case]) -> list[Rule]:
    """A look asks only when something tells that what is known is behind: here a write that is refused."""
    asking = [name_of(fault, call) for fault, call in cases if call in ("read", "look")]
    return [Rule(Answer(409), verbs=["patch"], resources=["networkpolicies"], about=name, times=1) for name in asking]


def check_all(stage: Stage, cases: list[Case], wanted: dict[str, Any], made: list[Rule], since: float) -> None:
    """Every service is as if its calls had not failed, every fault was met, and nobody called in a frenzy."""
    names = [name_of(*case) for case in cases]
    stage.wait_settled(*names)
    stage.wait_all_like(names, wanted)
    assert [name_of(*case) for case, rule in zip(cases, made, strict=True) if rule.hits == 0] == []
    looks = [call.name for call in stage.proxy.calls(since) if (call.verb, call.resource) == ("get", SERVICES[1])]
    for case in cases:
        assert looks.count(name_of(*case)) < HOT, case


def fail_all_at_once(stage: Stage, cases: list[Case]) -> None:
    """Each service with a fault of its own: that the others are served is part of it."""
    for spec in ({}, {"allowFrom": [{"podSelector": {}}], "replicas": 0, "engine": {"maxNumSeqs": 3}}):
        stage.apply("twin", **spec)
        stage.wait_settled("twin")
        made, since = rules(cases), time.monotonic()
        with stage.proxy.failing(*made, *occasions(cases)):
            for case in cases:
                stage.apply(name_of(*case), **spec)
            check_all(stage, cases, stage.children("twin"), made, since)
    assert stage.operator.unexpected_lines() == []


def test_calls_that_fail_in_each_way(started: Stage) -> None:
    fail_all_at_once(started, SOME)


@pytest.mark.soak
def test_calls_of_each_kind_that_fail_in_each_way(started: Stage) -> None:
    fail_all_at_once(started, ALL)


def test_a_refusal_that_lasts_is_told_and_ends_without_a_restart(started: Stage) -> None:
    stage = started
    with stage.proxy.failing(
        Rule(Answer(403), verbs=["patch"], resources=["deployments"], about="forbidden-one"),
        Rule(Answer(422), verbs=["patch"], resources=["services"], about="refused-one"),
        Rule(Silence(), verbs=["patch"], resources=["inferenceservices/status"], about="silent-one"),
    ):
        for name in ("forbidden-one", "refused-one", "silent-one", "fine"):
            stage.apply(name)
        stage.wait_settled("fine")
        for name, reason in (("forbidden-one", "OperatorForbidden"), ("refused-one", "ApplyRefused")):
            wait_for(lambda n=name, r=reason: stage.condition(n, "Stalled").get("reason") == r, reason)
        assert "conditions" not in stage.service("silent-one").get("status", {})
        since = time.monotonic()
        stage.apply("forbidden-one", allowFrom=[{"podSelector": {}}])
        wait_for(lambda: stage.proxy.calls(since), "another try")
    for name in ("forbidden-one", "refused-one", "silent-one"):
        stage.apply(name, allowFrom=[{"podSelector": {}}])  # an event brings the next try forward
        stage.wait_settled(name)
    stage.apply("fine", allowFrom=[{"podSelector": {}}])
    stage.wait_settled("fine")
    for name in ("forbidden-one", "refused-one", "silent-one"):
        stage.wait_like(name, stage.children("fine"))
    assert stage.operator.unexpected_lines() == []


REACTION_SECONDS = 60.0
"""With a heartbeat of two seconds: what is found by it and what is not found at all are far apart, however busy."""


def reacts(stage: Stage, number: int) -> None:
    """A change of a service, and the loss of a child, are answered."""
    stage.apply("watched", engine={"maxNumSeqs": number})
    stage.api.delete(f"/api/v1/namespaces/{stage.namespace}/services/watched")

    def answered() -> bool:
        deployment = stage.child(("apps/v1", "deployments"), "watched")
        arguments = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
        return f"--max-num-seqs={number}" in arguments and bool(stage.child(("v1", "services"), "watched"))

    wait_for(answered, "the reaction", within=REACTION_SECONDS, interval=0.05)


LISTS = {
    f"list-{name}": Rule(FAULTS[name], verbs=["list", "watch"]) for name in ("a403", "a429", "a500", "garbage", "half")
}
QUIET = {how: Rule(Stream(how)) for how in STREAMS if how not in ("garbage", "failed")}
ENDING = {
    "garbage": Rule(Stream("garbage")),
    "failed": Rule(Stream("failed")),
    "refused": Rule(Answer(410), verbs=["watch"]),
}
"""After these watching begins anew, with pauses that double."""
STUBBORN = {
    "garbled": Rule(Garbage(), verbs=["watch"]),
    "broken": Rule(Reset(), verbs=["watch"]),
    "forbidden": Rule(Answer(403), verbs=["watch"]),
    "mute": Rule(Silence(), verbs=["watch"]),
}


def walk_through(stage: Stage, watches: dict[str, Rule]) -> None:
    """Whatever the watches do, a change is answered, if need be at a heartbeat."""
    stage.start(heartbeat_seconds=2)
    stage.apply("watched")
    stage.wait_settled("watched")
    pid = stage.operator.pid
    for number, (how, rule) in enumerate(watches.items(), start=2):
        with stage.proxy.failing(rule):
            wait_for(lambda rule=rule: rule.hits, f"the fault {how}", interval=0.05)
            reacts(stage, number)
    reacts(stage, 99)
    assert (stage.operator.running, stage.operator.pid) == (True, pid), "no crash, so no crash loop"
    stage.apply("twin", engine={"maxNumSeqs": 99})
    stage.wait_settled("watched", "twin")
    stage.wait_like("watched", stage.children("twin"))
    wait_for(stage.operator.alive, "liveness")
    assert stage.operator.unexpected_lines(*WATCH_WORDS) == []


def test_watches_that_go_wrong_in_each_way(stage: Stage) -> None:
    walk_through(stage, QUIET | ENDING)


@pytest.mark.soak
def test_watches_that_go_wrong_for_long(stage: Stage) -> None:
    walk_through(stage, QUIET | STUBBORN | ENDING)


def test_lists_that_go_wrong_in_each_way(stage: Stage) -> None:
    """As long as nothing can be listed nothing can be known; once it can, everything is caught up."""
    stage.start(heartbeat_seconds=2)
    stage.apply("watched")
    stage.wait_settled("watched")
    for number, rule in enumerate(LISTS.values(), start=2):
        with stage.proxy.failing(rule):
            stage.apply("watched", engine={"maxNumSeqs": number})
            wait_for(lambda rule=rule: rule.hits >= 2, "calls that fail")
        reacts(stage, number + 50)
    assert stage.operator.running
    stage.apply("twin", engine={"maxNumSeqs": number + 50})
    stage.wait_settled("watched", "twin")
    stage.wait_like("watched", stage.children("twin"))
    assert stage.operator.unexpected_lines(*WATCH_WORDS) == []
