"""Sentences about one replica, and about several: numbers agree with their words."""

import pytest

from octavo_operator import status
from octavo_operator.autoscaling import Fleet, Limits, Load, Replica, State, decide
from octavo_operator.counted import counted, serving
from octavo_operator.rollout import Phase, Rollout
from octavo_operator.spec import read_spec
from octavo_operator.status import Telemetry
from one_of_each import disagreements
from operator_samples import NOW, live_deployment, observed, pod, resource

LIMITS = Limits(minimum=1, maximum=8)


def test_one_is_told_apart_from_any_other_number():
    assert [counted(number, "replica") for number in (0, 1, 2)] == ["0 replicas", "1 replica", "2 replicas"]
    assert serving(0, 1) == "0 of 1 replica serves"
    assert serving(1, 1) == "1 of 1 replica serves"
    assert serving(1, 3) == "1 of 3 replicas serves"
    assert serving(0, 3) == "0 of 3 replicas serve"
    assert serving(2, 3) == "2 of 3 replicas serve"


@pytest.mark.parametrize("ready", [1, 2])
@pytest.mark.parametrize("waiting", [0, 1, 9])
def test_decisions_agree_with_their_numbers(ready, waiting):
    load = Load(max_num_seqs=8, waiting=waiting, waiting_full=waiting, running=1)
    fleet = Fleet(tuple(Replica(f"pod-{number}", ready=True, load=load) for number in range(ready)))
    state, told = State(target=ready), []
    for look in range(200):  # until an idle fleet is made smaller, too
        decision, state = decide(state, fleet, LIMITS, 5.0 * look)
        told.append(decision.message)
    assert [wrong for message in told for wrong in disagreements(message)] == []


@pytest.mark.parametrize("answered", [0, 1])
@pytest.mark.parametrize("pods", [1, 2])
def test_conditions_agree_with_their_numbers(pods, answered):
    look = observed(resource(), *(pod(f"p{number}", ready=True) for number in range(pods)),
                    deployed=live_deployment(resource()))  # fmt: skip
    telemetry = Telemetry(desired=2, ready=pods, answered=answered, no_data="timed out")
    done = Rollout(Phase.COMPLETE, "r2", active="r2", words="all replicas have revision r2")
    document = status.describe(read_spec(look.resource), look, done, telemetry, (), now=NOW)
    messages = [item["message"] for item in document["conditions"]]
    assert any("serve" in message for message in messages)
    assert [wrong for message in messages for wrong in disagreements(message)] == []
