"""What a build leaves behind that does not come to its end, and how one that does comes into the node and leaves it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cluster_tools import wait_for
from node import builder, config, kind, linking, mounts, runtime
from patience import PATIENCE_SECONDS

pytestmark = pytest.mark.skipif(
    config.Settings.from_environment().kubeconfig is not None or kind.docker_runs(),
    reason="about images of the embedded node that buildah builds",
)
BUILD = """
import sys
from pathlib import Path
from node import builder, config

place, settings = Path(sys.argv[1]), config.Settings.from_environment()
builder.build(settings, place / "Dockerfile", "localhost/octavo-unfinished:1", place / "log")
"""


@pytest.fixture
def place(cluster: config.Settings, tmp_path: Path) -> Path:
    """A folder with a Dockerfile's surroundings: of the checkout, which is what is built from, nothing is taken."""
    builder.ensure_base(cluster)
    (tmp_path / "Dockerfile.dockerignore").write_text("*\n")
    return tmp_path


def begin(place: Path, script: str) -> subprocess.Popen[bytes]:
    """A build whose one step is `script`, in processes of its own."""
    (place / "Dockerfile").write_text(f"ARG BASE\nFROM ${{BASE}}\nRUN {script}\n")
    environment = os.environ | {"PYTHONPATH": str(config.HACK)}
    return subprocess.Popen([sys.executable, "-c", BUILD, place], env=environment, start_new_session=True)


def left(cluster: config.Settings) -> tuple[list[Path], str]:
    """What is mounted in the builder's store, and containers there."""
    mounted = mounts.below(builder.store(cluster), Path("/proc/self/mountinfo").read_text())
    return mounted, builder.buildah(cluster, "containers", "--quiet")


def test_a_build_that_fails_leaves_nothing(cluster: config.Settings, place: Path) -> None:
    assert begin(place, "exit 7").wait(PATIENCE_SECONDS) == 1
    assert "exit status 7" in (place / "log").read_text()
    # Others may be asking the store at this moment, which mounts a part of it while they do.
    wait_for(lambda: left(cluster) == ([], ""), "an empty store")


def test_what_a_killed_build_left_is_taken_away_by_the_next(cluster: config.Settings, place: Path) -> None:
    build = begin(place, f"touch {place.name} && sleep 600")
    wait_for(lambda: "STEP 2" in _text(place / "log"), "the build's step")
    wait_for(lambda: left(cluster)[1], "the build's container")
    os.killpg(build.pid, signal.SIGKILL)
    build.wait(PATIENCE_SECONDS)
    assert left(cluster)[1], "it had no time to clean up"
    with builder.clean_store(cluster):
        assert left(cluster)[1] == ""
    wait_for(lambda: left(cluster) == ([], ""), "an empty store")


def test_an_image_takes_its_room_once_and_gives_it_back(cluster: config.Settings, place: Path) -> None:
    reference = f"localhost/octavo-unfinished:{place.name}"
    (place / "Dockerfile").write_text(f"ARG BASE\nFROM ${{BASE}}\nRUN echo {place.name} > /opt/name && rm /etc/motd\n")
    builder.build(cluster, place / "Dockerfile", reference, place / "log")
    with builder.turn(cluster):
        image = builder.image(cluster, reference)
        with asked_at_the_same_time(cluster):
            linking.link(cluster, reference, image)
    top = image.layers[-1]
    assert (top.folder / "opt" / "name").stat().st_nlink == 2
    with unpacked(cluster, reference, place / "root") as root:
        assert (root / "opt" / "name").read_text().strip() == place.name
        assert (root / "etc" / "passwd").exists()
        assert not (root / "etc" / "motd").exists()
    runtime.remove(cluster, {reference})
    assert top.chain not in runtime.snapshots(cluster)
    assert (top.folder / "opt" / "name").stat().st_nlink == 1
    builder.remove(cluster, {reference})
    assert not top.folder.exists()


@contextmanager
def asked_at_the_same_time(cluster: config.Settings) -> Iterator[None]:
    """As buildah leaves its store while it answers: with the folder of its layers mounted on itself."""
    overlay = builder.store(cluster) / "storage" / "overlay"
    subprocess.run(["mount", "--bind", overlay, overlay], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", overlay], check=True)


@contextmanager
def unpacked(cluster: config.Settings, reference: str, root: Path) -> Iterator[Path]:
    """An image's files as a container of the node would see them."""
    root.mkdir()
    runtime.ctr(cluster, "images", "mount", reference, str(root))
    try:
        yield root
    finally:
        runtime.ctr(cluster, "images", "unmount", "--rm", str(root))


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""
