"""What a spec resolves to: the values in use where it leaves a choice open. They are shown, never written into spec."""

from __future__ import annotations

from typing import Any

from octavo_operator import engine_args, names
from octavo_operator.autoscaling import Limits
from octavo_operator.manifests import Manifest
from octavo_operator.spec import Spec


def effective(spec: Spec, template: Manifest | None) -> dict[str, Any]:
    """The values in use.

    Args:
        template: the pods' template, which may be of an earlier operator with another default image; None before the
            first.
    """
    values = {
        "image": _image(template) or spec.engine.image,
        "modelPath": _argument(template, "--model=") or (None if spec.model.remote else engine_args.model_path(spec)),
        "startupSeconds": spec.startup_seconds,
        "drainSeconds": spec.drain_seconds,
        "rollout": spec.rollout,
        **_scaling(spec),
    }
    return {key: value for key, value in values.items() if value is not None}


def _scaling(spec: Spec) -> dict[str, Any]:
    """Bounds and targets; of an external autoscaler Octavo knows none."""
    wish = spec.scaler
    if wish:
        return {
            "minReplicas": wish.min_replicas or 1,
            "maxReplicas": wish.max_replicas,
            "targetQueueDepth": wish.target_queue_depth or Limits.queue_depth,
            "objectiveSeconds": wish.objective_seconds or int(Limits.objective_seconds),
        }
    if spec.autoscaling:
        return {}
    fixed = 1 if spec.replicas is None else spec.replicas
    return {"minReplicas": fixed, "maxReplicas": fixed}


def _engine(template: Manifest | None) -> Manifest:
    containers = template["spec"]["containers"] if template else []
    return next((item for item in containers if item["name"] == names.CONTAINER), {})


def _image(template: Manifest | None) -> str | None:
    return _engine(template).get("image")


def _argument(template: Manifest | None, flag: str) -> str | None:
    given = (item.removeprefix(flag) for item in _engine(template).get("args") or () if item.startswith(flag))
    return next(given, None)
