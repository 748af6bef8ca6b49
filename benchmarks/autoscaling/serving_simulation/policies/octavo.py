"""The policy that ships: `octavo_operator.autoscaling.decide`, asked every five seconds as the operator does."""

from __future__ import annotations

from octavo_operator.autoscaling import Decision, Fleet, Limit, Limits, Replica, State, decide

from .view import Choice, View


class Octavo:
    """Holds the state between two decisions, as `octavo_operator.scaler` does."""

    name = "Octavo"
    period = 5.0

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.state: State | None = None
        self.decisions: list[tuple[float, Decision]] = []

    def choose(self, view: View, now: float) -> Choice:
        """One decision. The first takes the count as it is, as the operator does after its start."""
        if self.state is None:
            self.state = State(target=view.replicas)
        decision, self.state = decide(self.state, fleet_of(view), self.limits, now)
        self.decisions.append((now, decision))
        return Choice(decision.replicas, decision.victim)


def fleet_of(view: View) -> Fleet:
    """The view as the autoscaler takes it."""
    return Fleet(
        tuple(
            Replica(pod.name, pod.ready, Limit.UNSCHEDULABLE if pod.unschedulable else None, pod.load)
            for pod in view.pods
        )
    )
