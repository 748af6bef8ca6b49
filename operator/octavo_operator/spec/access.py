"""Who may call the API: keys, and the network peers that reach it."""

from __future__ import annotations

from pydantic import ConfigDict, Field

from octavo_operator import cel
from octavo_operator.spec.base import ATOMIC, LabelValue, Part, SecretKeyRef


class Auth(Part):
    """Who may call the API."""

    api_key_secret_ref: SecretKeyRef = Field(
        description="API keys, one a line; a request must carry one of them as bearer token."
    )


class PeerSelector(Part):
    """Objects by their labels; without any, all of them."""

    match_labels: dict[str, LabelValue] | None = Field(
        default=None, max_length=16, description="Labels an object must have."
    )


class IPBlock(Part):
    """A range of addresses."""

    cidr: str = Field(max_length=43, pattern=r"^[0-9A-Fa-f.:]+/[0-9]{1,3}$", description="The range, as 10.0.0.0/8.")
    excluded: list[str] | None = Field(
        default=None,
        alias="except",
        max_length=16,
        description="Ranges within it that do not count.",
        json_schema_extra=ATOMIC | {"items": {"type": "string", "maxLength": 43}},
    )


class Peer(Part):
    """Who may reach the API's port: as in a NetworkPolicy's ingress rule."""

    model_config = ConfigDict(json_schema_extra=cel.PEER)

    pod_selector: PeerSelector | None = Field(
        default=None, description="Pods of this namespace, or of those that namespaceSelector chooses."
    )
    namespace_selector: PeerSelector | None = Field(default=None, description="All pods of these namespaces.")
    ip_block: IPBlock | None = Field(default=None, description="Addresses outside the cluster.")
