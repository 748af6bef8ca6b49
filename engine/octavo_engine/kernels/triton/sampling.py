"""A random token for each row of logits, drawn on the device: nothing is sorted, and nothing is waited for.

The distribution is that of `runtime.sampler`: the `top_k` likeliest; of these the fewest whose share reaches `top_p`;
of these the ones that are at least `min_p` times as likely as the likeliest. A row with one of the first two is ordered
by likelihood, another one as the vocabulary is, and one number in [0, 1) picks a place in the cumulated weights. So a
seed gives the token that it gives on a processor, but for a number that falls within rounding (about 1e-6) of the
border between two tokens; of equally likely tokens, the lower numbers come first.

Weights lie in (0, 1], where floats are ordered as their bits are. A search sets one bit after another: 30 looks at a
row find the weight at which a count or a sum is reached. The first kernel therefore leaves only a short list, of all
tokens that could be in the filters' reach, as the powers of two show between which weights lie.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
# (Triton gives a kernel's arguments their types when it is launched.)
from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from octavo_engine.kernels.triton.targets import Target, launch_on

FIELDS = tl.constexpr(6)  # of a Choice
ROW, TEMPERATURE, TOP_K, TOP_P, LOG_MIN_P, UNIFORM = (tl.constexpr(field) for field in range(6))
BINS = tl.constexpr(128)  # one for each power of two that a weight can lie above
SLACK = tl.constexpr(4e-6)  # share of the mass by which the sums of bins may be wrong
TOP_BIT = tl.constexpr(1 << 29)  # of the bits of 1.0
NOWHERE = tl.constexpr(2**31 - 1)
SMALLEST = torch.finfo(torch.float32).tiny  # temperature: the likeliest is left alone, and nothing is divided by 0
LAST_SHARE = tl.constexpr(1.0 - 1e-15)  # rounding must not put a place behind the last token


@dataclass(frozen=True, slots=True)
class Choice:
    """One row's draw. The order of the fields is the kernels'."""

    row: int  # of the logits
    temperature: float  # above 0
    top_k: int  # at least 1; the vocabulary's size: all
    top_p: float  # above 0; 1: all
    log_min_p: float  # natural logarithm; -inf: all
    uniform: float  # in [0, 1)


@triton.jit
def _weights(logits, largest, temperature, column, vocab):
    """exp((logit - largest) / temperature) of some tokens, with that exponent; 0 behind the vocabulary's end."""
    logit = tl.load(logits + column, mask=column < vocab, other=float("-inf"))
    scaled = tl.math.div_rn(logit - largest, temperature)
    return tl.exp(scaled), scaled


@triton.jit
def _bin(weight):
    """0 for 1.0, 1 for what lies in [1/2, 1), and so on; the last for what is too small for a normal float."""
    return tl.maximum(BINS - 1 - (weight.to(tl.int32, bitcast=True) >> 23), 0)  # 0 for NaN, too


@triton.jit
def _deepest_bin(logits, largest, temperature, top_k, top_p, vocab, BLOCK: tl.constexpr):  # noqa: PLR0917
    """The last bin that the filters can reach into, and the sum of all weights, float64.

    The k likeliest are counted exactly. A nucleus ends where what is left is less than 1 - top_p, and no weight is more
    than the upper end of its bin: what that overrates is at most half.
    """
    counts = tl.zeros((BINS,), tl.int32)
    masses = tl.zeros((BLOCK,), tl.float64)
    for start in range(0, vocab, BLOCK):
        column = start + tl.arange(0, BLOCK)
        weight, _ = _weights(logits, largest, temperature, column, vocab)
        counts += tl.histogram(_bin(weight), BINS, mask=column < vocab)
        masses += weight.to(tl.float64)
    by_count = tl.sum((tl.cumsum(counts, 0) < top_k).to(tl.int32), 0)
    most = counts.to(tl.float32) * tl.exp2(1.0 - tl.arange(0, BINS).to(tl.float32))
    left = tl.cumsum(most, 0, reverse=True) - most
    total = tl.sum(masses, 0)
    by_mass = tl.sum((left > ((1.0 - top_p - SLACK) * total).to(tl.float32)).to(tl.int32), 0)
    return tl.minimum(tl.where(top_k < vocab, by_count, by_mass), BINS - 1), total


