"""Compiling ahead of time, beside others, and where it is not possible."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from octavo_engine.assembly import choose_backend
from octavo_engine.errors import InvalidConfiguration
from octavo_engine.kernels.cpu import build, library

pytestmark = pytest.mark.engine


@pytest.fixture
def recipe() -> build.Recipe:
    return build.Recipe.here()


@pytest.fixture
def fresh() -> Iterator[None]:
    """`library.load` as a new process finds it."""
    library.load.cache_clear()
    yield
    library.load.cache_clear()


@pytest.mark.skipif(bool(library.missing_features()), reason="the processor lacks what the kernels need")
def test_they_run_wherever_the_processor_can(fresh: None) -> None:
    """Elsewhere the kernels' own tests are skipped: only a processor may be the reason, never a build that fails."""
    assert library.load() is not None


def test_concurrent_builds_leave_one_whole_library(recipe: build.Recipe, tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        places = set(pool.map(recipe.compile, [tmp_path] * 2))
    assert list(tmp_path.iterdir()) == [*places]
    compiled = str(tmp_path / recipe.name)
    code = f"import torch, ctypes; print(ctypes.CDLL({compiled!r}).octavo_linear_bfloat16 is not None)"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert answer.stdout.strip() == "True"


def test_a_library_that_is_there_is_not_compiled_again(
    recipe: build.Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / recipe.name).touch()
    monkeypatch.setattr(build.Recipe, "_compile", lambda *_: pytest.fail("compiled again"))
    assert recipe.compile(tmp_path) == tmp_path / recipe.name
    monkeypatch.setattr(build, "PREBUILT", tmp_path)
    assert build.built() == tmp_path / recipe.name


def test_the_name_follows_flags_and_compiler(recipe: build.Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    names = {recipe.name, build.Recipe(sys.executable, recipe.openmp).name}
    monkeypatch.setattr(build, "FLAGS", (*build.FLAGS, "-g"))
    assert len(names | {build.Recipe(recipe.compiler, recipe.openmp).name}) == 3


def test_a_cache_that_others_can_write_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert build.private_cache().stat().st_mode & 0o077 == 0
    build.private_cache().chmod(0o777)
    with pytest.raises(build.BuildFailed, match="written by others"):
        build.private_cache()


@pytest.mark.usefixtures("fresh")
def test_another_processor_serves_without_them(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(library, "missing_features", lambda: ["avx512_bf16"])
    with caplog.at_level(logging.INFO):
        assert library.load() is None
    assert "avx512_bf16" in caplog.text


@pytest.mark.usefixtures("fresh")
def test_no_compiler_is_said_and_survived(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(library, "missing_features", list)
    monkeypatch.setattr(build.shutil, "which", lambda _: None)
    assert library.load() is None
    assert "no C++ compiler" in caplog.text


def test_features_are_read_from_the_processor_itself(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nflags\t\t: fpu avx512f avx512bw fma\n")
    assert library.missing_features(cpuinfo) == ["avx512dq", "avx512vl", "avx512_bf16"]
    assert library.missing_features(tmp_path / "absent") == list(build.FEATURES)


@pytest.mark.parametrize("runs", [True, False])
def test_auto_is_the_best_that_runs(runs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "load", lambda: object() if runs else None)
    cpu = torch.device("cpu")
    assert choose_backend("auto", cpu) == ("cpu" if runs else "torch")
    assert choose_backend("torch", cpu) == "torch"
    if runs:
        assert choose_backend("cpu", cpu) == "cpu"
    else:
        with pytest.raises(InvalidConfiguration, match="--attention-backend is cpu"):
            choose_backend("cpu", cpu)
