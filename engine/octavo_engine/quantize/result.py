"""From what the library wrote to a checkpoint that is the model's own, and the proof that the engine reads it."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import torch

from octavo_engine.config import EngineConfig
from octavo_engine.errors import CheckpointInvalid
from octavo_engine.fetch.selection import CONFIGS
from octavo_engine.model.loading import open_checkpoint
from octavo_engine.model.tensors.parameters import Part, parameters_of
from octavo_engine.model.weights.build import TensorSource
from octavo_engine.preflight.checkpoint import Checkpoint, look_at_path
from octavo_engine.preflight.command import check
from octavo_engine.quantize.settings import QuantizeConfig

log = logging.getLogger(__name__)

CONFIG, SETTINGS = "config.json", "quantize_config.json"
QUANTIZATION, META = "quantization_config", "meta"
OF_THIS_MACHINE = ("offload_to_disk", "offload_to_disk_path")  # where the library put things aside


def complete(source: Path, result: Path) -> None:
    """Give it the source's tokenizer, chat template and defaults byte by byte, and take out what is of this machine.

    A library that saves a tokenizer writes what it understood of it, which need not be all.
    """
    for name in CONFIGS:
        if name == CONFIG:
            continue
        (result / name).unlink(missing_ok=True)
        if (source / name).is_file():
            shutil.copyfile(source / name, result / name)
    _change(result / CONFIG, lambda config: config.get(QUANTIZATION))
    if (result / SETTINGS).is_file():
        _change(result / SETTINGS, lambda config: config)


def _change(file: Path, settings_in: Any) -> None:
    config = json.loads(file.read_bytes())
    settings = settings_in(config)
    meta = settings.get(META) if isinstance(settings, dict) else None
    if isinstance(meta, dict):
        for key in OF_THIS_MACHINE:
            meta.pop(key, None)
    file.write_text(json.dumps(config, indent=2) + "\n")


def checked(result: Path, config: QuantizeConfig) -> Checkpoint:
    """The result, read as a start would read it, weight by weight; raises CheckpointInvalid or ModelUnsupported."""
    found = look_at_path(str(result))
    check(found, EngineConfig(model=str(result)), memory_bytes=None)
    made = found.spec.quantization
    if made is None or (made.method, made.bits) != (config.method, (config.bits,)):
        raise CheckpointInvalid(f"what was written is {made or 'plain'}, not {config.method} of {config.bits} bits")
    spec, source = open_checkpoint(str(result))
    quantized = [part for parts in parameters_of(spec).values() for part in parts if part.scheme is not None]
    for part in quantized:
        _check_numbers(source, part)
    log.info("%d quantized weights can be read", len(quantized))
    return found


def _check_numbers(source: TensorSource, part: Part) -> None:
    matrix = source.quantized(part)
    assert matrix is not None, "it has a scheme"
    if not bool(torch.isfinite(matrix.scales).all()) or not bool(torch.isfinite(matrix.offsets).all()):
        raise CheckpointInvalid(f"the scales of {part.module} are no finite numbers: give other or more samples")
