"""Timelines and the queue as text for a terminal. Pure: from documents to lines; `Style` alone knows of colours."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from textwrap import wrap
from typing import Any

from octavo_engine.counted import counted
from octavo_engine.explain.advice import advice, is_preemption, queue_advice

Json = dict[str, Any]

BAR_WIDTH = 48
ROW_WIDTH = 24
TEXT_WIDTH = 100
COLOURS = {
    "receiving": 90, "waiting": 33, "prefill": 36, "decode": 32, "preempted": 31, "recompute": 35, "rejected": 31,
}  # fmt: skip
SHADES = {"receiving": "·", "waiting": "░", "prefill": "▒", "decode": "█", "preempted": "╳", "recompute": "▓"}
MAX_LINES = 40  # of what happened; the JSON form has them all


@dataclass(frozen=True, slots=True)
class Style:
    """How states are set apart: each has a shade, and a colour where the terminal has some."""

    colour: bool = False

    def paint(self, text: str, state: str) -> str:
        """`text` in the state's colour."""
        return f"\x1b[{COLOURS[state]}m{text}\x1b[0m" if self.colour and state in COLOURS else text

    def strong(self, text: str) -> str:
        """A heading."""
        return f"\x1b[1m{text}\x1b[0m" if self.colour else text


def request_report(document: Json, style: Style) -> str:
    """One request: how it ended, where the time went, what happened, what to change."""
    lines = [*_head(document, style), ""]
    if document["shares"]:
        lines += [style.strong("Where the time went"), f"  {_bar(document, style)}", *_rows(document, style), ""]
    lines += [style.strong("What happened"), *_events(document, style), ""]
    if gap := document["longest_gap"]:
        lines += [*_wrapped(_pause(document, gap)), ""]
    return "\n".join([*lines, style.strong("What to change"), *_wrapped(advice(document))]) + "\n"


def queue_report(document: Json, style: Style) -> str:
    """The queue now, who has been there longest, and the slowest requests of late."""
    queue = document["queue"]
    lines = [*_queue(queue, style), *(_wrapped(queue_advice(queue)) if queue["reason"] else ())]
    if document["live"]:
        lines += ["", style.strong("Live, the oldest first"), *(_line(item, style) for item in document["live"])]
    if document["slowest"]:
        heading = f"Slowest of the last {document['ended_known']:,}"
        lines += ["", style.strong(heading), *(_line(item, style) for item in document["slowest"])]
        lines += ["", "octavo explain ID tells more of one."]
    return "\n".join(lines) + "\n"


