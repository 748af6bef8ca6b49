"""Accelerators by name: memory, its speed, and dense products a second, as their maker's data sheets give them.

Where a sheet gives a rate with sparsity, the half of it stands here. Memory is the nominal size in units of 10^9 bytes:
drivers report a little more, so that a plan that fits here fits there.
"""

from __future__ import annotations

from dataclasses import dataclass

from octavo_engine.roofline import Machine

GB, TERA = 10**9, 1e12
WIDTH_OF_FLOAT32 = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One kind of accelerator. Rates are operations a second, dense."""

    name: str
    driver_names: tuple[str, ...]  # as CUDA calls the same: other variants have other figures
    memory_bytes: int
    bandwidth: float  # bytes a second
    bf16_flops: float  # float16's, too
    fp8_flops: float | None  # None: it has no such products
    fp32_flops: float  # without TF32, which torch leaves off

    def machine(self, width: int) -> Machine:
        """What it can do with weights of `width` bytes."""
        flops = self.fp32_flops if width == WIDTH_OF_FLOAT32 else self.bf16_flops
        return Machine(name=self.name, bandwidth=self.bandwidth, flops=flops)


DEVICES = (
    Device(
        name="A100-80GB",
        driver_names=("NVIDIA A100-SXM4-80GB",),
        memory_bytes=80 * GB,
        bandwidth=2_039 * GB,
        bf16_flops=312 * TERA,
        fp8_flops=None,
        fp32_flops=19.5 * TERA,
    ),
    Device(
        name="H100",
        driver_names=("NVIDIA H100 80GB HBM3",),  # SXM
        memory_bytes=80 * GB,
        bandwidth=3_350 * GB,
        bf16_flops=989.5 * TERA,
        fp8_flops=1_979 * TERA,
        fp32_flops=67 * TERA,
    ),
    Device(
        name="H200",
        driver_names=("NVIDIA H200",),
        memory_bytes=141 * GB,
        bandwidth=4_800 * GB,
        bf16_flops=989.5 * TERA,
        fp8_flops=1_979 * TERA,
        fp32_flops=67 * TERA,
    ),
    Device(
        name="B200",
        driver_names=("NVIDIA B200",),
        memory_bytes=180 * GB,
        bandwidth=8_000 * GB,
        bf16_flops=2_250 * TERA,
        fp8_flops=4_500 * TERA,
        fp32_flops=75 * TERA,
    ),
    Device(
        name="L40S",
        driver_names=("NVIDIA L40S",),
        memory_bytes=48 * GB,
        bandwidth=864 * GB,
        bf16_flops=362.05 * TERA,
        fp8_flops=733 * TERA,
        fp32_flops=91.6 * TERA,
    ),
    Device(
        name="A10",
        driver_names=("NVIDIA A10",),
        memory_bytes=24 * GB,
        bandwidth=600 * GB,
        bf16_flops=125 * TERA,
        fp8_flops=None,
        fp32_flops=31.2 * TERA,
    ),
)


def by_driver_name(name: str) -> Device | None:
    """The device that CUDA calls so; None for one that is not in the table."""
    return next((device for device in DEVICES if name in device.driver_names), None)
