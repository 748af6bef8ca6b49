"""What every part of the spec is made of: the base class, the types of names and texts, references to Secrets."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel

QUANTITY = r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$"
_LABEL_VALUE = r"^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$"
_OBJECT_NAME = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"
LINE = r"^[^\r\n\x00]*$"

ObjectName = Annotated[str, Field(min_length=1, max_length=253, pattern=_OBJECT_NAME)]
LabelKey = Annotated[str, Field(min_length=1, max_length=316, pattern=LINE)]
LabelValue = Annotated[str, Field(max_length=63, pattern=_LABEL_VALUE)]
Line = Annotated[str, Field(max_length=1024, pattern=LINE)]
Quantity = Annotated[str, Field(max_length=32, pattern=QUANTITY)]

EMPTIED: dict[str, Any] = {"nullable": True}
"""Server-side apply makes null of what held something and shall hold nothing: written as {} or [], it means absent."""
ATOMIC: dict[str, Any] = {"x-kubernetes-list-type": "atomic"}
BY_NAME: dict[str, Any] = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]} | EMPTIED
WHOLE: dict[str, Any] = {"x-kubernetes-map-type": "atomic"}
"""One manager's as a whole, for an object that says something by being there: emptied, it stays."""


class Part(BaseModel):
    """Base of every part: camelCase outside, unknown fields refused, values frozen."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, given: Any) -> Any:
        """See EMPTIED; the schema says where null may come from the API server."""
        return {key: value for key, value in given.items() if value is not None} if isinstance(given, dict) else given


class SecretKeyRef(Part):
    """One key of a Secret in the same namespace. The operator never reads it; the kubelet mounts it."""

    name: ObjectName = Field(description="Name of the Secret.")
    key: str = Field(min_length=1, max_length=253, pattern=r"^[-._A-Za-z0-9]+$", description="Key within the Secret.")


class SecretRef(Part):
    """A Secret in the same namespace. The operator never reads it; the kubelet mounts or uses it."""

    name: ObjectName = Field(description="Name of the Secret.")
