"""Spec -> child objects, as plain values. Pure: no client, no clock, no look at what exists.

Each manifest holds exactly the fields Octavo owns; server-side apply leaves every other field to others.
"""

from octavo_operator.manifests.availability import disruption_budget
from octavo_operator.manifests.child import (
    CONFIG_MAP,
    DEPLOYMENT,
    DISRUPTION_BUDGET,
    JOB,
    MONITORING,
    NETWORK_POLICY,
    POD_MONITOR,
    PROMETHEUS_RULE,
    SERVICE,
    SERVICE_ACCOUNT,
    Manifest,
    metadata,
    name_of,
    sealed,
)
from octavo_operator.manifests.deployment import deployment, pod_template
from octavo_operator.manifests.identity import service_account
from octavo_operator.manifests.jobs import loader_job, preflight_job
from octavo_operator.manifests.monitoring import pod_monitor, prometheus_rule
from octavo_operator.manifests.network import service, url
from octavo_operator.manifests.network_policy import ManagementPeers, network_policy
from octavo_operator.manifests.records import revisions_map

__all__ = [
    "CONFIG_MAP",
    "DEPLOYMENT",
    "DISRUPTION_BUDGET",
    "JOB",
    "MONITORING",
    "NETWORK_POLICY",
    "POD_MONITOR",
    "PROMETHEUS_RULE",
    "SERVICE",
    "SERVICE_ACCOUNT",
    "ManagementPeers",
    "Manifest",
    "deployment",
    "disruption_budget",
    "loader_job",
    "metadata",
    "name_of",
    "network_policy",
    "pod_monitor",
    "pod_template",
    "preflight_job",
    "prometheus_rule",
    "revisions_map",
    "sealed",
    "service",
    "service_account",
    "url",
]
