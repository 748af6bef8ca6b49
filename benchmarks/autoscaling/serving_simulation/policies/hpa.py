"""A HorizontalPodAutoscaler (autoscaling/v2) with its default behaviour, and KEDA, which feeds one.

Rules after kubernetes/pkg/controller/podautoscaler (replica_calculator.go, horizontal.go), version 1.34, and the
documentation of HorizontalPodAutoscaler and of KEDA's Prometheus scaler. The code is ours. In favour of both: metrics
are as fresh as the look itself, while in a cluster a scrape interval and an adapter lie between.
"""

from __future__ import annotations

import math
from collections import deque

from .view import Choice, View

SYNC_SECONDS = 15.0  # --horizontal-pod-autoscaler-sync-period
TOLERANCE = 0.1  # --horizontal-pod-autoscaler-tolerance
STABILISATION_SECONDS = 300.0  # behavior.scaleDown.stabilizationWindowSeconds
POLICY_SECONDS = 15.0  # period of the default scaling policies


class Behaviour:
    """The default `behavior`: up by 100 % or 4 pods in 15 s, whichever is more; down to the highest of 300 s."""

    def __init__(self, minimum: int, maximum: int) -> None:
        self._minimum = minimum
        self._maximum = maximum
        self._recommended: deque[tuple[float, int]] = deque()
        self._changes: deque[tuple[float, int]] = deque()

    def apply(self, current: int, recommended: int, now: float) -> int:
        """What becomes of a recommendation."""
        self._recommended.append((now, recommended))
        while self._recommended[0][0] < now - STABILISATION_SECONDS:
            self._recommended.popleft()
        highest = max(count for _, count in self._recommended)
        wanted = recommended if recommended >= current else min(current, highest)
        while self._changes and self._changes[0][0] <= now - POLICY_SECONDS:
            self._changes.popleft()
        before = current - sum(change for _, change in self._changes)
        wanted = min(wanted, max(2 * before, before + 4, current))
        wanted = min(max(wanted, self._minimum), self._maximum)
        if wanted != current:
            self._changes.append((now, wanted - current))
        return wanted


class QueueDepthHpa:
    """A metric of type Pods: the average of waiting requests over the pods against a target average."""

    name = "HPA, queue depth"
    period = SYNC_SECONDS

    def __init__(self, minimum: int, maximum: int, target: float) -> None:
        self._target = target
        self._behaviour = Behaviour(minimum, maximum)

    def choose(self, view: View, now: float) -> Choice:
        """One sync."""
        recommended = self._recommend(view)
        if recommended is None:  # no metrics at all: the controller does nothing in this sync
            return Choice(view.replicas)
        return Choice(self._behaviour.apply(view.replicas, recommended, now))

    def _recommend(self, view: View) -> int | None:
        """calcPlainMetricReplicas: pods without metrics count as idle upwards, as on target downwards.

        A replica that loads its model runs already and reports an empty queue; one that no node takes is pending.
        """
        present = [pod for pod in view.pods if not pod.unschedulable]
        known = [float(pod.load.waiting) if pod.load else 0.0 for pod in present if pod.load or not pod.ready]
        if not known or (view.ready and not view.loads):
            return None
        pending, missing = len(view.pods) - len(present), len(present) - len(known)
        ratio = sum(known) / len(known) / self._target
        if not missing and not (pending and ratio > 1):
            return view.replicas if abs(1 - ratio) <= TOLERANCE else math.ceil(ratio * len(known))
        assumed = known + [self._target if ratio < 1 else 0.0] * missing + [0.0] * (pending if ratio > 1 else 0)
        again = sum(assumed) / len(assumed) / self._target
        if abs(1 - again) <= TOLERANCE or ratio < 1 < again or again < 1 < ratio:
            return view.replicas
        count = math.ceil(again * len(assumed))
        backwards = (again < 1 and count > view.replicas) or (again > 1 and count < view.replicas)
        return view.replicas if backwards else count


class Keda:
    """An external metric of type AverageValue: the sum of waiting requests over the target, whoever holds them.

    With `ignoreNullValues: true`, the default of KEDA's Prometheus scaler, an empty answer counts as zero. While the
    count is above `minReplicaCount` KEDA's own cooldown has no part: its HorizontalPodAutoscaler decides.
    """

    name = "KEDA, total queue"
    period = SYNC_SECONDS

    def __init__(self, minimum: int, maximum: int, target: float) -> None:
        self._target = target
        self._behaviour = Behaviour(minimum, maximum)

    def choose(self, view: View, now: float) -> Choice:
        """GetExternalPerPodMetricReplicas."""
        total = float(sum(load.waiting for load in view.loads))
        ratio = total / (self._target * view.replicas)
        recommended = view.replicas if abs(1 - ratio) <= TOLERANCE else math.ceil(total / self._target)
        return Choice(self._behaviour.apply(view.replicas, recommended, now))
