"""`kubectl octavo status`: services in a table, one service in full. Pure: objects in, renderables out."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

Object = dict[str, Any]
_GOOD = {"True": "green", "False": "red", "Unknown": "yellow"}
# Where True is the bad news.
_INVERTED = {
    "Reconciling": {"True": "yellow"},
    "Stalled": {"True": "red"},
    "ScalingLimited": {"True": "yellow", "False": "green"},
}


def conditions(service: Object) -> dict[str, Object]:
    """Conditions by type."""
    return {item["type"]: item for item in service.get("status", {}).get("conditions", ())}


def overview(services: Iterable[Object], namespaces: bool) -> RenderableType:
    """One line a service."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    columns = ["Namespace"] if namespaces else []
    for column in (*columns, "Name", "Ready", "Replicas", "Waiting", "Running", "Model", "Reason"):
        table.add_column(column, overflow="fold")
    for service in services:
        status, ready = service.get("status", {}), conditions(service).get("Ready", {})
        queue = status.get("queue", {})
        table.add_row(
            *([service["metadata"]["namespace"]] if namespaces else []),
            service["metadata"]["name"],
            coloured("Ready", ready.get("status", "Unknown")),
            status.get("replicaSummary", "-"),
            *(str(queue.get(key, "-")) for key in ("waiting", "running")),
            status.get("modelName", "-"),
            f"{ready.get('reason', 'NotSeen')}: {ready.get('message', 'no operator has looked at it yet')}",
        )
    return table


def detail(service: Object) -> RenderableType:
    """Everything status holds of one service, for a person."""
    head, status = service["metadata"], service.get("status", {})
    parts: list[RenderableType] = [Text(f"{head['namespace']}/{head['name']}", style="bold")]
    parts.append(facts(_facts(service)))
    if not status.get("conditions"):
        parts.append(
            Text("no operator has looked at it yet: is one running that serves this namespace?", style="yellow")
        )
        return Group(*parts)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("Condition", "Status", "Since", "Reason", "Message"):
        table.add_column(column, overflow="fold")
    for kind, item in conditions(service).items():
        since = item.get("lastTransitionTime", "")
        table.add_row(kind, coloured(kind, item["status"]), ago(since), item["reason"], item.get("message", ""))
    parts += [Text(), table]
    if decisions := status.get("scaling", {}).get("decisions"):
        parts += [Text(), Text("Last scaling decisions", style="bold"), decision_table(decisions)]
    return Group(*parts)


def facts(pairs: Iterable[tuple[str, str]]) -> Table:
    """Names beside values."""
    table = Table(box=None, pad_edge=False, show_header=False)
    for name, value in pairs:
        table.add_row(name, value)
    return table


def decision_table(decisions: Iterable[Object]) -> Table:
    """Scaling decisions, newest first."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("When", "Replicas", "Reason", "Why"):
        table.add_column(column, overflow="fold")
    for item in decisions:
        change = f"{item.get('fromReplicas', '?')} -> {item.get('toReplicas', '?')}"
        table.add_row(ago(item.get("time", "")), change, item.get("reason", ""), item.get("message", ""))
    return table


def coloured(kind: str, status: str) -> Text:
    """A condition's status in the colour of its meaning."""
    return Text(status, style=_INVERTED.get(kind, _GOOD).get(status, "default"))


def ago(time: str, now: datetime | None = None) -> str:
    """An RFC 3339 time as an age such as `3m`; empty text stays empty."""
    if not time:
        return ""
    moment = datetime.fromisoformat(time)
    seconds = max(0, int(((now or datetime.now(moment.tzinfo)) - moment).total_seconds()))
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length}{unit}"
    return f"{seconds}s"


def _facts(service: Object) -> list[tuple[str, str]]:
    spec, status = service["spec"], service.get("status", {})
    model, rollout = status.get("model", {}), status.get("rollout", {})
    queue = status.get("queue")
    pairs = [
        ("Model", f"{status.get('modelName', '-')} from {spec['model']['source']}"),
        ("Revision", model.get("revision", "")),
        ("Download", f"{model.get('phase', '')} {model['percent']} %" if "percent" in model else ""),
        ("URL", status.get("url", "")),
        ("Replicas", f"{status.get('replicaSummary', '-')} ready of desired"),
        ("Load", f"{queue['waiting']} waiting, {queue['running']} running" if queue else ""),
        ("Limited by", f"{queue['limiter']}: {queue['message']}" if queue and "limiter" in queue else ""),
        ("Load time", f"{status['loadSeconds']} s" if "loadSeconds" in status else ""),
        ("Rollout", f"{rollout.get('phase', '')} {rollout.get('message', '')}".strip()),
        ("Paused", "yes: nothing is changed until spec.paused is false" if spec.get("paused") else ""),
    ]
    return [(name, value) for name, value in pairs if value]
