"""Buildah and its store: what builds images where no Docker engine runs, one at a time."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from node import layers, mounts, prerequisites, turns
from node.config import CHECKOUT, Settings
from node.shell import CommandError, NodeError, last_line, run
from node.steps import step

BUILD_TIMEOUT = 1800.0
_CA_BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")
BASE_NAME = "localhost/octavo-base"
_BASE = f"{BASE_NAME}:bookworm"
_UV_CACHE_IN_BUILD = "/host/uv-cache"
# Folders that buildah and its libraries make beside the store and remove when they end.
_SCRATCH = re.compile(r"(buildah|storage|container_images_\w+)\d+")


def references(settings: Settings) -> set[str]:
    """Names of the images in the store."""
    if shutil.which("buildah") is None:
        return set()
    return set(buildah(settings, "images", "--format={{.Name}}:{{.Tag}}", "--filter=dangling=false").split())


def build(
    settings: Settings,
    dockerfile: Path,
    reference: str,
    log: Path,
    *,
    options: Sequence[str] = (),
    targets: Sequence[str] = (),
) -> None:
    """Build an image of the checkout; what it prints goes to `log`. Raises CommandError.

    Of a build's stages those of `targets` are built one by one before, so that each gives back what it needed.
    """
    uv_cache = Path(os.environ.get("UV_CACHE_DIR", Path.home() / ".cache" / "uv"))
    uv_cache.mkdir(parents=True, exist_ok=True)
    # The host's own download cache: gigabytes of wheels that its environment for tests has, too.
    shared = (f"--volume={uv_cache}:{_UV_CACHE_IN_BUILD}", f"--build-arg=UV_CACHE_DIR={_UV_CACHE_IN_BUILD}")
    surroundings = ("--format=oci", "--layers", "--network=host", f"--build-arg=BASE={_BASE}", *secret(), *shared)
    files = (f"--ignorefile={dockerfile}.dockerignore", "-f", str(dockerfile), str(CHECKOUT))
    ends = [*((f"--target={target}",) for target in targets), (*options, "-t", reference)]
    with clean_store(settings):
        for end in ends:
            buildah(settings, "build", *surroundings, *end, *files, log=log)
        # Nothing else is at work: layers without a name are of builds that failed, and of no use to this one.
        buildah(settings, "rmi", "--prune")


def ensure_base(settings: Settings) -> None:
    """The Debian image below ours, made with debootstrap: there is no registry to pull it from."""
    prerequisites.ensure_tools(prerequisites.IMAGE_TOOLS)
    with clean_store(settings):  # before one looks: another build may be making it
        try:
            buildah(settings, "inspect", "--type", "image", _BASE)
        except CommandError:
            _make_base(settings)


def image(settings: Settings, reference: str) -> layers.Built:
    """An image of the store's. Its folders are there for as long as the caller's turn lasts."""
    lists = [
        json.loads((store(settings) / "storage" / f"overlay-{part}" / f"{part}.json").read_text())
        for part in ("images", "layers")
    ]
    inspected = json.loads(buildah(settings, "inspect", "--type", "image", reference))
    return layers.built(store(settings) / "storage" / "overlay", inspected, *lists)


def note_parts(settings: Settings, reference: str, keys: Sequence[str]) -> None:
    """Note which parts of a recipe are in the store with an image, until the image goes."""
    there = references(settings)
    noted = {name: found for name, found in _noted(settings).items() if name in there}
    partial = _notes(settings).with_suffix(".partial")
    partial.write_text(json.dumps({**noted, reference: list(keys)}))
    partial.rename(_notes(settings))


def parts(settings: Settings) -> set[str]:
    """Keys of the parts of recipes that the store has and a build begins after."""
    there = references(settings)
    return {key for name, keys in _noted(settings).items() if name in there for key in keys}


def _noted(settings: Settings) -> dict[str, list[str]]:
    try:
        found: dict[str, list[str]] = json.loads(_notes(settings).read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return found


def _notes(settings: Settings) -> Path:
    """In the store's own folder, so that it goes when that does."""
    return store(settings) / "octavo-parts.json"


def remove_unnamed(settings: Settings) -> None:
    """Remove layers that no image has: what is left of builds that failed."""
    with clean_store(settings):
        buildah(settings, "rmi", "--prune")


def remove(settings: Settings, names: Iterable[str]) -> None:
    """Remove images, and the layers that nothing else has. One that a build holds goes another time."""
    for name in names:
        with suppress(CommandError):
            buildah(settings, "rmi", name)


def _make_base(settings: Settings) -> None:
    scratch_folder = tempfile.TemporaryDirectory(dir=settings.cache, prefix=".partial-")
    with step(f"make base image {_BASE} with debootstrap") as progress, scratch_folder as scratch:
        log = settings.cache / "logs" / "debootstrap.log"
        progress.follow(lambda: last_line(log))
        root = Path(scratch, "root")
        run(["debootstrap", "--variant=minbase", "bookworm", root], log=log, timeout=BUILD_TIMEOUT)
        shutil.rmtree(root / "var" / "cache" / "apt", ignore_errors=True)
        dockerfile = Path(scratch, "Dockerfile")
        dockerfile.write_text("FROM scratch\nCOPY root /\n")
        buildah(settings, "build", "-t", _BASE, "-f", str(dockerfile), scratch)


def secret() -> list[str]:
    """Options of a build that lend it the host's authorities, for a proxy that has one of its own."""
    return [f"--secret=id=ca,src={_CA_BUNDLE}"] if _CA_BUNDLE.exists() else []


@contextmanager
def clean_store(settings: Settings) -> Iterator[None]:
    """A turn that begins, and ends if it fails, with nothing at work in the store.

    A build that fails or is killed can leave a container with a mounted root, which nothing else would take away: the
    cache could not be deleted.
    """
    with turn(settings):
        _sweep(settings)
        try:
            yield
        except BaseException:
            with suppress(NodeError):  # the build's own error says more
                _sweep(settings)
            raise


def turn(settings: Settings) -> AbstractContextManager[None]:
    """One at a time builds in the store or reads its layers: whatever else is at work there was left over."""
    return turns.taken(settings.cache / "buildah.lock", "another build is at work; waiting for it")


def _sweep(settings: Settings) -> None:
    place = store(settings)
    if place.exists():
        buildah(settings, "rm", "--all")
        mounts.release(place)
        for folder in filter(_is_scratch, place.iterdir()):
            shutil.rmtree(folder, ignore_errors=True)


def _is_scratch(folder: Path) -> bool:
    """Whether a build or a commit had it for itself: packed layers of gigabytes, if it was killed."""
    return _SCRATCH.fullmatch(folder.name) is not None


def buildah(settings: Settings, *arguments: str, log: Path | None = None) -> str:
    """Run buildah on the store; with `log`, all that it prints goes there."""
    place = store(settings)
    place.mkdir(parents=True, exist_ok=True)
    command = ("buildah", "--root", place / "storage", "--runroot", place / "run", "--storage-driver", "overlay")
    # chroot isolation needs no more of the host than root, so it also works inside containers.
    env = {"BUILDAH_ISOLATION": "chroot", "TMPDIR": str(place)}
    return run([*command, *arguments], log=log, env=env, timeout=BUILD_TIMEOUT)


def store(settings: Settings) -> Path:
    """Where buildah keeps its images, and what it needs for a moment."""
    return settings.cache / "buildah"
