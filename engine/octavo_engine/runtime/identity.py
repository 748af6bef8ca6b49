"""Which accelerator a rank computes on, in words that whoever looks after the node can look for."""

from __future__ import annotations

import torch


def identity_of(device: torch.device) -> str:
    """Its name, its place among those that this process sees, and its UUID as the driver's own tools print it:
    `NVIDIA H200 (cuda:0, GPU-5c1e...)`. Of a processor `cpu`.
    """
    if device.type != "cuda":
        return device.type
    found = torch.cuda.get_device_properties(device)
    return f"{found.name} (cuda:{device.index or 0}, GPU-{found.uuid})"
