"""What `kubectl octavo` asks of the engine's commands, in their own words."""

from __future__ import annotations

import pytest

from octavo_engine.explain.top import TopSettings
from octavo_operator.plugin import live

pytestmark = pytest.mark.contract


@pytest.mark.parametrize(("context", "kubectl"), [("", ()), ("far", ("--context=far",))])
def test_top_is_asked_for_all_replicas_of_a_service(context: str, kubectl: tuple[str, ...]) -> None:
    """By the label that its pods have, which of a long name is another."""
    name = "a-service-with-a-name-that-is-longer-than-any-label-could-ever-hold"
    program, *arguments = live.command(
        {"metadata": {"name": name, "namespace": "team"}}, live.Cluster(context), interval=1.5, once=True
    )
    settings = TopSettings.parse(arguments)
    assert program == "top"
    assert (settings.interval, settings.once) == (1.5, True)
    assert settings.kubectl == ("--namespace=team", *kubectl)
    assert settings.service is not None
    assert settings.service.startswith("a-service-with-a-name")
    assert len(settings.service) <= 63
