"""Compiling ahead of time, beside others, and where it is not possible."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from octavo_engine.assembly import choose_backend
from octavo_engine.errors import InvalidConfiguration
from octavo_engine.kernels.cpu import build, library, targets
from octavo_engine.runtime.host import SPIN_COUNT
from patience import PATIENCE_SECONDS

pytestmark = pytest.mark.engine
AVX2 = next(target for target in targets.TARGETS if target.name == "avx2")


@pytest.fixture
def recipe() -> build.Recipe:
    return build.Recipe.here(targets.PLAIN)


@pytest.fixture
def fresh() -> Iterator[None]:
    """`library.load` as a new process finds it."""
    library.load.cache_clear()
    yield
    library.load.cache_clear()


def test_they_run_wherever_there_is_a_compiler(fresh: None) -> None:
    """Else the kernels' own tests are skipped: no build that fails may be the reason."""
    assert library.load() is not None


def test_an_image_has_a_library_for_every_processor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build.Recipe, "_compile", lambda recipe, scratch: (scratch / recipe.name).touch())
    found = build.build_all(tmp_path / "new")
    assert sorted(tmp_path.glob("new/*")) == sorted(found)
    assert [path.name.split("-")[1] for path in found] == [target.name for target in targets.compilable()]


@pytest.mark.parametrize("target", targets.compilable(), ids=lambda target: target.name)
def test_every_target_compiles(target: targets.Target) -> None:
    """Those too that this processor cannot run. One that was compiled before is made of these sources: see its name."""
    assert build.built(target).stat().st_size > 0


def test_concurrent_builds_leave_one_whole_library(
    recipe: build.Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "FLAGS", tuple(flag for flag in build.FLAGS if flag != "-O3"))  # in half the time
    with ThreadPoolExecutor(2) as pool:
        places = set(pool.map(recipe.compile, [tmp_path] * 2))
    assert list(tmp_path.iterdir()) == [*places]
    compiled = str(tmp_path / recipe.name)
    code = f"import torch, ctypes; print(ctypes.CDLL({compiled!r}).octavo_linear_bfloat16 is not None)"
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=True
    )
    assert answer.stdout.strip() == "True"


def test_a_library_that_is_there_is_not_compiled_again(
    recipe: build.Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / recipe.name).touch()
    monkeypatch.setattr(build.Recipe, "_compile", lambda *_: pytest.fail("compiled again"))
    assert recipe.compile(tmp_path) == tmp_path / recipe.name
    monkeypatch.setattr(build, "PREBUILT", tmp_path)
    assert build.built(recipe.target) == tmp_path / recipe.name


def test_the_name_follows_target_flags_and_compiler(recipe: build.Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    names = {recipe.name, replace(recipe, compiler=sys.executable).name, replace(recipe, target=AVX2).name}
    monkeypatch.setattr(build, "FLAGS", (*build.FLAGS, "-g"))
    assert len(names | {replace(recipe).name}) == 4


def test_a_cache_that_others_can_write_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert build.private_cache().stat().st_mode & 0o077 == 0
    build.private_cache().chmod(0o777)
    with pytest.raises(build.BuildFailed, match="written by others"):
        build.private_cache()


@pytest.mark.usefixtures("fresh")
def test_no_compiler_is_said_and_survived(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(build.shutil, "which", lambda _: None)
    assert library.load() is None
    (line,) = caplog.records
    assert line.levelno == logging.WARNING
    assert all(words in line.getMessage() for words in ("no C++ compiler", "twice as long"))


@pytest.mark.usefixtures("fresh")
def test_they_can_be_switched_off(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("OCTAVO_CPU_KERNELS", "off")
    with caplog.at_level(logging.INFO):
        assert library.load() is None
    assert "OCTAVO_CPU_KERNELS" in caplog.text


@pytest.mark.usefixtures("fresh")
def test_what_cannot_be_is_refused_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_CPU_KERNELS", "avx3")
    with pytest.raises(InvalidConfiguration, match="OCTAVO_CPU_KERNELS is 'avx3'"):
        choose_backend("auto", torch.device("cpu"))


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


def test_the_server_tells_openmp_how_to_wait_before_it_is_loaded() -> None:
    told = {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"}  # by whoever runs these tests
    environment = {name: value for name, value in os.environ.items() if name not in told}
    environment |= {"OMP_DISPLAY_ENV": "VERBOSE", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "octavo_engine", "serve", "/there/is/no/model"]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
    )
    assert done.returncode == 2
    assert f"GOMP_SPINCOUNT = '{SPIN_COUNT}'" in done.stderr
