"""Timelines and the queue as JSON documents. docs/EXPLAIN.md says how to read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from octavo_engine.history.timeline import Span, State, Timeline
from octavo_engine.request import Event

Json = dict[str, Any]


def timeline_document(found: Sequence[Timeline], wall_offset: float) -> Json:
    """The first of the choices that were found, and the ids of the others.

    `wall_offset`: Unix time less the engine's clock, in seconds.
    """
    item = found[0]
    total = item.seconds
    return summary(item, wall_offset) | {
        "longest_gap": _gap(item),
        "shares": [
            {"state": state.value, "why": why, "seconds": _round(seconds), "share": _share(seconds, total)}
            for state, why, seconds in item.shares()
        ],
        "spans": [_span(span) for span in item.spans()],
        "events": [_event(event, item.arrival) for event in item.events],
        "events_left_out": item.left_out,
        "other_choices": [other.id for other in found[1:]],
    }


def summary(item: Timeline, wall_offset: float) -> Json:
    """One request in a few fields."""
    counts, shares = item.counts, item.shares()
    first_token = item.first_token
    return {
        "id": item.id,
        "x_request_id": item.x_request_id,
        "received": round(item.arrival + wall_offset, 3),
        "state": item.state.value,
        "why": str(item.why),
        "seconds": _round(item.seconds),
        "first_token_seconds": None if first_token is None else _round(first_token),
        "tokens": {"prompt": counts.prompt, "cached": counts.cached, "output": counts.output}
        | ({"read": counts.read} if counts.read else {})
        | ({"drafted": counts.drafted, "accepted": counts.accepted} if counts.drafted else {}),
        "preemptions": counts.preemptions,
        "largest": {"state": shares[0][0].value, "why": shares[0][1], "share": _share(shares[0][2], item.seconds)}
        if shares
        else None,
    }


def slowest(ended: Sequence[Timeline], most: int) -> list[Timeline]:
    """Of the requests that ended, those that took longest. One that was refused took no time of ours."""
    begun = [item for item in ended if item.state is not State.REJECTED]
    return sorted(begun, key=lambda item: -item.seconds)[:most]


def _gap(item: Timeline) -> Json | None:
    counts = item.counts
    if not counts.longest_gap:
        return None
    at, prompt = _round(counts.longest_gap_at), counts.longest_gap_prompt
    return {"seconds": _round(counts.longest_gap), "at": at, "prompt_tokens_in_step": prompt}


def _span(span: Span) -> Json:
    told = {"state": span.state.value, "why": str(span.why), "began": _round(span.began)}
    details = {"by": span.by, "tokens": span.tokens, "steps": span.steps}
    return told | {"seconds": _round(span.seconds)} | {name: value for name, value in details.items() if value}


def _event(event: Event, arrival: float) -> Json:
    told: Json = {"seconds": _round(event.at - arrival), "what": event.what.value, "why": str(event.why)}
    details: Json = {"by": event.by, "tokens": event.tokens, "steps": event.steps}
    if event.until:
        details["until"] = _round(event.until - arrival)
    return told | {name: value for name, value in details.items() if value}


def _round(seconds: float) -> float:
    return round(seconds, 6)


def _share(seconds: float, total: float) -> float:
    return round(seconds / total, 4) if total else 0.0
