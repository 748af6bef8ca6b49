"""Why the scheduler found no node: its words, and before them what a person can do about each."""

from __future__ import annotations

import re

from octavo_operator.causes.cause import Cause, advice
from octavo_operator.spec import ACCELERATOR

UNSCHEDULABLE = frozenset({"Unschedulable", "InsufficientAccelerator", "PvcNotFound", "PvcPending"})
"""Reasons of pods that no node takes."""

_ADVICE = (
    (f"Insufficient {ACCELERATOR}", "no node has a free accelerator: add a GPU node or free one"),
    ("Insufficient cpu", "no node has that much CPU free: lower resources.requests.cpu or add a node"),
    ("Insufficient memory", "no node has that much memory free: lower resources.requests.memory or add a node"),
    ("Insufficient ephemeral-storage", "no node has that much local disk free: use spec.cache or larger nodes"),
    ("Too many pods", "the nodes are full of pods: add a node"),
    ("node affinity/selector", "no node has the labels asked for: correct template.nodeSelector or template.affinity"),
    ("{node.kubernetes.io/unreachable", "a node does not answer: look at it with kubectl describe node"),
    ("{node.kubernetes.io/not-ready", "a node is not ready: look at it with kubectl describe node"),
    ("-pressure", "a node is short of disk, memory or processes: look at it with kubectl describe node"),
    ("untolerated taint", "a node's taint keeps the pod away: name it in template.tolerations if the pod should run "
     "there; a node that is not ready is tainted too"),
    ("were unschedulable", "a node is cordoned: kubectl uncordon it, or add another"),
    ("volume node affinity conflict", "the claim's volume is bound to a node that cannot take the pod"),
    ("topology spread constraints", "no node keeps the replicas spread: add a node"),
    ("anti-affinity", "other pods keep this one away: relax template.affinity or add a node"),
)  # fmt: skip
_GENERAL = "no node takes the pod"
_CLAIM = re.compile(r'persistentvolumeclaim "([^"]*)" (not found|is being deleted)')


def scheduling_cause(words: str) -> Cause:
    """The cause behind the message of the condition PodScheduled."""
    if claim := _CLAIM.search(words):
        remedy = "create it, or correct its name in the spec" if claim[2] == "not found" else "create it anew"
        return Cause("PvcNotFound", f"claim {claim[1]} {claim[2]}: {remedy}: {words}", final=True)
    if "unbound immediate PersistentVolumeClaims" in words or "find available persistent volumes" in words:
        wait = "the claim has no volume yet: see kubectl describe pvc"
        return Cause("PvcPending", f"{wait}: {words}", final=False)
    # A taint with an advice of its own needs no general one.
    found = advice(_ADVICE, words)
    if len(found) > 1 and "{node.kubernetes.io/" in words and words.count("untolerated taint") == 1:
        found = [item for item in found if "template.tolerations" not in item]
    reason = "InsufficientAccelerator" if f"Insufficient {ACCELERATOR}" in words else "Unschedulable"
    return Cause(reason, f"{'; '.join(found) or _GENERAL}: {words}", final=False)
