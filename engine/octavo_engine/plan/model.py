"""The model to plan for: a checkpoint here or at a source, by its headers, or a lone `config.json`."""

from __future__ import annotations

from pathlib import Path

from octavo_engine.model.huggingface.config import spec_from_config
from octavo_engine.model.tensors.parameters import check_tensors, parameters_of
from octavo_engine.model.values.architecture import ModelSpec
from octavo_engine.plan.settings import PlanConfig
from octavo_engine.preflight.checkpoint import look_at_path
from octavo_engine.preflight.command import look_at_address

CONFIG = "config.json"


def look(config: PlanConfig, model: str) -> ModelSpec:
    """What it is; raises the StartupError that serving it would end with. No weight is read."""
    if not config.source and (alone := _lone_config(Path(model))) is not None:
        return spec_from_config(alone)
    found = look_at_address(config) if config.source else look_at_path(model)
    check_tensors(found.spec, parameters_of(found.spec), found.shapes)
    return found.spec


def _lone_config(place: Path) -> Path | None:
    """The directory of a config without weights: enough to plan with, before anything is fetched."""
    if place.name == CONFIG and place.is_file():
        return place.parent
    if (place / CONFIG).is_file() and not any(place.glob("*.safetensors*")) and not any(place.glob("*.gguf")):
        return place
    return None
