"""`octavo quantize`: from a plain checkpoint to one of few bits that is known to be readable."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from pathlib import Path

from octavo_engine.errors import InvalidConfiguration
from octavo_engine.preflight.checkpoint import Checkpoint
from octavo_engine.quantize import destination, library
from octavo_engine.quantize.calibration import FEW, Calibration, calibration_of, read_texts
from octavo_engine.quantize.settings import QuantizeConfig
from octavo_engine.quantize.source import look, same_place
from octavo_engine.tokenizer import load_tokenizer

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Made:
    """What there is now."""

    before: Checkpoint
    after: Checkpoint
    calibration: Calibration

    @property
    def facts(self) -> dict[str, str | int]:
        """For a script; sizes in bytes."""
        return {
            "quantization": str(self.after.spec.quantization),
            "bytes": self.after.total_bytes,
            "bytes_before": self.before.total_bytes,
            "calibration_tokens": self.calibration.tokens,
        }


def quantize(config: QuantizeConfig) -> Made:
    """Make `config.out`; raises StartupError, and leaves nothing then. All that can be known is checked before."""
    began, out = time.monotonic(), Path(config.out)
    if same_place(config.model, config.out):
        raise InvalidConfiguration("the model's directory and the output's are one, or one is in the other")
    destination.check_free(out)
    before = look(config)
    calibration = _calibration(config, before.spec.max_positions)
    library.check_available()
    with destination.written_beside(out, before.total_bytes) as scratch:
        after = _make(config, calibration, scratch)
    log.info("%s: %.0f MB of %.0f MB, in %.0f s", out, after.total_bytes / 1e6, before.total_bytes / 1e6,
             time.monotonic() - began)  # fmt: skip
    return Made(before, after, calibration)


def _calibration(config: QuantizeConfig, positions: int) -> Calibration:
    tokenizer = load_tokenizer(config.model)
    found = calibration_of(
        read_texts(config.calibration),
        lambda text: tokenizer.encode(text, add_special_tokens=True),
        count=config.samples,
        longest=min(config.sample_tokens, positions),
    )
    if config.calibration is None:
        log.warning("no --calibration: %d tokens of plain prose are used, enough to try it out", found.tokens)
        log.warning("what is to be served needs more, and text like what it will read")
    elif found.tokens < FEW:
        log.warning("few samples (%d tokens): with %d or more less is lost", found.tokens, FEW)
    log.info("calibration: %s", found)
    return found


def _make(config: QuantizeConfig, calibration: Calibration, scratch: destination.Scratch) -> Checkpoint:
    source = Path(config.model)
    library.run(library.Job(source, calibration.samples, config), scratch.result, scratch.spare)
    from octavo_engine.quantize.result import checked, complete  # noqa: PLC0415 (loads torch, which the library has)

    log.info("checking that it can be served")
    complete(source, scratch.result)
    return checked(scratch.result, config)
