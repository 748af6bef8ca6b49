"""Spec -> child objects, as plain values. Pure: no client, no clock, no look at what exists.

Each manifest holds exactly the fields Octavo owns; server-side apply leaves every other field to others.
"""

from octavo_operator.manifests.availability import disruption_budget
from octavo_operator.manifests.child import (
    DEPLOYMENT,
    DISRUPTION_BUDGET,
    NETWORK_POLICY,
    POD_MONITOR,
    SERVICE,
    SERVICE_ACCOUNT,
    Manifest,
    metadata,
    sealed,
)
from octavo_operator.manifests.identity import service_account
from octavo_operator.manifests.monitoring import pod_monitor
from octavo_operator.manifests.network import service, url
from octavo_operator.manifests.network_policy import ManagementPeers, network_policy
from octavo_operator.manifests.pods import deployment, pod_template

__all__ = [
    "DEPLOYMENT",
    "DISRUPTION_BUDGET",
    "NETWORK_POLICY",
    "POD_MONITOR",
    "SERVICE",
    "SERVICE_ACCOUNT",
    "ManagementPeers",
    "Manifest",
    "deployment",
    "disruption_budget",
    "metadata",
    "network_policy",
    "pod_monitor",
    "pod_template",
    "sealed",
    "service",
    "service_account",
    "url",
]
