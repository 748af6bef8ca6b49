"""`octavo preflight`: looks at the checkpoint and decides whether these arguments can serve it."""

from __future__ import annotations

import contextlib

from octavo_engine.config import EngineConfig
from octavo_engine.errors import InvalidConfiguration, ModelChanged
from octavo_engine.fetch import location, snapshot, sources
from octavo_engine.fetch.command import FIRST_CONTACT_SECONDS
from octavo_engine.fetch.remote import Changed
from octavo_engine.fetch.retry import Patience
from octavo_engine.fetch.settings import SourceConfig
from octavo_engine.memory import HostRoom, plan_cache
from octavo_engine.model.tensors.costs import needs_of, width_of
from octavo_engine.model.tensors.kept import as_kept, keeps_few_bits
from octavo_engine.model.tensors.parameters import check_tensors, parameters_of
from octavo_engine.preflight.checkpoint import Checkpoint, look_at_path, look_at_source
from octavo_engine.preflight.settings import PreflightSettings


def preflight(settings: PreflightSettings) -> Checkpoint:
    """The checkpoint, if it can be served as asked; raises the StartupError that serving it would end with."""
    config = settings.config
    found = look_at_address(config) if config.source else look_at_path(settings.serve.engine.model)
    check(found, settings.serve.engine, memory_bytes=config.memory_bytes)
    return found


def look_at_address(config: SourceConfig) -> Checkpoint:
    """The checkpoint at a source, by its headers; raises StartupError."""
    place, patience = location.parse(config.source), Patience(FIRST_CONTACT_SECONDS)
    with contextlib.closing(sources.open_source(place, config.access)) as source:
        try:
            taken = snapshot.take(source, place, config.revision, patience)
            return look_at_source(taken, patience)
        except Changed:
            raise ModelChanged(f"{place.label} changed while it was looked at; try again") from None


def check(found: Checkpoint, config: EngineConfig, *, memory_bytes: int | None) -> None:
    """Raise unless every tensor is as the config says, the lengths agree, and it fits where memory is known. Pure."""
    check_tensors(found.spec, parameters_of(found.spec), found.shapes)
    if memory_bytes is not None and config.refused_on_host:
        raise InvalidConfiguration(config.refused_on_host)
    on_host = memory_bytes is not None
    dtype = found.spec.numbers(config.dtype, on_host=on_host)
    spec = as_kept(found.spec, few_bits=keeps_few_bits(dtype, on_host=on_host))
    needs = needs_of(spec, config, width=width_of(spec, config.dtype), on_host=on_host)
    if memory_bytes is not None:  # an accelerator's memory is known to the node alone
        ranks, wanted = config.tensor_parallel_size, config.kv_cache_memory_bytes
        plan_cache(needs, HostRoom(limit=memory_bytes, wanted=wanted, processes=ranks))
