"""Whether the node ran out of disk: the kubelet tells it in a condition and in Events, but no pod that failed by it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from node import addons, config, space
from node.config import Settings
from node.health import healthy
from node.shell import CommandError

Document = Mapping[str, Any]

_REASONS = ("NodeHasDiskPressure", "FreeDiskSpaceFailed", "EvictionThresholdMet")


def sentence(settings: Settings) -> str:
    """What is to be said of the node's disk, "" while it has been well or cannot be asked."""
    if not healthy(f"{config.API_URL}/readyz"):
        return ""
    try:
        node = json.loads(addons.kubectl(settings, "get", "node", config.NODE_NAME, "-o", "json"))
        events = json.loads(addons.kubectl(settings, "get", "events", "-A", "-o", "json"))["items"]
    except CommandError:
        return ""
    what = told(node, events)
    if not what:
        return ""
    free = space.gigabytes(space.free_at(settings.state))
    return (
        f"the node {what}: the kubelet evicts pods and removes images below {config.EVICTED_BELOW} free. "
        f"Now {free} are; hack/cluster prune makes room"
    )


def told(node: Document, events: Iterable[Document]) -> str:
    """From the node and the last hour's Events: "has" or "had DiskPressure", with what was said; "" for neither."""
    said = [event["message"] for event in events if _is_about_disk(event)]
    now = any(item["type"] == "DiskPressure" and item["status"] == "True" for item in node["status"]["conditions"])
    if not now and not said:
        return ""
    return " ".join(filter(None, ("has" if now else "had", "DiskPressure", f"({said[-1]})" if said else "")))


def _is_about_disk(event: Document) -> bool:
    """An eviction may be for memory, too, and then names it."""
    if event.get("involvedObject", {}).get("kind") != "Node" or event.get("reason") not in _REASONS:
        return False
    return event["reason"] != "EvictionThresholdMet" or "ephemeral-storage" in event.get("message", "")
