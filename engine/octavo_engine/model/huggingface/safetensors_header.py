"""What safetensors files say of themselves: each tensor's type, shape and place. No torch, and no byte of a weight.

Format: https://huggingface.co/docs/safetensors (eight bytes of length, then JSON, then the tensors without gaps).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from octavo_engine.errors import CheckpointInvalid, ModelUnsupported
from octavo_engine.model.file_bytes import FileBytes

FLOATS = ("F64", "F32", "BF16", "F16")
BYTES_PER_ELEMENT = {"F64": 8, "F32": 4, "BF16": 2, "F16": 2, "I64": 8, "I32": 4, "I8": 1}
# What parts of quantized weights are stored as, by the last word of their names; all else is floats.
KINDS = {
    "qweight": ("I32",),
    "qzeros": ("I32",),
    "g_idx": ("I32", "I64"),
    "weight_packed": ("I32",),
    "weight_zero_point": ("I32", "I8"),
    "weight_g_idx": ("I32", "I64"),
    "weight_shape": ("I32", "I64"),
}
LENGTH_BYTES = 8
MAX_HEADER_BYTES = 100_000_000  # the reference reader's own limit


@dataclass(frozen=True, slots=True)
class TensorHeader:
    """One tensor, as its file's header describes it."""

    kind: str  # safetensors' name of the type
    shape: tuple[int, ...]
    size: int  # bytes


def read_header(name: str, data: FileBytes) -> dict[str, TensorHeader]:
    """Every tensor of the file called `name`; raises CheckpointInvalid unless header and file agree."""
    length = int.from_bytes(data[0:LENGTH_BYTES], "little")
    if len(data) < LENGTH_BYTES or length > min(MAX_HEADER_BYTES, len(data) - LENGTH_BYTES):
        raise CheckpointInvalid(f"{name} is damaged: its header does not fit into the file")
    try:
        entries = json.loads(data[LENGTH_BYTES : LENGTH_BYTES + length], object_pairs_hook=_each_once)
        places = {key: _place(key, entry) for key, entry in entries.items() if key != "__metadata__"}
    except (ValueError, AttributeError, RecursionError) as error:
        raise CheckpointInvalid(f"{name} is damaged: its header cannot be read ({error})") from None
    end = 0
    for key, (_, begins, ends) in sorted(places.items(), key=lambda item: item[1][1:]):
        if begins != end or ends < begins:
            raise CheckpointInvalid(f"{name} is damaged: tensor {key} is out of place")
        end = ends
    if LENGTH_BYTES + length + end != len(data):
        raise CheckpointInvalid(f"{name} is damaged: it has {len(data)} bytes, its header says otherwise")
    return {key: tensor for key, (tensor, _, _) in places.items()}


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Readers differ in which of two descriptions they take, and one of them would load another model."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("something is there twice")
    return found


def _place(key: str, entry: dict[str, Any]) -> tuple[TensorHeader, int, int]:
    """A tensor, and where it begins and ends behind the header; raises ValueError naming it."""
    try:
        kind, shape, (begins, ends) = str(entry["dtype"]), tuple(entry["shape"]), entry["data_offsets"]
    except (TypeError, KeyError, ValueError):
        raise ValueError(f"tensor {key} lacks a type, a shape or a place") from None
    if not all(type(number) is int and number >= 0 for number in (*shape, begins, ends)):
        raise ValueError(f"tensor {key} has a shape or a place that are no numbers")
    if kind in BYTES_PER_ELEMENT and math.prod(shape) * BYTES_PER_ELEMENT[kind] != ends - begins:
        raise ValueError(f"tensor {key} has {ends - begins} bytes, but its shape is {list(shape)} of {kind}")
    return TensorHeader(kind, shape, ends - begins), begins, ends


def join_headers(
    headers: Mapping[str, Mapping[str, TensorHeader]], index: Mapping[str, str]
) -> dict[str, TensorHeader]:
    """The tensors of a whole checkpoint, from `file -> header`; `index` has each tensor's file, empty for one file.

    Raises CheckpointInvalid when index and files disagree, ModelUnsupported for a type that cannot be read.
    """
    found: dict[str, TensorHeader] = {}
    for file, header in headers.items():
        for name, tensor in header.items():
            if index and index.get(name) != file:
                raise CheckpointInvalid(f"tensor {name} is in {file}, but the index places it elsewhere")
            kinds = KINDS.get(name.rpartition(".")[2], FLOATS)
            if tensor.kind not in kinds:
                raise ModelUnsupported(f"tensor {name} is stored as {tensor.kind}; supported are {', '.join(kinds)}")
            found[name] = tensor
    for name, file in index.items():
        if name not in found:
            raise CheckpointInvalid(f"tensor {name} is missing from {file}, where the index places it")
    return found
