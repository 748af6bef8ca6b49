"""A step as bytes: a fixed head, then the plan's arrays one after another, little-endian. Pure.

sequences, tokens, width, scored   uint32
starts, counts, samples    int32 [sequences]
tokens                     int32 [tokens]
tables                     int32 [sequences, width]
scored                     int32 [scored]
"""

from __future__ import annotations

import struct

import numpy as np

from octavo_engine.runtime.inputs import StepPlan

HEAD = struct.Struct("<IIII")
NUMBER = np.dtype("<i4")


class NotAStep(Exception):
    """Bytes that are no step."""


def encode(plan: StepPlan) -> bytes:
    """The plan as bytes."""
    sequences, width = plan.tables.shape
    columns = (plan.starts, plan.counts, plan.samples, plan.tokens, plan.tables, plan.scored)
    parts = [np.asarray(column, NUMBER).tobytes() for column in columns]
    head = HEAD.pack(sequences, len(plan.tokens), width, len(plan.scored))
    return b"".join((head, *parts))


def decode(data: bytes) -> StepPlan:
    """The plan that `encode` was given; raises NotAStep for bytes that do not add up to one."""
    if len(data) < HEAD.size:
        raise NotAStep(f"{len(data)} bytes are no step")
    sequences, tokens, width, scored = HEAD.unpack_from(data)
    numbers = 3 * sequences + tokens + sequences * width + scored
    if not sequences or len(data) != HEAD.size + NUMBER.itemsize * numbers:
        raise NotAStep(f"{len(data)} bytes are no step of {sequences} sequences, {tokens} tokens and {width} blocks")
    values = np.frombuffer(data, NUMBER, numbers, HEAD.size)
    ends = np.cumsum((sequences, sequences, sequences, tokens, sequences * width))
    starts, counts, samples, ids, tables, rows = np.split(values, ends)
    if counts.min() < 1 or counts.sum() != tokens:
        raise NotAStep(f"the sequences' tokens are not {tokens}")
    if samples.min() < 0 or (samples > counts).any():
        raise NotAStep("a sequence has fewer tokens than give one")
    if scored and not 0 <= rows.min() <= rows.max() < tokens:
        raise NotAStep(f"rows of more than {tokens} tokens are to be projected")
    return StepPlan(
        starts=starts.astype(np.int64),
        counts=counts.astype(np.int64),
        samples=samples.astype(np.int64),
        tokens=ids.astype(np.int64),
        tables=tables.reshape(sequences, width).astype(np.int32),
        scored=rows.astype(np.int64),
    )
