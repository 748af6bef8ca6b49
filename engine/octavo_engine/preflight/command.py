"""`octavo preflight`: looks at the checkpoint and decides whether these arguments can serve it."""

from __future__ import annotations

import contextlib

from octavo_engine.config import EngineConfig
from octavo_engine.errors import ModelChanged
from octavo_engine.fetch import location, snapshot, sources
from octavo_engine.fetch.command import FIRST_CONTACT_SECONDS
from octavo_engine.fetch.remote import Changed
from octavo_engine.fetch.retry import Patience
from octavo_engine.memory import CacheGeometry, check_host, host_cache_bytes, plan_blocks
from octavo_engine.model.parameters import check_tensors, count_weights, parameters_of
from octavo_engine.preflight.checkpoint import Checkpoint, look_at_path, look_at_source
from octavo_engine.preflight.settings import PreflightConfig, PreflightSettings

BYTES_PER_VALUE = {"float32": 4, "bfloat16": 2, "float16": 2}


def preflight(settings: PreflightSettings) -> Checkpoint:
    """The checkpoint, if it can be served as asked; raises the StartupError that serving it would end with."""
    config = settings.config
    found = _look_at_source(config) if config.source else look_at_path(settings.serve.engine.model)
    check(found, settings.serve.engine, memory_bytes=config.memory_bytes)
    return found


def _look_at_source(config: PreflightConfig) -> Checkpoint:
    place, patience = location.parse(config.source), Patience(FIRST_CONTACT_SECONDS)
    with contextlib.closing(sources.open_source(place, config.access)) as source:
        try:
            taken = snapshot.take(source, place, config.revision, patience)
            return look_at_source(taken, patience)
        except Changed:
            raise ModelChanged(f"{place.label} changed while it was looked at; try again") from None


def check(found: Checkpoint, config: EngineConfig, *, memory_bytes: int | None) -> None:
    """Raise unless every tensor is as the config says, the lengths agree, and it fits where memory is known. Pure."""
    spec, parameters = found.spec, parameters_of(found.spec)
    check_tensors(spec, parameters, found.shapes)
    length = config.length_for(spec.max_positions)
    if memory_bytes is None:
        return  # an accelerator's memory is known to the node alone
    width = BYTES_PER_VALUE[spec.dtype if config.dtype == "auto" else config.dtype]
    geometry = CacheGeometry(spec.layers, spec.kv_heads, spec.head_dim, width, config.block_size)
    blocks = plan_blocks(
        geometry,
        budget=host_cache_bytes(limit=memory_bytes, wanted=config.kv_cache_memory_bytes),
        max_model_len=length,
        max_num_seqs=config.max_num_seqs,
        setting="--kv-cache-memory-bytes or the memory limit",
    )
    # Tied weights are held twice: plain to look up, packed as the head.
    weights = width * (count_weights(parameters) + (spec.vocab * spec.hidden if spec.tied else 0))
    check_host(limit=memory_bytes, weights=weights, cache=blocks * geometry.block_bytes)
