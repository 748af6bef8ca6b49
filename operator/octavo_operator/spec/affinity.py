"""Which nodes and neighbours the pods want: the shapes are Kubernetes' own."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from octavo_operator.spec.base import ATOMIC, EMPTIED, LabelKey, LabelValue, Part

_Weight = Annotated[int, Field(ge=1, le=100)]
_Values = Annotated[list[LabelValue], Field(max_length=64)]


class NodeRequirement(Part):
    """A condition on one label of a node."""

    key: LabelKey = Field(description="Label of the node.")
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"] = Field(
        description="How the label's value relates to the values."
    )
    values: _Values | None = Field(
        default=None,
        description="Values; none for Exists and DoesNotExist, one for Gt and Lt.",
        json_schema_extra=ATOMIC,
    )


class NodeTerm(Part):
    """Conditions that a node must all meet."""

    match_expressions: list[NodeRequirement] = Field(
        min_length=1, max_length=16, description="The conditions.", json_schema_extra=ATOMIC
    )


class NodeSelector(Part):
    """Terms of which a node must meet one."""

    node_selector_terms: list[NodeTerm] = Field(
        min_length=1, max_length=8, description="The terms.", json_schema_extra=ATOMIC
    )


class PreferredNode(Part):
    """A term that makes a node better."""

    weight: _Weight = Field(description="How much better, 1 to 100.")
    preference: NodeTerm = Field(description="The term.")


class NodeAffinity(Part):
    """Nodes by their labels."""

    required_during_scheduling_ignored_during_execution: NodeSelector | None = Field(
        default=None, description="What a node must have."
    )
    preferred_during_scheduling_ignored_during_execution: list[PreferredNode] | None = Field(
        default=None, max_length=8, description="What makes a node better.", json_schema_extra=ATOMIC
    )


class LabelRequirement(Part):
    """A condition on one label of a pod."""

    key: LabelKey = Field(description="Label of the pod.")
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"] = Field(
        description="How the label's value relates to the values."
    )
    values: _Values | None = Field(
        default=None, description="Values; none for Exists and DoesNotExist.", json_schema_extra=ATOMIC
    )


class LabelSelector(Part):
    """Pods by their labels."""

    match_labels: dict[str, LabelValue] | None = Field(
        default=None, max_length=16, description="Labels a pod must have."
    )
    match_expressions: list[LabelRequirement] | None = Field(
        default=None, max_length=16, description="Further conditions.", json_schema_extra=ATOMIC
    )


class PodTerm(Part):
    """Pods of the same namespace and the domain they share."""

    topology_key: LabelKey = Field(description="Node label whose value is the domain, as kubernetes.io/hostname.")
    label_selector: LabelSelector = Field(description="Which pods.")


class PreferredPods(Part):
    """A term that makes a domain better."""

    weight: _Weight = Field(description="How much better, 1 to 100.")
    pod_affinity_term: PodTerm = Field(description="The term.")


class PodAffinity(Part):
    """Domains by the pods that run there."""

    required_during_scheduling_ignored_during_execution: list[PodTerm] | None = Field(
        default=None, max_length=8, description="What must hold.", json_schema_extra=ATOMIC
    )
    preferred_during_scheduling_ignored_during_execution: list[PreferredPods] | None = Field(
        default=None, max_length=8, description="What is better.", json_schema_extra=ATOMIC
    )


class Affinity(Part):
    """Which nodes and neighbours the pods want, and which not."""

    node_affinity: NodeAffinity | None = Field(
        default=None, description="Nodes by their labels.", json_schema_extra=EMPTIED
    )
    pod_affinity: PodAffinity | None = Field(default=None, description="Near these pods.", json_schema_extra=EMPTIED)
    pod_anti_affinity: PodAffinity | None = Field(
        default=None, description="Away from these pods.", json_schema_extra=EMPTIED
    )
