"""What the pods are given: resources, place, volumes. A short list, so that no privilege can be asked for."""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict, Field

from octavo_operator import cel
from octavo_operator.spec.affinity import Affinity
from octavo_operator.spec.base import (
    ATOMIC,
    BY_NAME,
    EMPTIED,
    LINE,
    WHOLE,
    LabelValue,
    Line,
    ObjectName,
    Part,
    Quantity,
    SecretRef,
)

ACCELERATOR = "nvidia.com/gpu"


class Resources(Part):
    """Compute resources of one replica. Without requests a CPU replica gets what is left over: set them."""

    model_config = ConfigDict(coerce_numbers_to_str=True)  # a quantity may be written as a bare number

    requests: dict[str, Quantity] | None = Field(
        default=None,
        max_length=16,
        description="What the scheduler reserves, by resource name.",
        json_schema_extra=EMPTIED,
    )
    limits: dict[str, Quantity] | None = Field(
        default=None,
        max_length=16,
        description="What a replica may use at most, by resource name; nvidia.com/gpu asks for accelerators, which "
        "share the model.",
        json_schema_extra=EMPTIED | cel.ACCELERATORS,
    )


class Toleration(Part):
    """A node taint the pods accept."""

    key: str | None = Field(
        default=None, max_length=316, pattern=LINE, description="Taint key; absent with operator Exists means all."
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


class ConfigMapVolume(Part):
    """The keys of a ConfigMap as files."""

    name: ObjectName = Field(description="Name of the ConfigMap.")


class SecretVolume(Part):
    """The keys of a Secret as files."""

    secret_name: ObjectName = Field(description="Name of the Secret.")


class ClaimVolume(Part):
    """A PersistentVolumeClaim of the same namespace."""

    claim_name: ObjectName = Field(description="Name of the claim.")


class EmptyDirVolume(Part):
    """A directory that lives as long as the pod."""

    model_config = ConfigDict(coerce_numbers_to_str=True)

    medium: Literal["Memory"] | None = Field(default=None, description="Memory keeps it in RAM. Default: on disk.")
    size_limit: Quantity | None = Field(default=None, description="Most it may hold.")


class Volume(Part):
    """A directory the engine finds, read-only unless it is an emptyDir."""

    model_config = ConfigDict(json_schema_extra=cel.VOLUME)

    name: str = Field(
        min_length=1,
        max_length=50,
        pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$",
        description="Name of the volume.",
    )
    mount_path: str = Field(
        min_length=2,
        max_length=255,
        description="Absolute path in the engine's container.",
        json_schema_extra=cel.MOUNT_PATH,
    )
    config_map: ConfigMapVolume | None = Field(default=None, description="The keys of a ConfigMap as files.")
    secret: SecretVolume | None = Field(default=None, description="The keys of a Secret as files.")
    persistent_volume_claim: ClaimVolume | None = Field(default=None, description="A claim of the same namespace.")
    empty_dir: EmptyDirVolume | None = Field(
        default=None, description="A directory that lives as long as the pod.", json_schema_extra=WHOLE
    )


class Template(Part):
    """Where the pods run and what they carry: a short list on purpose, so that a resource cannot ask for privileges."""

    node_selector: dict[str, LabelValue] | None = Field(
        default=None, max_length=32, description="Labels a node must have.", json_schema_extra=EMPTIED
    )
    tolerations: list[Toleration] | None = Field(
        default=None, max_length=32, description="Node taints the pods accept.", json_schema_extra=ATOMIC
    )
    affinity: Affinity | None = Field(
        default=None, description="Which nodes and neighbours the pods want.", json_schema_extra=EMPTIED
    )
    volumes: list[Volume] | None = Field(
        default=None,
        max_length=16,
        description="Further directories for the engine: ConfigMaps, Secrets, claims and scratch space.",
        json_schema_extra=BY_NAME | cel.VOLUMES,
    )
    priority_class_name: ObjectName | None = Field(default=None, description="PriorityClass of the pods.")
    runtime_class_name: ObjectName | None = Field(
        default=None, description="RuntimeClass of the pods, for example nvidia."
    )
    image_pull_secrets: list[SecretRef] | None = Field(
        default=None, max_length=8, description="Registry credentials for the engine image.", json_schema_extra=BY_NAME
    )
    labels: dict[str, LabelValue] | None = Field(
        default=None,
        max_length=32,
        description="Further labels of the pods.",
        json_schema_extra=EMPTIED | cel.OWN_KEYS,
    )
    annotations: dict[str, Line] | None = Field(
        default=None,
        max_length=32,
        description="Further annotations of the pods.",
        json_schema_extra=EMPTIED | cel.OWN_KEYS,
    )
