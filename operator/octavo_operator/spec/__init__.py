"""The InferenceService as pydantic models: the source of the CRD (`crd.py`) and what the operator reads resources with.

Only fields that have an effect are here, so that the API server's strict field validation names every other one.
Defaults are the operator's and are never written into a stored resource: a GitOps tool sees what it applied.
Rules that a schema cannot say are CEL, in `cel.py`.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import ConfigDict, Field, ValidationError

from octavo_operator import cel
from octavo_operator.errors import SpecError
from octavo_operator.spec.access import Auth, Peer
from octavo_operator.spec.base import ATOMIC, EMPTIED, LabelValue, Part
from octavo_operator.spec.engine import Engine
from octavo_operator.spec.model import Cache, Model
from octavo_operator.spec.scaling import MAX_REPLICAS, Autoscaling
from octavo_operator.spec.template import ACCELERATOR, Resources, Template

__all__ = [
    "ACCELERATOR",
    "MAX_REPLICAS",
    "Auth",
    "Autoscaling",
    "Cache",
    "Engine",
    "Model",
    "Monitoring",
    "Peer",
    "Resources",
    "Spec",
    "Template",
    "read_spec",
]


class Monitoring(Part):
    """How Prometheus finds the service, and what it warns of."""

    labels: dict[str, LabelValue] | None = Field(
        default=None,
        max_length=16,
        description="Labels of the PodMonitor and the PrometheusRule, for a Prometheus that selects them by label.",
        json_schema_extra=EMPTIED | cel.OWN_KEYS,
    )
    pod_monitor: bool = Field(
        default=True,
        description="Whether Prometheus finds the replicas by a PodMonitor. False where it finds them otherwise, as by "
        "annotations of the pods (template.annotations): what two jobs scrape counts twice. Default: true.",
    )
    alerts: bool = Field(
        default=True, description="Whether the PrometheusRule holds the service's alerts. Default: true."
    )
    time_to_first_token_seconds: float | None = Field(
        default=None,
        ge=0.005,
        le=300,
        description="Of 100 first tokens 99 should come within this many seconds, rounded up to a bound of the "
        "histogram; otherwise an alert is raised. Default: 5.",
    )
    inter_token_latency_seconds: float | None = Field(
        default=None,
        ge=0.0005,
        le=10,
        description="Of 100 tokens 99 should follow the one before within this many seconds, rounded up to a bound of "
        "the histogram; otherwise an alert is raised. Default: 0.2.",
    )


class Spec(Part):
    """What a user asks for."""

    model_config = ConfigDict(json_schema_extra=cel.SPEC)

    model: Model = Field(description="Which model is served.")
    engine: Engine = Field(
        default=Engine(),
        description="The engine's flags, in camelCase; an absent field leaves the engine's default.",
        json_schema_extra=EMPTIED,
    )
    resources: Resources = Field(
        default=Resources(), description="Compute resources of one replica.", json_schema_extra=EMPTIED
    )
    autoscaling: Autoscaling | None = Field(default=None, description="How the number of replicas follows the load.")
    replicas: int | None = Field(
        default=None, ge=0, le=MAX_REPLICAS, description="Fixed number of replicas, default 1; instead of autoscaling."
    )
    startup_seconds: int = Field(
        default=1800,
        ge=30,
        le=86_400,
        description="A replica that does not serve after this many seconds is restarted. Default: 1800.",
    )
    drain_seconds: int = Field(
        default=45,
        ge=1,
        le=3600,
        description="Seconds a stopping replica gives accepted requests to finish. Default: 45.",
    )
    auth: Auth | None = Field(default=None, description="Who may call the API; absent: anyone who reaches it.")
    allow_from: list[Peer] | None = Field(
        default=None,
        max_length=32,
        description="Who may reach the API's port; absent or empty: anyone. Effective where the cluster's network "
        "enforces NetworkPolicies.",
        json_schema_extra=ATOMIC,
    )
    cache: Cache | None = Field(
        default=None,
        description="Where a fetched checkpoint is kept for all replicas; absent: each replica fetches its own.",
    )
    rollout: Literal["Auto", "Surge", "InPlace"] = Field(
        default="Auto",
        description="How a new revision replaces the old one, once it has passed its check. Surge: a new replica "
        "serves before an old one stops. InPlace: an old one stops first, for want of a free accelerator. Auto "
        "(default): Surge, and InPlace for as long as the new replica finds no room.",
    )
    monitoring: Monitoring = Field(
        default=Monitoring(),
        description="How Prometheus finds the service, and what it warns of.",
        json_schema_extra=EMPTIED,
    )
    restarted_at: str | None = Field(
        default=None,
        max_length=64,
        pattern=r"^[-+:.A-Za-z0-9]*$",
        description="Any new value, such as a time, restarts the replicas one by one.",
    )
    paused: bool = Field(
        default=False, description="While true, Octavo changes none of the service's objects; status goes on."
    )
    template: Template = Field(
        default=Template(), description="Where the pods run and what they carry.", json_schema_extra=EMPTIED
    )

    @property
    def scaler(self) -> Autoscaling | None:
        """The autoscaling settings when it is the operator that scales."""
        return self.autoscaling if self.autoscaling and self.autoscaling.by_operator else None


def read_spec(resource: dict[str, Any]) -> Spec:
    """Parses a stored resource's spec.

    Raises:
        SpecError: it does not fit these models (an older or newer CRD is installed); the message names the field.
    """
    try:
        return Spec.model_validate(resource.get("spec", {}))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise SpecError(f"spec.{where}: {first['msg']}; install the CRD of this operator's version") from error
