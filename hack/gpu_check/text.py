"""The report for a terminal, in Markdown."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_check.results import OCTAVO, Missed, Report, Timing, shares

HEADER = (
    "| batch | contender | tokens/s | of the best | ms a step | of bandwidth | of FLOP/s"
    " | prompts, of FLOP/s | lead |\n"
    "|---:|---|---:|---:|---:|---:|---:|---:|---:|"
)


def text(report: Report) -> str:
    """All of it."""
    return "\n".join([*_head(report), "", HEADER, *(_row(report, each) for each in report.speed)])


def _head(report: Report) -> Iterator[str]:
    machine, tests, tokens = report.machine, report.tests, report.tokens
    yield (
        f"{machine.name}: memory at {machine.bandwidth / 1e9:,.0f} GB/s, products at"
        f" {machine.flops / 1e12:,.1f} TFLOP/s; {report.seconds:.0f} s in all"
    )
    yield f"kernels: {tests.passed} tests passed, {tests.failed} failed, {tests.skipped} skipped"
    yield from (f"  {failure}" for failure in tests.failures)
    if tokens.fault:
        yield f"greedy tokens in float32: {tokens.fault}"
    else:
        yield f"greedy tokens in float32: {tokens.equal} of {tokens.compared} are transformers'"
    layers, hidden = report.sizes["num_hidden_layers"], report.sizes["hidden_size"]
    yield f"speed: random weights, {layers} layers of {hidden}; prompts of {report.loads[0].prompt} tokens"


def _row(report: Report, each: Timing | Missed) -> str:
    start = f"| {each.load.batch} | {each.contender} |"
    if isinstance(each, Missed):
        return f"{start} {each.reason} | | | | | | |"
    share, lead = shares(each, report.cost, report.machine), report.lead(each.load)
    ahead = f"{lead:.2f}x" if each.contender == OCTAVO and lead is not None else ""
    return (
        f"{start} {each.tokens_per_second:,.0f} | {each.tokens_per_second / report.best(each.load):.0%}"
        f" | {each.step_seconds * 1e3:.2f} | {share.bandwidth:.0%} | {share.flops:.0%} | {share.prefill_flops:.0%}"
        f" | {ahead} |"
    )
