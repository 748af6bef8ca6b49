"""A user without an account, a home or a cache that can be written, as clusters make them up: slower, and right."""

from __future__ import annotations

import logging
import pwd
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from octavo_engine import machine_cache
from octavo_engine.kernels.choice import choose_attention
from octavo_engine.kernels.cpu import build, library
from octavo_engine.model.loading import load_model
from octavo_engine.roofline import Machine
from paging import prefill_logits
from tiny_models import make_model, oracle_logits, save_model

pytestmark = pytest.mark.engine
MEASURED = Machine(name="one", bandwidth=1e9, flops=1e9)


def nobody(_: int) -> None:
    raise KeyError("no account")


@pytest.fixture(params=["no account", "a file", "read-only"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """What is wrong with the only place that there is for a cache; nothing was compiled before."""
    monkeypatch.setattr(build, "PREBUILT", tmp_path / "nothing")
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    if request.param == "no account":
        monkeypatch.setattr(pwd, "getpwuid", nobody)
    else:
        (tmp_path / "file").touch()
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file") if request.param == "a file" else "/proc")
    library.load.cache_clear()
    yield request.param
    library.load.cache_clear()


def test_kernels_are_missed_and_the_answers_are_the_same(
    place: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert library.load() is None
    (line,) = caplog.records
    assert "CPU kernels are off" in line.getMessage()
    assert ("no home directory" in line.getMessage()) == (place == "no account")
    model, tokens = make_model("llama"), torch.arange(1, 30)
    path = str(save_model(model, tmp_path / "model"))
    decoder = load_model(path, dtype=torch.float32, device=torch.device("cpu"), kernels=choose_attention("torch"))
    torch.testing.assert_close(prefill_logits(decoder, tokens, [29]), oracle_logits(model, tokens), atol=1e-4, rtol=0)


def test_what_was_measured_is_not_kept(place: str) -> None:
    assert machine_cache.keep("one", MEASURED) == MEASURED
    assert machine_cache.load() == {}