@triton.jit
def list_candidates(  # noqa: PLR0917
    logits, largest, choices, weights, tokens, counts, totals, vocab, BLOCK: tl.constexpr,
):  # fmt: skip
    """Of one row, what can be drawn: weights and tokens in the vocabulary's order, how many there are, and the sum of
    the whole row's weights if a filter asks for it."""
    number = tl.program_id(0).to(tl.int64)
    choice = choices + number * FIELDS
    row = tl.load(choice + ROW).to(tl.int64)
    temperature = tl.load(choice + TEMPERATURE).to(tl.float32)
    top_k, top_p = tl.load(choice + TOP_K).to(tl.int32), tl.load(choice + TOP_P)
    least = tl.load(choice + LOG_MIN_P).to(tl.float32)
    logits += row * vocab
    greatest = tl.load(largest + row)
    deepest = top_k * 0 + (BINS - 1)
    if (top_k < vocab) | (top_p < 1.0):
        deepest, total = _deepest_bin(logits, greatest, temperature, top_k, top_p, vocab, BLOCK)
        tl.store(totals + number, total)
        least -= float("inf")  # what is improbable still counts for the nucleus
    found = 0
    for start in range(0, vocab, BLOCK):
        column = start + tl.arange(0, BLOCK)
        weight, scaled = _weights(logits, greatest, temperature, column, vocab)
        kept = (weight > 0.0) & (_bin(weight) <= deepest) & (scaled >= least)
        place = number * vocab + found + tl.cumsum(kept.to(tl.int32), 0) - 1
        tl.store(weights + place, weight, mask=kept)
        tl.store(tokens + place, column, mask=kept)
        found += tl.sum(kept.to(tl.int32), 0)
    tl.store(counts + number, found)


@triton.jit
def _tally(weights, count, least, BLOCK: tl.constexpr):
    """How many weights have at least those bits, and their sum in float64."""
    numbers = tl.zeros((BLOCK,), tl.int32)
    masses = tl.zeros((BLOCK,), tl.float64)
    for start in range(0, count, BLOCK):
        column = start + tl.arange(0, BLOCK)
        weight = tl.load(weights + column, mask=column < count, other=0.0)
        inside = (weight.to(tl.int32, bitcast=True) >= least) & (column < count)
        numbers += inside.to(tl.int32)
        masses += tl.where(inside, weight, 0.0).to(tl.float64)
    return tl.sum(numbers, 0), tl.sum(masses, 0)


@triton.jit
def _weight_of_rank(weights, count, rank, BLOCK: tl.constexpr):
    """The bits of the `rank`-th largest weight, from 1."""
    least, step = rank * 0, TOP_BIT + rank * 0
    for _ in range(30):
        number, _mass = _tally(weights, count, least + step, BLOCK)
        least = tl.where(number >= rank, least + step, least)
        step = step >> 1
    return least


@triton.jit
def _weight_at(weights, count, floor, mass, PASSES: tl.constexpr, BLOCK: tl.constexpr):  # noqa: PLR0917
    """The largest bits, but at least `floor`, at which the weights from there up reach `mass` (if PASSES, pass it)."""
    least, step = floor * 0, TOP_BIT + floor * 0
    for _ in range(30):
        trial = least + step
        _number, reached = _tally(weights, count, trial, BLOCK)
        enough = reached > mass if PASSES else reached >= mass
        least = tl.where((trial <= floor) | enough, trial, least)
        step = step >> 1
    return least


@triton.jit
def _value(bits):
    return bits.to(tl.float32, bitcast=True).to(tl.float64)


@triton.jit
def _filters(weights, count, total, top_k, top_p, least, BLOCK: tl.constexpr):  # noqa: PLR0917
    """What the filters leave: the least weight's bits, and how many of those that have exactly that weight."""
    floor, room = count * 0 + 1, count
    if top_k < count:  # else all whose weight is above 0 are among the k
        floor = _weight_of_rank(weights, count, top_k, BLOCK)
        above, mass = _tally(weights, count, floor + 1, BLOCK)
        room = top_k - above
        total = mass + room.to(tl.float64) * _value(floor)
    if top_p < 1.0:
        cut = _weight_at(weights, count, floor, top_p * total, False, BLOCK)
        _above, mass = _tally(weights, count, cut + 1, BLOCK)
        needed = tl.maximum(tl.ceil((top_p * total - mass) / _value(cut)), 1.0).to(tl.int32)
        room = tl.where(cut == floor, tl.minimum(room, needed), needed)
        floor = cut
    if least > floor:
        floor, room = least, count
    return floor, room


