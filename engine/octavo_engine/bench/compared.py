"""Measurements side by side, for a person: two in all figures, or those of a sweep in the main ones. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from octavo_engine.bench.comparison import Difference, Verdict, changed, compare
from octavo_engine.bench.document import Json, Saved
from octavo_engine.bench.report import table
from octavo_engine.bench.summary import Objectives, Summary, summarize

LOAD_WORD = "The loads differ in more than one setting: what follows is not the effect of one of them."


def comparison(before: Saved, after: Saved) -> str:
    """What differs, and in what, as Markdown."""
    settings = changed(before, after)
    told = [f"- {name}: {first} → {second}" for name, (first, second) in settings.items()] or ["- no setting"]
    differences = compare(before, after)
    parts = [f"# {before.name} → {after.name}", "What was changed:\n\n" + "\n".join(told)]
    if len(settings) > 1:
        parts.append(LOAD_WORD)
    parts.append(
        table(("", before.name, after.name, "change", "99 % within", "that is"), _rows(differences), texts=(0, 5))
    )
    if before.failed or after.failed:
        parts.append(f"Failed requests: {before.failed} → {after.failed}; they count in no figure above.")
    if any(difference.verdict is Verdict.TOO_FEW for difference in differences):
        parts.append("With so few requests nothing can be said of noise: measure longer.")
    return "\n\n".join(parts) + "\n"


def comparison_document(before: Saved, after: Saved) -> Json:
    """The same for a script."""
    return {
        "before": before.name,
        "after": after.name,
        "changed": {name: list(pair) for name, pair in changed(before, after).items()},
        "failed": [before.failed, after.failed],
        "differences": [asdict(difference) for difference in compare(before, after)],
    }


def sweep_table(flag: str, values: Sequence[str], saved: Sequence[Saved], objectives: Objectives) -> str:
    """The main figures of each value, each beside the first one's."""
    rows = [
        _sweep_row(value, summarize(each.outcomes, each.seconds, objectives), saved[0], each)
        for value, each in zip(values, saved, strict=True)
    ]
    head = (
        f"--{flag}",
        "tokens/s",
        "requests/s",
        "TTFT P50",
        "TTFT P99",
        "ITL P50",
        "ITL P99",
        "failed",
        "real change",
    )
    return (
        table(head, rows, texts=(0, len(head) - 1))
        + "\n\nTimes in milliseconds; a change is to the first row, and real beyond the noise."
    )


def _sweep_row(value: str, summary: Summary, first: Saved, own: Saved) -> tuple[str, ...]:
    times = [
        "–" if spread is None else f"{1e3 * time:,.1f}"
        for spread in (summary.ttft, summary.itl)
        for time in ((spread.p50, spread.p99) if spread else (0.0, 0.0))
    ]
    real = [
        f"{_short(difference.name)} {100 * difference.change:+.0f} %"
        for difference in (compare(first, own) if own is not first else ())
        if difference.verdict in (Verdict.BETTER, Verdict.WORSE) and not difference.name.endswith("P90")
    ]
    rates = f"{summary.output_tokens_per_second:,.1f}", f"{summary.requests_per_second:.2f}"
    return (value, *rates, *times, f"{summary.failed}", ", ".join(real) or "–")


def _short(name: str) -> str:
    for long, short in (
        ("time to first token, ", "TTFT "),
        ("inter-token latency, ", "ITL "),
        ("end to end, ", "E2E "),
    ):
        name = name.replace(long, short)
    return name


def _rows(differences: Sequence[Difference]) -> list[tuple[str, ...]]:
    return [
        (
            f"{item.name} ({item.unit})",
            f"{item.before:,.2f}",
            f"{item.after:,.2f}",
            f"{100 * item.change:+.1f} %",
            f"{100 * item.low:+.1f} to {100 * item.high:+.1f} %",
            item.verdict.value,
        )
        for item in differences
    ]
