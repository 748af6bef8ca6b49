"""GPTQModel (https://github.com/ModelCloud/GPTQModel, Apache-2.0), and all that is known of it: an extra, not needed
to serve.

It loads the plain model by transformers, goes through it layer by layer with the samples, and writes the checkpoint. It
prints to standard output, which is for results here, and so all of it goes to standard error.
"""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from octavo_engine.errors import DiskFull, InsufficientMemory, InvalidConfiguration, ModelUnsupported, StartupError
from octavo_engine.quantize.settings import QuantizeConfig

log = logging.getLogger(__name__)

PACKAGE = "gptqmodel"
FORMATS = {"gptq": "gptq", "awq": "gemm"}  # the layouts that every server reads
SYMMETRIC = {"gptq": True, "awq": False}  # as these checkpoints are usually made, and kernels elsewhere expect them
# The one backend for each that computes anywhere, without a compiler; only the packing of codes is left to it.
BACKENDS = {"gptq": "gptq_torch", "awq": "awq_torch"}
OUT_OF_MEMORY = "OutOfMemoryError"
# It takes half of the processors for its threads, and ends at once where that is fewer than two.
WORKERS, FEWEST_WORKERS = "GPTQMODEL_CPU_WORKERS", 2


@dataclass(frozen=True, slots=True)
class Job:
    """What the library is asked for."""

    source: Path
    samples: Sequence[Sequence[int]]  # token ids
    config: QuantizeConfig


def check_available() -> None:
    """Raise InvalidConfiguration, with the way to get it, where the library is missing."""
    if importlib.util.find_spec(PACKAGE) is None:
        raise InvalidConfiguration("octavo quantize needs GPTQModel: pip install 'octavo[quantize]'")


def run(job: Job, result: Path, spare: Path) -> None:
    """Write the quantized checkpoint to the directory `result`; `spare` is for what the library puts aside.

    Raises DiskFull, InsufficientMemory, InvalidConfiguration (no such device, or it cannot be loaded), and
    ModelUnsupported for all else that the library gives up on; what it said then is in the log.
    """
    job, result, spare = replace(job, source=job.source.absolute()), result.absolute(), spare.absolute()
    # It makes a folder `logs` wherever it is started, which may be read-only, and is nobody's place for it.
    with contextlib.redirect_stdout(sys.stderr), contextlib.chdir(spare):
        try:
            _run(job, result, spare)
        except StartupError:
            raise
        except Exception as error:
            log.error("the library gave up", exc_info=True)
            raise _told(error) from error


def _told(error: Exception) -> StartupError:
    words = f"{type(error).__name__}: {error}"[:500]
    if isinstance(error, ImportError):
        return InvalidConfiguration(
            f"GPTQModel cannot be loaded here; install it by itself, as octavo[quantize] ({words})"
        )
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return DiskFull("the disk is full: give the output a larger one")
    if isinstance(error, MemoryError) or type(error).__name__ == OUT_OF_MEMORY:
        return InsufficientMemory(f"it does not fit: use fewer --sample-tokens, or another --device ({words})")
    return ModelUnsupported(f"GPTQModel cannot quantize this model as asked ({words})")


def _run(job: Job, result: Path, spare: Path) -> None:
    device = device_for(job.config.device)
    if (os.cpu_count() or 1) <= FEWEST_WORKERS:
        os.environ.setdefault(WORKERS, str(FEWEST_WORKERS))
    log.info("loading GPTQModel")
    from gptqmodel import BACKEND, GPTQModel  # noqa: PLC0415 (seconds, and an extra)

    log.info("loading the model")
    model = GPTQModel.load(str(job.source), _settings(job.config, device, spare), trust_remote_code=False)
    log.info("quantizing on %s", device)
    samples = [{"input_ids": list(ids), "attention_mask": [1] * len(ids)} for ids in job.samples]
    model.quantize(samples, batch_size=1, backend=BACKEND(BACKENDS[job.config.method]))
    log.info("writing")
    model.save(str(result))


def _settings(config: QuantizeConfig, device: str, spare: Path) -> Any:
    from gptqmodel import QuantizeConfig as Settings  # noqa: PLC0415

    # In the order of a group's inputs, unless whole rows are one group, or the order is the activations'.
    ordered = {"act_group_aware": config.group_size > 0 and not config.desc_act} if config.method == "gptq" else {}
    return Settings(
        quant_method=config.method,
        format=FORMATS[config.method],
        bits=config.bits,
        group_size=config.group_size,
        desc_act=config.desc_act,
        sym=SYMMETRIC[config.method],
        device=device,
        offload_to_disk=True,
        offload_to_disk_path=str(spare),
        **ordered,
    )


def device_for(wanted: str) -> str:
    """`cpu`, `cuda` or `cuda:N`; raises InvalidConfiguration where that is not here."""
    import torch  # noqa: PLC0415

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if wanted == "auto":
        return "cuda:0" if count else "cpu"
    if wanted == "cpu":
        return wanted
    number = int(wanted.partition(":")[2] or 0)
    if number >= count:
        raise InvalidConfiguration(f"--device is {wanted}, but there are {count} CUDA devices here; use auto or cpu")
    return f"cuda:{number}"
