"""Plans for a person at a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from octavo_engine.memory import HOST_RUNTIME_BYTES
from octavo_engine.plan.estimate import Plan, with_four_bits
from octavo_engine.roofline import Machine, Rate

Row = tuple[str, ...]
PER_TOKEN = ("bound", "MB a token", "GFLOP a token")
PREFIXES = ("", "k", "M", "G", "T", "P")


def report(plan: Plan) -> str:
    """One device: what fits, and the best of each phase."""
    parts = [_head(plan), _memory(plan)]
    parts += [f"does not fit: {plan.refusal}"] if plan.cache is None else [_capacity(plan)]
    parts += [_prefill(plan)] + ([_decode(plan), _turns(plan)] if plan.cache is not None else [])
    if with_four_bits(plan).spared_bytes:
        parts.append(_four_bits(plan))
    return "\n\n".join(parts)


def overview(plans: Sequence[Plan]) -> str:
    """All devices side by side, at the chosen context; then why it does not fit where it does not."""
    first = plans[0]
    context = f"{first.context:,}"
    heads: Row = (
        *("device", "KV tokens", f"sequences of {context}", "prefill tok/s", "one stream tok/s", "all tok/s"),
        "bound of all",
    )
    rows = [_device_row(plan) for plan in plans]
    words = [(plan.target.machine.name, word) for plan in plans for word in (plan.refusal, plan.target.doubt) if word]
    remarks = "\n".join(f"{name}: {word}" for name, word in words)
    ranks = first.config.tensor_parallel_size
    each = f"{ranks} of each device" if ranks > 1 else "each device"
    title = f"{_model(first)}: the best that {each} could do with sequences of {context} tokens"
    return "\n\n".join([title, table([heads, *rows]), *([remarks] if remarks else [])])


def _device_row(plan: Plan) -> Row:
    name = f"{plan.target.machine.name} ({_bytes(plan.target.memory_bytes)})"
    prefill = f"{plan.prefill(plan.context).tokens_per_second:,.0f}"
    if plan.cache is None:
        return (name, "does not fit", "", prefill, "", "", "")
    most = plan.cache.sequences_of(plan.context)
    one, everyone = plan.decode(1), plan.decode(max(1, most))
    rates = (f"{one.tokens_per_second:,.0f}", f"{everyone.tokens_per_second:,.0f}", everyone.bound.value)
    return (name, f"{plan.cache.tokens:,}", f"{most:,}", prefill, *rates)


def _model(plan: Plan) -> str:
    few = "" if plan.spec.quantization is None else f" ({plan.spec.quantization})"
    return f"{plan.spec.architecture}, {si(plan.parameters)} parameters in {plan.dtype}{few}"


def _head(plan: Plan) -> str:
    machine = plan.target.machine
    fp8 = f", {si(plan.target.fp8_flops)}FLOP/s in fp8" if plan.target.fp8_flops else ""
    count, each = (f"{plan.devices} x ", " each") if plan.devices > 1 else ("", "")
    return (
        f"{_model(plan)}\non {count}{machine.name}: {_bytes(plan.target.memory_bytes)}, {si(machine.bandwidth)}B/s,"
        f" {si(machine.flops)}FLOP/s in {plan.dtype}{fp8}{each}; below {machine.ridge:,.0f} FLOP a byte,"
        " memory is the bound" + (f"\n{plan.target.doubt}" if plan.target.doubt else "")
    )


def _memory(plan: Plan) -> str:
    needs, config = plan.needs, plan.config
    step = f"{config.max_num_batched_tokens:,} tokens, {config.max_num_seqs:,} sequences"
    rows: list[Row] = [
        ("memory of each device" if plan.devices > 1 else "memory", "", ""),
        ("  weights", _bytes(needs.weights), ""),
        ("  a step's tensors, at most", _bytes(needs.activations), step),
    ]
    if needs.graphs:
        sizes = config.graph_sizes
        kinds = f"{len(sizes)} sizes, up to {sizes[-1]:,} sequences"
        rows.append(("  CUDA graphs, at most", _bytes(needs.graphs), kinds))
    if plan.target.on_host:
        ranks = config.tensor_parallel_size
        rows.append((f"  the process{'es' * (ranks > 1)}", _bytes(HOST_RUNTIME_BYTES * ranks), ""))
    if plan.cache is not None:
        block = f"{needs.geometry.block_size} tokens, {_bytes(needs.geometry.block_bytes)} each"
        rows.append(("  KV cache", _bytes(plan.cache.cache_bytes), f"{plan.cache.blocks:,} blocks of {block}"))
    return table(rows, right=(1,))


def _capacity(plan: Plan) -> str:
    assert plan.cache is not None
    held = [f"{plan.cache.sequences_of(length):,} of {length:,}" for length in plan.lengths]
    return f"fits: {plan.cache.tokens:,} tokens; sequences at once: {', '.join(held)} tokens"


def _prefill(plan: Plan) -> str:
    heads = ("prefill, one prompt of", "tokens/s", "seconds", *PER_TOKEN)
    rates = [plan.prefill(length) for length in plan.lengths]
    return table([heads, *(_row(rate, f"{rate.seconds:.4f}") for rate in rates)])


def _decode(plan: Plan) -> str:
    heads = (f"decode at {plan.context:,}, batch", "tokens/s", "ms a step", *PER_TOKEN)
    rates = [plan.decode(batch) for batch in plan.batches]
    return table([heads, *(_row(rate, f"{1e3 * rate.seconds:.2f}") for rate in rates)])


def _row(rate: Rate, duration: str) -> Row:
    moved, flops = rate.work.bytes / rate.tokens, rate.work.flops / rate.tokens
    speed = f"{rate.tokens_per_second:,.0f}"
    return (f"{rate.tokens:,}", speed, duration, rate.bound.value, f"{moved / 1e6:,.2f}", f"{flops / 1e9:,.2f}")


def _turns(plan: Plan) -> str:
    """From which batch on a decode no longer waits for memory."""
    lines = ["decoding stops being bound by memory, with a context of"]
    for length in plan.lengths:
        turn = plan.turning_batch(length)
        if turn is None:  # and what is longer, all the more
            lines.append(
                f"  {length:,} tokens and more: never, K and V of one more sequence take longer than its products"
            )
            break
        lines.append(f"  {length:,} tokens: {_turn(plan, turn, length)}")
    return "\n".join(lines)


def _turn(plan: Plan, turn: float, context: int) -> str:
    assert plan.cache is not None
    most = plan.cache.sequences_of(context)
    return f"at a batch of {turn:,.0f}" + (f" ({most:,} run at once here)" if turn > most else "")


def _four_bits(plan: Plan) -> str:
    gained = with_four_bits(plan)
    more = f", {100 * gained.blocks / plan.cache.blocks:.0f} % more" if plan.cache is not None else ""
    return (
        f"4-bit weights would spare {_bytes(gained.spared_bytes)}: room for {gained.blocks:,} KV blocks{more};"
        f" one stream at best {gained.single.tokens_per_second:,.0f} tokens/s instead of"
        f" {plan.decode(1).tokens_per_second:,.0f}"
    )


def table(rows: Sequence[Row], right: Sequence[int] | None = None) -> str:
    """Columns of equal width; all but the first to the right, unless `right` names those that are."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    aligned = range(1, len(widths)) if right is None else right

    def line(row: Row) -> str:
        cells = zip(row, widths, strict=True)
        padded = [cell.rjust(size) if at in aligned else cell.ljust(size) for at, (cell, size) in enumerate(cells)]
        return "  ".join(padded).rstrip()

    return "\n".join(line(row) for row in rows)


def si(value: float) -> str:
    """Three digits with a prefix of the metric system: `1.98 P`."""
    for prefix in PREFIXES[:-1]:
        if value < 999.5:
            return f"{value:.3g} {prefix}"
        value /= 1000
    return f"{value:.3g} {PREFIXES[-1]}"


def _bytes(value: float) -> str:
    return f"{si(value)}B"


def describe(machine: Machine) -> str:
    """A machine in a few words, for a picture's title."""
    return f"{machine.name}: {si(machine.bandwidth)}B/s, {si(machine.flops)}FLOP/s"
