"""The schema of `status`: what `status.py` writes and `kubectl explain` describes."""

from __future__ import annotations

from typing import Any


def _text(description: str, limit: int = 1024) -> dict[str, Any]:
    return {"type": "string", "description": description, "maxLength": limit}


def _word(description: str, *words: str) -> dict[str, Any]:
    return {"type": "string", "description": description, "enum": list(words)}


def _count(description: str) -> dict[str, Any]:
    return {"type": "integer", "format": "int64", "description": description, "minimum": 0}


def _number(description: str) -> dict[str, Any]:
    return {"type": "number", "description": description, "minimum": 0}


def _object(description: str, **properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "description": description, "properties": properties}


_CONDITION = {
    **_object(
        "One aspect of the service's state.",
        type=_text("Aspect: Ready, Reconciling, Stalled, ModelReady, WorkloadAvailable and so on.", 64),
        status={"type": "string", "enum": ["True", "False", "Unknown"], "description": "Whether it holds."},
        reason=_text("One word a person or a script can act on.", 128),
        message=_text("The reason in words, with what to do.", 2048),
        observedGeneration={
            "type": "integer",
            "format": "int64",
            "description": "Generation of the spec it speaks of.",
        },
        lastTransitionTime={"type": "string", "format": "date-time", "description": "When the status last changed."},
    ),
    "required": ["type", "status", "reason", "lastTransitionTime"],
}

_DECISION = _object(
    "One change of the replica count.",
    time={"type": "string", "format": "date-time", "description": "When it was decided."},
    fromReplicas=_count("Replicas before."),
    toReplicas=_count("Replicas after."),
    reason=_text("Why, in one word.", 64),
    message=_text("Why, in words, with the figures it rests on."),
)

_EFFECTIVE = _object(
    "What the spec resolves to: the values in use where it leaves a choice open. None of them is written into spec.",
    image=_text("Engine image of the replicas.", 512),
    modelPath=_text("The model's path inside the engine container.", 1100),
    minReplicas=_count("Fewest replicas; absent where an external autoscaler decides."),
    maxReplicas=_count("Most replicas; absent where an external autoscaler decides."),
    targetQueueDepth=_count("Waiting requests a replica may hold, where Octavo scales."),
    objectiveSeconds=_count("A waiting request should start within this many seconds, where Octavo scales."),
    startupSeconds=_count("A replica that does not serve after this many seconds is restarted."),
    drainSeconds=_count("Seconds a stopping replica gives accepted requests to finish."),
    rollout=_word("How a new revision reaches the replicas.", "Auto", "Surge", "InPlace"),
)

_MODEL = _object(
    "The model that the spec names, and how far it is on its way into a replica.",
    source=_text("Where it is from, as in the spec."),
    revision=_text("The commit or digest that every replica of this revision serves, once it is known.", 255),
    bytes=_count("Size of the files that are needed, once it is known."),
    phase=_word(
        "Resolving: its source is asked what it holds. Fetching: files are on their way. Loading: an engine reads it. "
        "Ready: a replica serves it. Pending: it waits for a replica. Failed: the condition ModelReady says why.",
        *("Pending", "Resolving", "Fetching", "Loading", "Ready", "Failed"),
    ),
    percent={
        "type": "integer",
        "format": "int32",
        "description": "How much of it is fetched, while it is.",
        "minimum": 0,
        "maximum": 100,
    },
)

_ROLLOUT = _object(
    "How far the spec's revision is.",
    revision=_text("Revision of the spec: a name for all that shapes a pod.", 64),
    active=_text("Revision that the replicas have or are given.", 64),
    phase=_word(
        "Checking: a preflight Job runs. Loading: the model is fetched into the cache. Refused: the check failed and "
        "the replicas stay as they are. Rolling: replicas are replaced. Complete: all have it. Paused: nothing is "
        "changed.",
        *("Checking", "Loading", "Refused", "Rolling", "Complete", "Paused"),
    ),
    message=_text("The phase in words."),
)

STATUS_SCHEMA: dict[str, Any] = {
    **_object(
        "What the operator found and did.",
        observedGeneration={
            "type": "integer",
            "format": "int64",
            # Tools that compare it with metadata.generation see "not looked at yet" from the first moment.
            "default": -1,
            "description": "Generation of the spec that this status speaks of; -1 before the first look.",
        },
        modelName=_text("Model name clients send.", 253),
        url=_text("Where the API listens within the cluster."),
        replicas=_count("Replicas that exist."),
        readyReplicas=_count("Replicas that answer requests."),
        desiredReplicas=_count("Replicas the operator wants now."),
        replicaSummary=_text("Ready and desired replicas, as shown by kubectl get.", 32),
        selector=_text("Label selector of the pods, for the scale subresource."),
        queue=_object(
            "Load of all replicas, refreshed with a decision, otherwise at most every 30 s when it moved by over 10 %.",
            waiting=_count("Requests that wait."),
            running=_count("Requests that run."),
            limiter=_text("What limits the replica with the longest queue, as `octavo doctor` names it.", 32),
            message=_text("The same with its figures, the setting to change, and what should come of it.", 600),
        ),
        loadSeconds=_number("Longest measured time from process start to serving, in seconds."),
        scaling=_object(
            "The autoscaler's last changes.",
            decisions={
                "type": "array",
                "description": "The last changes of the replica count, newest first.",
                "maxItems": 10,
                "items": _DECISION,
                "x-kubernetes-list-type": "atomic",
            },
        ),
        effective=_EFFECTIVE,
        model=_MODEL,
        rollout=_ROLLOUT,
        conditions={
            "type": "array",
            "description": "The service's state, one entry per aspect.",
            "maxItems": 16,
            "items": _CONDITION,
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["type"],
        },
    ),
    # kstatus and kubectl wait read status before the operator wrote any; the default must have a place to live.
    "default": {"observedGeneration": -1},
}
