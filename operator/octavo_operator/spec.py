"""The InferenceService as pydantic models: the source of the CRD (`crd.py`) and what the operator reads resources with.

Only fields that have an effect are here, so that the API server's strict field validation names every other one.
Defaults are the operator's and are never written into a stored resource: a GitOps tool sees what it applied.
Rules that a schema cannot say are CEL, in `cel.py`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from octavo_operator import cel
from octavo_operator.errors import SpecError

MAX_REPLICAS = 64
ACCELERATOR = "nvidia.com/gpu"

QUANTITY = r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$"
_LABEL_VALUE = r"^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$"
_OBJECT_NAME = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"
_LINE = r"^[^\r\n\x00]*$"

ObjectName = Annotated[str, Field(min_length=1, max_length=253, pattern=_OBJECT_NAME)]
LabelValue = Annotated[str, Field(max_length=63, pattern=_LABEL_VALUE)]
Line = Annotated[str, Field(max_length=1024, pattern=_LINE)]
Quantity = Annotated[str, Field(max_length=32, pattern=QUANTITY)]


class Part(BaseModel):
    """Base of every part: camelCase outside, unknown fields refused, values frozen."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True)


class Model(Part):
    """Which model is served."""

    source: str = Field(
        min_length=8,
        max_length=1024,
        description="Where the checkpoint is: pvc://CLAIM/PATH reads a directory or GGUF file on a claim "
        "of the same namespace (mounted read-only); file:///PATH reads a path inside the engine image.",
        json_schema_extra=cel.MODEL_SOURCE,
    )
    served_name: str | None = Field(
        default=None,
        min_length=1,
        max_length=253,
        pattern=_LINE,
        description="The model name clients send and metrics carry. Default: metadata.name.",
    )


class EnvVar(Part):
    """An environment variable of the engine."""

    name: str = Field(
        min_length=1,
        max_length=253,
        pattern="^[A-Za-z_][A-Za-z0-9_]*$",
        description="Name of the variable. LD_*, PYTHON*, OCTAVO_* and the cache locations are not yours to set.",
        json_schema_extra=cel.ENV_NAME,
    )
    value: str = Field(default="", max_length=4096, description="Value of the variable, taken literally.")


