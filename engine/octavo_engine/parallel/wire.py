"""A step as bytes: a fixed head, then the plan's arrays one after another, little-endian. Pure.

sequences, tokens, width, scored   uint32
starts, counts             int32 [sequences]
tokens                     int32 [tokens]
tables                     int32 [sequences, width]
scored                     int32 [scored]
samples                    uint8 [sequences]
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
    columns = (plan.starts, plan.counts, plan.tokens, plan.tables, plan.scored)
    parts = [np.asarray(column, NUMBER).tobytes() for column in columns]
    head = HEAD.pack(sequences, len(plan.tokens), width, len(plan.scored))
    return b"".join((head, *parts, plan.samples.astype(np.uint8).tobytes()))


def decode(data: bytes) -> StepPlan:
    """The plan that `encode` was given; raises NotAStep for bytes that do not add up to one."""
    if len(data) < HEAD.size:
        raise NotAStep(f"{len(data)} bytes are no step")
    sequences, tokens, width, scored = HEAD.unpack_from(data)
    numbers = 2 * sequences + tokens + sequences * width + scored
    if not sequences or len(data) != HEAD.size + NUMBER.itemsize * numbers + sequences:
        raise NotAStep(f"{len(data)} bytes are no step of {sequences} sequences, {tokens} tokens and {width} blocks")
    values = np.frombuffer(data, NUMBER, numbers, HEAD.size)
    ends = np.cumsum((sequences, sequences, tokens, sequences * width))
    starts, counts, ids, tables, rows = np.split(values, ends)
    if counts.min() < 1 or counts.sum() != tokens:
        raise NotAStep(f"the sequences' tokens are not {tokens}")
    if scored and not 0 <= rows.min() <= rows.max() < tokens:
        raise NotAStep(f"rows of more than {tokens} tokens are to be projected")
    return StepPlan(
        starts=starts.astype(np.int64),
        counts=counts.astype(np.int64),
        samples=np.frombuffer(data, np.uint8, sequences, len(data) - sequences).astype(np.bool_),
        tokens=ids.astype(np.int64),
        tables=tables.reshape(sequences, width).astype(np.int32),
        scored=rows.astype(np.int64),
    )
