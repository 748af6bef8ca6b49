"""The tensors of a step are what the batch says, whatever came and went before."""

from __future__ import annotations

import random

import pytest
import torch

from octavo_engine.batch import Batch, Slice
from octavo_engine.request import FinishReason
from octavo_engine.runtime.block_tables import BlockTables
from octavo_engine.runtime.inputs import InputBuilder, StepInputs
from octavo_engine.scheduling.drafts import Drafter
from octavo_engine.scheduling.pace import Pace
from scheduling_helpers import BLOCK, request, run, scheduler

pytestmark = pytest.mark.engine

FREE_DRAFTS = Pace(equal_tokens=1e9, slowdown=1.75)


def table_of(piece: Slice) -> list[int]:
    """The plain twin: a slice's block table from nothing but its request. What stands behind it is never read."""
    return piece.request.blocks[: -(-piece.stop // BLOCK)]


def agrees(inputs: StepInputs, batch: Batch) -> None:
    """Everything, token by token."""
    layout, begin = inputs.layout, 0
    wanted = [table_of(piece) for piece in batch.slices]
    tables = zip(layout.block_tables.tolist(), wanted, strict=True)
    assert [found[: len(table)] for found, table in tables] == wanted
    assert layout.block_tables.shape[1] == max(map(len, wanted))
    sampling = []
    for index, piece in enumerate(batch.slices):
        end = begin + piece.count
        places = range(piece.start, piece.stop)
        known = piece.request.tokens[piece.start : piece.stop - len(piece.draft)]
        assert inputs.tokens[begin:end].tolist() == [*known, *piece.draft]
        assert layout.positions[begin:end].tolist() == list(places)
        slots = [piece.request.blocks[place // BLOCK] * BLOCK + place % BLOCK for place in places]
        assert layout.slots[begin:end].tolist() == slots
        assert layout.query_start[index : index + 2].tolist() == [begin, end]
        assert layout.context_lens[index] == piece.stop
        sampling += list(range(end - 1 - len(piece.draft), end)) if piece.samples else []
        begin = end
    assert len(inputs.tokens) == begin
    rows = list(range(begin)) if inputs.sampling_rows is None else inputs.sampling_rows.tolist()
    assert rows == sampling
    assert layout.max_query == max(piece.count for piece in batch.slices)
    assert layout.max_context == max(piece.stop for piece in batch.slices)
    assert [piece.count == 1 for piece in batch.slices] == [
        index < layout.num_decodes for index in range(len(batch.slices))
    ]


def types(inputs: StepInputs) -> dict[str, torch.dtype]:
    layout = inputs.layout
    names = ("positions", "slots", "query_start", "context_lens", "block_tables")
    return {"tokens": inputs.tokens.dtype} | {name: getattr(layout, name).dtype for name in names}


@pytest.mark.parametrize("guesses", [0, 5])
@pytest.mark.parametrize("seed", range(12))
def test_a_random_life_of_a_scheduler(seed, guesses):
    """Arrivals, ends, shared prefixes, drafts and, with so few blocks, preemption in most of the seeds."""
    draw, drafted = random.Random(seed), 0
    made = scheduler(24, budget=24, seqs=12, drafter=Drafter(guesses, 1000) if guesses else None)
    builder = InputBuilder(BLOCK, torch.device("cpu"))
    prompts = [[100 * n + i for i in range(draw.randrange(1, 30))] for n in range(4)]
    live, preempted = [], 0
    for number in range(400):
        if draw.random() < 0.4 and len(live) < 16:
            prompt = draw.choice(prompts) + ([number] if draw.random() < 0.5 else [])
            live.append(request(prompt, max_tokens=draw.randrange(1, 40)))
            made.add(live[-1])
        if draw.random() < 0.05 and live:
            made.finish(draw.choice(live), FinishReason.ABORT, 0.0)
        live = [item for item in live if item.finish_reason is None]
        batch = made.schedule(0.0, FREE_DRAFTS)
        drafted += batch.num_drafted
        preempted += len(batch.preempted)
        if batch.slices:
            agrees(builder.build(batch), batch)
        run(made, batch, token=draw.randrange(5), true=draw.randrange(3))
        live = [item for item in live if item.finish_reason is None]
    assert preempted, "this seed never takes blocks away; choose another"
    assert bool(drafted) == bool(guesses)


def test_blocks_taken_away_between_two_batches_are_not_remembered():
    made, tables = scheduler(), BlockTables()
    item = request(3 * BLOCK)
    made.add(item)
    made.schedule(0.0)
    assert tables.gather([item], 3).tolist() == [item.blocks]
    made.cache.release(item)
    item.blocks += [9, 8]
    assert tables.gather([item], 3).tolist() == [[9, 8, 0]]


def test_types_are_what_kernels_expect_in_every_kind_of_step():
    made, builder = scheduler(), InputBuilder(BLOCK, torch.device("cpu"))
    seen = []
    for tokens in (9, 40, 1):
        made.add(request(tokens))
        batch = made.schedule(0.0)
        seen.append(types(builder.build(batch)))
        run(made, batch)
    expected = dict.fromkeys(("tokens", "positions", "slots"), torch.int64)
    expected |= dict.fromkeys(("query_start", "context_lens", "block_tables"), torch.int32)
    assert seen == [expected] * 3


def test_tables_grow_in_both_directions():
    made, builder = scheduler(2048, budget=4096, seqs=64), InputBuilder(BLOCK, torch.device("cpu"))
    for length in (3, 200, 900, *range(5, 35)):
        made.add(request(length))
        batch = made.schedule(0.0)
        agrees(builder.build(batch), batch)
        run(made, batch)