class Engine(Part):
    """The engine's flags under their own names. An absent field leaves the engine's default."""

    image: str | None = Field(
        default=None,
        min_length=1,
        max_length=512,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/@-]*$",
        description="Engine image. Default: the image the operator was installed with.",
    )
    max_model_len: int | None = Field(
        default=None, ge=2, le=10_000_000, description="Longest prompt plus answer, in tokens."
    )
    max_num_seqs: int | None = Field(
        default=None, ge=1, le=4096, description="Most requests that run together in one replica."
    )
    max_num_batched_tokens: int | None = Field(
        default=None,
        ge=1,
        le=1_048_576,
        description="Token budget of one engine step, decodes and prefill chunks together.",
    )
    gpu_memory_utilization: float | None = Field(
        default=None, ge=0.05, le=1, description="Share of the accelerator's memory the engine may use, 0.05 to 1."
    )
    kv_cache_memory_bytes: int | None = Field(
        default=None, ge=1_048_576, le=1 << 50, description="Size of the KV cache in bytes; on CPU this bounds it."
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] | None = Field(
        default=None, description="Number format of weights and activations."
    )
    block_size: int | None = Field(default=None, ge=1, le=256, description="Tokens in one KV cache block.")
    enable_prefix_caching: bool | None = Field(
        default=None, description="Reuse the KV cache of a prompt prefix that was computed before."
    )
    enable_chunked_prefill: bool | None = Field(
        default=None, description="Split long prompts over several steps, so that running answers keep their pace."
    )
    scheduling_policy: Literal["fcfs"] | None = Field(
        default=None, description="Order in which waiting requests are admitted."
    )
    prefix_cache_scope: Literal["key", "server"] | None = Field(
        default=None,
        description="Who shares cached prefixes: requests with the same API key, or all (one trusted tenant).",
    )
    extra_args: list[Line] | None = Field(
        default=None,
        max_length=64,
        description="Further flags of `octavo serve`, each as --flag or --flag=value, none that Octavo sets.",
        json_schema_extra={"x-kubernetes-list-type": "atomic", **cel.EXTRA_ARGS},
    )
    env: list[EnvVar] | None = Field(
        default=None,
        max_length=64,
        description="Environment variables of the engine container.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )


class Resources(Part):
    """Compute resources of one replica. Without requests a CPU replica gets what is left over: set them."""

    model_config = ConfigDict(coerce_numbers_to_str=True)  # a quantity may be written as a bare number

    requests: dict[str, Quantity] | None = Field(
        default=None, max_length=16, description="What the scheduler reserves, by resource name."
    )
    limits: dict[str, Quantity] | None = Field(
        default=None,
        max_length=16,
        description="What a replica may use at most, by resource name; nvidia.com/gpu asks for an accelerator.",
        json_schema_extra=cel.ONE_ACCELERATOR,
    )


class Autoscaling(Part):
    """How the number of replicas follows the load."""

    mode: Literal["Operator", "External"] | None = Field(
        default=None,
        description="Operator (default): Octavo scales on queue depth. External: an autoscaler writes spec.replicas "
        "through /scale.",
    )
    min_replicas: int | None = Field(default=None, ge=1, le=MAX_REPLICAS, description="Fewest replicas. Default: 1.")
    max_replicas: int | None = Field(
        default=None, ge=1, le=MAX_REPLICAS, description="Most replicas; required in mode Operator."
    )
    target_queue_depth: int | None = Field(
        default=None,
        ge=1,
        le=10_000,
        description="Waiting requests a replica may hold before another is started. Default: 4.",
    )
    objective_seconds: int | None = Field(
        default=None, ge=1, le=3600, description="A waiting request should start within this many seconds. Default: 30."
    )

    @property
    def by_operator(self) -> bool:
        """Whether Octavo scales."""
        return self.mode != "External"


class SecretKeyRef(Part):
    """One key of a Secret in the same namespace. The operator never reads it; the kubelet mounts it."""

    name: ObjectName = Field(description="Name of the Secret.")
    key: str = Field(min_length=1, max_length=253, pattern=r"^[-._A-Za-z0-9]+$", description="Key within the Secret.")


class Auth(Part):
    """Who may call the API."""

    api_key_secret_ref: SecretKeyRef = Field(
        description="API keys, one a line; a request must carry one of them as bearer token."
    )


class Monitoring(Part):
    """How Prometheus finds the service."""

    labels: dict[str, LabelValue] | None = Field(
        default=None,
        max_length=16,
        description="Labels of the PodMonitor, for a Prometheus that selects monitors by label.",
        json_schema_extra=cel.OWN_KEYS,
    )


class Toleration(Part):
    """A node taint the pods accept."""

    key: str | None = Field(
        default=None, max_length=316, pattern=_LINE, description="Taint key; absent with operator Exists means all."
    )
    operator: Literal["Exists", "Equal"] | None = Field(
        default=None, description="How the value is compared. Default: Equal."
    )
    value: LabelValue | None = Field(default=None, description="Taint value for operator Equal.")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(
        default=None, description="Taint effect; absent means all."
    )
    toleration_seconds: int | None = Field(
        default=None, ge=0, le=1 << 31, description="How long a NoExecute taint is tolerated, in seconds."
    )


class ImagePullSecret(Part):
    """A Secret with registry credentials in the same namespace."""

    name: ObjectName = Field(description="Name of the Secret.")


class Template(Part):
    """Where the pods run and what they carry: a short list on purpose, so that a resource cannot ask for privileges."""

    node_selector: dict[str, LabelValue] | None = Field(
        default=None, max_length=32, description="Labels a node must have."
    )
    tolerations: list[Toleration] | None = Field(
        default=None,
        max_length=32,
        description="Node taints the pods accept.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )
    priority_class_name: ObjectName | None = Field(default=None, description="PriorityClass of the pods.")
    runtime_class_name: ObjectName | None = Field(
        default=None, description="RuntimeClass of the pods, for example nvidia."
    )
    image_pull_secrets: list[ImagePullSecret] | None = Field(
        default=None,
        max_length=8,
        description="Registry credentials for the engine image.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )
    labels: dict[str, LabelValue] | None = Field(
        default=None, max_length=32, description="Further labels of the pods.", json_schema_extra=cel.OWN_KEYS
    )
    annotations: dict[str, Line] | None = Field(
        default=None, max_length=32, description="Further annotations of the pods.", json_schema_extra=cel.OWN_KEYS
    )


class Spec(Part):
    """What a user asks for."""

    model_config = ConfigDict(json_schema_extra=cel.SCALING)

    model: Model = Field(description="Which model is served.")
    engine: Engine = Field(
        default=Engine(), description="The engine's flags, in camelCase; an absent field leaves the engine's default."
    )
    resources: Resources = Field(default=Resources(), description="Compute resources of one replica.")
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
    monitoring: Monitoring = Field(default=Monitoring(), description="How Prometheus finds the service.")
    restarted_at: str | None = Field(
        default=None,
        max_length=64,
        pattern=r"^[-+:.A-Za-z0-9]*$",
        description="Any new value, such as a time, restarts the replicas one by one.",
    )
    paused: bool = Field(
        default=False, description="While true, Octavo changes none of the service's objects; status goes on."
    )
    template: Template = Field(default=Template(), description="Where the pods run and what they carry.")

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