@triton.jit
def _place_by_weight(weights, count, floor, room, uniform, BLOCK: tl.constexpr):  # noqa: PLR0917
    """Where the drawn token is in the list, if the likeliest come first."""
    above, mass = _tally(weights, count, floor + 1, BLOCK)
    reached, _mass = _tally(weights, count, floor, BLOCK)
    room = tl.minimum(room, reached - above)
    total = mass + room.to(tl.float64) * _value(floor)
    target = tl.minimum(uniform * total, total * LAST_SHARE)
    level = _weight_at(weights, count, floor, target, True, BLOCK)
    above, mass = _tally(weights, count, level + 1, BLOCK)
    reached, _mass = _tally(weights, count, level, BLOCK)
    equals = tl.where(level == floor, room, reached - above)
    wanted = tl.minimum((target - mass) / _value(level), (equals - 1).to(tl.float64)).to(tl.int32)
    seen, place = count * 0, count * 0
    for start in range(0, count, BLOCK):
        column = start + tl.arange(0, BLOCK)
        weight = tl.load(weights + column, mask=column < count, other=0.0)
        equal = (weight.to(tl.int32, bitcast=True) == level).to(tl.int32)
        hit = (equal == 1) & (seen + tl.cumsum(equal, 0) - 1 == wanted)
        place += tl.sum(tl.where(hit, column, 0), 0)
        seen += tl.sum(equal, 0)
    return place


@triton.jit
def _place_in_order(weights, count, uniform, BLOCK: tl.constexpr):
    """Where the drawn token is in the list, if they come as they lie."""
    _number, total = _tally(weights, count, count * 0 + 1, BLOCK)
    target = uniform * total
    before, place = uniform * 0.0, count - 1
    for start in range(0, count, BLOCK):
        column = start + tl.arange(0, BLOCK)
        weight = tl.load(weights + column, mask=column < count, other=0.0).to(tl.float64)
        passed = (before + tl.cumsum(weight, 0) > target) & (column < count)
        place = tl.minimum(place, tl.min(tl.where(passed, column, NOWHERE), 0))
        before += tl.sum(weight, 0)
    return place


@triton.jit
def draw_candidate(  # noqa: PLR0917
    choices, weights, tokens, counts, totals, chosen, vocab, BLOCK: tl.constexpr,
):  # fmt: skip
    """Draw one row's token from its list, into `chosen` at the row's place."""
    number = tl.program_id(0).to(tl.int64)
    choice = choices + number * FIELDS
    row = tl.load(choice + ROW).to(tl.int64)
    top_k, top_p = tl.load(choice + TOP_K).to(tl.int32), tl.load(choice + TOP_P)
    uniform = tl.load(choice + UNIFORM)
    count = tl.load(counts + number)
    weights += number * vocab
    if (top_k < vocab) | (top_p < 1.0):
        least = tl.exp(tl.load(choice + LOG_MIN_P).to(tl.float32)).to(tl.int32, bitcast=True)
        floor, room = _filters(weights, count, tl.load(totals + number), top_k, top_p, least, BLOCK)
        place = _place_by_weight(weights, count, floor, room, uniform, BLOCK)
    else:
        place = _place_in_order(weights, count, uniform, BLOCK)
    token = tl.load(tokens + number * vocab + place, mask=count > 0, other=0)
    tl.store(chosen + row, token.to(tl.int64))


def draw(target: Target, logits: Tensor, largest: Tensor, choices: Sequence[Choice], chosen: Tensor) -> None:
    """Draw a token for each choice, into `chosen` int64 `[rows]` at its row; the other rows are left as they are.

    logits: float32 `[rows, vocab]`, contiguous; largest: float32 `[rows]`, the largest of each row. A row whose largest
    is no finite number gets some token that means nothing.
    """
    assert logits.is_contiguous()
    (_, vocab), device, number = logits.shape, logits.device, len(choices)
    fields = torch.tensor(
        [astuple(choice) for choice in choices], dtype=torch.float64, pin_memory=device.type == "cuda"
    )
    table = fields.to(device, non_blocking=True)
    weights = torch.empty((number, vocab), dtype=torch.float32, device=device)
    tokens = torch.empty((number, vocab), dtype=torch.int32, device=device)
    counts = torch.empty(number, dtype=torch.int32, device=device)
    totals = torch.empty(number, dtype=torch.float64, device=device)
    listing, drawing = (launch_on(target, kernel, 1).arguments for kernel in ("list_candidates", "draw_candidate"))
    list_candidates[(number,)](logits, largest, table, weights, tokens, counts, totals, vocab, **listing)
    draw_candidate[(number,)](table, weights, tokens, counts, totals, chosen, vocab, **drawing)


def choice_of(
    row: int, vocab: int, *, temperature: float, top_k: int | None, top_p: float, min_p: float, uniform: float
) -> Choice:
    """From a request's parameters, as `SamplingParams` has them."""
    return Choice(
        row=row,
        temperature=max(temperature, SMALLEST),
        top_k=min(top_k or vocab, vocab),
        top_p=min(top_p, 1.0),
        log_min_p=math.log(min_p) if min_p > 0.0 else -math.inf,
        uniform=uniform,
    )