def _head(document: Json, style: Style) -> Iterator[str]:
    tokens, why = document["tokens"], f" ({document['why']})" if document["why"] else ""
    live = document["state"] not in ("finished", "rejected")
    since = "for" if live else "after"
    yield style.strong(f"{document['id']}: {document['state']}{why} {since} {seconds(document['seconds'])}")
    received = datetime.fromtimestamp(document["received"], UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    yield f"  received {received}, x-request-id {document['x_request_id'] or 'none'}"
    first = document["first_token_seconds"]
    began = "no token yet" if first is None and live else "no token" if first is None else f"the first at {first:.3f} s"
    guesses = _guesses(tokens.get("drafted", 0), tokens.get("accepted", 0))
    times = {0: "", 1: ", preempted once"}.get(document["preemptions"], f", preempted {document['preemptions']} times")
    yield (
        f"  {counted(tokens['prompt'], 'prompt token')}, {tokens['cached']:,} of them cached;"
        f" {tokens['output']:,} generated, {began}{guesses}{times}"
    )
    if document["other_choices"]:
        yield f"  other choices: {', '.join(document['other_choices'])}"


def _guesses(drafted: int, accepted: int) -> str:
    if not drafted:
        return ""
    if drafted == 1:
        return f", its only guess {'came' if accepted else 'did not come'} true"
    return f", {accepted:,} of {drafted:,} guesses came true"


def _bar(document: Json, style: Style) -> str:
    """The request's life from left to right, a character for each 48th of it."""
    total, drawn, bar = document["seconds"], 0, ""
    for span in document["spans"]:
        until = round(BAR_WIDTH * (span["began"] + span["seconds"]) / total) if total else 0
        bar += style.paint(SHADES.get(span["state"], "?") * (until - drawn), span["state"])
        drawn = max(drawn, until)
    return f"|{bar}|"


def _rows(document: Json, style: Style) -> Iterator[str]:
    for share in document["shares"]:
        name = f"{SHADES.get(share['state'], '?')} {share['state']} {share['why']}".rstrip()
        length = round(ROW_WIDTH * share["share"])
        bar = "  " + style.paint("█" * length, share["state"]) if length else ""
        yield f"  {name:<26} {seconds(share['seconds']):>9} {100 * share['share']:>4.0f} %{bar}"


def _events(document: Json, style: Style) -> Iterator[str]:
    events = document["events"]
    middle = len(events) - MAX_LINES
    for number, event in enumerate(events):
        if middle > 0 and MAX_LINES // 2 <= number < MAX_LINES // 2 + middle:
            if number == MAX_LINES // 2:
                yield f"  ... {counted(middle, 'line')} more: --json has them"
            continue
        yield f"  {event['seconds']:>9.3f} s  {style.paint(_words(event, document['id']), event['what'])}"
    if document["events_left_out"]:
        yield f"  {counted(document['events_left_out'], 'line was', 'lines were')} not kept"


def _pause(document: Json, gap: Json) -> str:
    told = f"The longest pause between two tokens was {seconds(gap['seconds'])}, until {gap['at']:.3f} s"
    if is_preemption(document, gap):
        return f"{told}: it had lost its blocks."
    beside = gap["prompt_tokens_in_step"]
    return f"{told}, in a step that computed {counted(beside, 'prompt token')}." if beside else f"{told}."


def _words(event: Json, name: str) -> str:
    what, why, by = event["what"], event["why"], event.get("by", "")
    match what:
        case "admitted":
            cached = event.get("tokens", 0)
            return f"admitted, {counted(cached, 'token')} cached" if cached else "admitted"
        case "computed":
            tokens, steps = counted(event["tokens"], "token"), counted(event["steps"], "step")
            return f"computed {tokens} in {steps}, until {event['until']:.3f} s"
        case "waiting":
            return f"waiting: {why or 'for the queue'}" + (f", for {by}" if by else "")
        case "preempted":
            return f"preempted: {why}, for {'its own next block' if by == name else by}"
        case "first_token":
            return "first token"
    return f"{what}: {why}" if why else str(what)


def _queue(queue: Json, style: Style) -> Iterator[str]:
    waiting = {reason: count for reason, count in queue["waiting"].items() if count}
    number = sum(waiting.values())
    yield style.strong(f"{queue['model_name']}: {queue['state']}, {number:,} waiting, {queue['running']:,} running")
    if waiting:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in waiting.items())
        since = f" ({queue['reason']} for {seconds(queue['reason_seconds'])})" if queue["reason"] else ""
        yield f"  {reasons}{since}; the oldest has waited {seconds(queue['oldest_wait_seconds'])}"
    ahead = queue["waiting_prompt_tokens"], queue["running_prompt_tokens"]
    if any(ahead):
        about = seconds(queue["estimated_queue_seconds"])
        waits = counted(ahead[0], "prompt token waits", "prompt tokens wait")
        yield f"  {waits}, {counted(ahead[1], 'is', 'are')} being computed: about {about}"
    seats, used = counted(queue["max_num_seqs"], "seat"), 100 * queue["kv_cache_usage_ratio"]
    yield f"  {queue['running']:,} of {seats} and {used:.0f} % of the KV blocks are taken"


def _line(item: Json, style: Style) -> str:
    largest, tokens = item["largest"], item["tokens"]
    most = (
        "" if largest is None else f"{largest['state']} {largest['why']}".rstrip() + f" {100 * largest['share']:.0f} %"
    )
    told = f"  {seconds(item['seconds']):>9}  {item['id']:<44} {item['state']} {item['why']}".rstrip()
    shown = style.paint(most, largest["state"]) if largest else most
    return f"{told}; {tokens['prompt']:,} in, {tokens['output']:,} out; most: {shown}"


def _wrapped(text: str) -> list[str]:
    return wrap(text, TEXT_WIDTH, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)


def seconds(value: float) -> str:
    """A duration with the digits that matter."""
    if value < 0.0995:
        return f"{1000 * value:.1f} ms"
    return f"{value:.2f} s" if value < 99.5 else f"{value:,.0f} s"
