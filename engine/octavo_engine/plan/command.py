"""`octavo plan`: looks at the model's headers, plans for one device or all of them, and shows it."""

from __future__ import annotations

from pathlib import Path

from octavo_engine.devices import Device
from octavo_engine.model.tensors.costs import width_of
from octavo_engine.model.values.architecture import ModelSpec
from octavo_engine.plan import document, picture, text
from octavo_engine.plan.estimate import Plan, Target, make_plan
from octavo_engine.plan.model import look
from octavo_engine.plan.settings import PlanSettings
from octavo_engine.plan.target import device_target, host_target


def plan(settings: PlanSettings) -> tuple[str, bool]:
    """The text to print, and whether the model fits a device that was planned for; raises StartupError."""
    config = settings.config
    if config.picture:
        picture.check_available()  # before anything that takes time
    spec = look(config, settings.engine.model)
    plans = [make_plan(spec, settings.engine, _target(device, spec, settings), context=config.context)
             for device in config.devices]  # fmt: skip
    if config.picture:
        picture.draw(plans[0], Path(config.picture))
    return _shown(plans, settings), any(item.cache is not None for item in plans)


def _target(device: Device | None, spec: ModelSpec, settings: PlanSettings) -> Target:
    width = width_of(spec, settings.engine.dtype)
    if device is not None:
        return device_target(device, settings.config, settings.engine, width=width)
    dtype = spec.numbers(settings.engine.dtype, on_host=True)
    return host_target(settings.config, settings.engine, dtype=dtype)


def _shown(plans: list[Plan], settings: PlanSettings) -> str:
    if settings.config.json:
        return document.render(plans)
    return text.overview(plans) if settings.config.device is None else text.report(plans[0])
