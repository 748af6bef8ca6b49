"""The device at hand, as the table of launches needs to know it."""

from __future__ import annotations

from functools import cache

import torch

from octavo_engine.errors import InvalidConfiguration
from octavo_engine.kernels.triton import measured
from octavo_engine.kernels.triton.targets import H100, TABLE, Target


@cache
def target_of(device: torch.device) -> Target:
    """The device's own figures; an H100's where kernels are interpreted, which needs no device.

    Raises InvalidConfiguration for a device that is older than all launches.
    """
    if device.type != "cuda":
        return H100
    found = torch.cuda.get_device_properties(device)
    capability, least = 10 * found.major + found.minor, min(row.capability for row in TABLE)
    if capability < least:
        raise InvalidConfiguration(
            f"{found.name} has compute capability {found.major}.{found.minor}, but the kernels need {least / 10} or"
            " later: use --device cpu, or another device"
        )
    return Target(capability, found.multi_processor_count, measured.rows_for(measured.Circumstances.of(found.name)))
