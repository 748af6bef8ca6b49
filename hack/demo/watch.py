"""What the demo reads while it runs: status from the API server, figures from Prometheus."""

from __future__ import annotations

import json
import urllib.parse
import urllib.request
from typing import Any

from demo.install import SERVICE, resource
from node.config import PROMETHEUS_URL, Settings
from node.steps import note

_SELECT = f'{{inferenceservice="{SERVICE}"}}'
_TTFT = "octavo_time_to_first_token_seconds_bucket"
_INTER_TOKEN = "octavo_inter_token_latency_seconds_bucket"
_QUANTILES = (0.5, 0.9, 0.99)
SHARE_TOKENS = 200.0  # a pod serves when it has generated at least this many tokens


def query(promql: str) -> list[dict[str, Any]]:
    """An instant query; the samples as Prometheus returns them."""
    url = f"{PROMETHEUS_URL}/api/v1/query?{urllib.parse.urlencode({'query': promql})}"
    with urllib.request.urlopen(url, timeout=10) as answer:
        found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
    return found


def number(promql: str) -> float:
    """The value of a query that gives one sample; not a number when there is none."""
    found = query(promql)
    return float(found[0]["value"][1]) if found else float("nan")


def both_serve(settings: Settings) -> bool:
    """Print where things stand; True once two pods are ready and each has generated its share."""
    status = resource(settings).get("status", {})
    counters = query(f"octavo_generation_tokens_total{_SELECT}")
    if not counters:
        note("  Prometheus has not scraped the pod yet")
        return False
    tokens = {item["metric"]["pod"]: float(item["value"][1]) for item in counters}
    waiting, running = (
        number(f"sum(octavo_requests_waiting{_SELECT})"),
        number(f"sum(octavo_requests_running{_SELECT})"),
    )
    shares = ", ".join(f"{pod.rsplit('-', 1)[-1]} {count:.0f}" for pod, count in sorted(tokens.items()))
    note(
        f"  waiting {waiting:3.0f}  running {running:3.0f}  replicas wanted {status.get('desiredReplicas', '?')}"
        f" ready {status.get('readyReplicas', 0)}  tokens by pod: {shares}"
    )
    return status.get("readyReplicas", 0) >= 2 and sum(count >= SHARE_TOKENS for count in tokens.values()) >= 2


def decisions(settings: Settings) -> str:
    """The autoscaler's last decisions, in its own words."""
    found = resource(settings).get("status", {}).get("scaling", {}).get("decisions", [])
    lines = [f"  {d['time']}  {d['fromReplicas']} -> {d['toReplicas']}  {d['reason']}: {d['message']}" for d in found]
    return "\n".join(lines) or "  none"


def four_metrics() -> str:
    """Time to first token, inter-token latency, throughput, queue depth, over the last two minutes."""
    generated = f"sum(rate(octavo_generation_tokens_total{_SELECT}[2m]))"
    waiting = f"sum(octavo_requests_waiting{_SELECT})"
    return "\n".join(
        (
            f"  time to first token    {_quantiles(_TTFT)}",
            f"  inter-token latency    {_quantiles(_INTER_TOKEN)}",
            f"  throughput             {number(generated):.1f} tokens/s",
            f"  queue depth            {number(waiting):.0f} waiting now,"
            f" {number(f'max_over_time({waiting}[5m:5s])'):.0f} at most",
        )
    )


def _quantiles(bucket: str) -> str:
    rate = f"sum by (le) (rate({bucket}{_SELECT}[2m]))"
    return "  ".join(f"P{q * 100:.0f} {number(f'histogram_quantile({q}, {rate})') * 1000:.0f} ms" for q in _QUANTILES)
