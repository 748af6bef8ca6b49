"""Octavo's images: built from the Dockerfiles any user would build, named by content.

The tag is a digest of everything that goes in, so changed code is a changed reference and Deployments roll, and an
image that is already there is neither built nor imported.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from node import builder, kind, linking, pruning, recipes, retention, runtime, space
from node.config import CHECKOUT, Settings
from node.health import healthy
from node.shell import NodeError, last_line, run
from node.space import GIGABYTE
from node.steps import step

# What a part of a recipe adds to an image, in GB and generously, by what it copies: what copies nothing installs Debian
# packages. Others are small.
_GIGABYTES = {
    "": 0.7,
    "requirements/engine-cuda.txt": 1.6,
    "requirements/engine-cudnn.txt": 1.6,
    "requirements/engine-torch.txt": 1.2,
    "requirements/engine-triton.txt": 0.8,
    "requirements/engine.txt": 0.3,
    "requirements/operator.txt": 0.2,
}
_SMALL = 0.05


@dataclass(frozen=True)
class Image:
    """One of our images: `inputs` are the files and folders that determine it.

    A `variant` is the same image under another tag and version label: one to upgrade to, made in a second.
    """

    name: str
    dockerfile: Path
    inputs: tuple[Path, ...]
    variant: str = ""

    @property
    def reference(self) -> str:
        """`localhost/NAME:DIGEST`, from the content of all inputs, and `-VARIANT` when it is one."""
        digest = _digest([self.dockerfile, *self.inputs])
        tag = "-".join(part for part in (digest[:12], self.variant) if part)
        return f"localhost/{self.name}:{tag}"

    @property
    def labels(self) -> list[str]:
        """Options of a build."""
        return [f"--label=org.opencontainers.image.version={self.variant}"] if self.variant else []

    @property
    def recipe(self) -> list[tuple[recipes.Part, str]]:
        """The parts of its Dockerfile, each with its key."""
        parts = recipes.parts(self.dockerfile.read_text())
        keys = recipes.keys(parts, lambda source: _digest([CHECKOUT / source], rights=True).encode())
        return list(zip(parts, keys, strict=True))

    @property
    def sizes(self) -> list[tuple[str, int]]:
        """What each part adds to the image in bytes, by its key."""
        return [(key, _size(part)) for part, key in self.recipe]


def _size(part: recipes.Part) -> int:
    return 0 if part.is_empty else int(_GIGABYTES.get(part.source, _SMALL) * GIGABYTE)


def _digest(paths: Iterable[Path], *, rights: bool = False) -> str:
    """Of files, and of folders with all that is in them, by name and content.

    Whether a builder has a layer already depends on their rights, too, which a checkout has from its user's umask.
    """
    found: list[Path] = []
    for path in paths:
        found += [path] if path.is_file() else [item for item in path.rglob("*") if item.is_file()]
    digest = hashlib.sha256()
    for file in sorted(file for file in found if "__pycache__" not in file.parts):
        digest.update(f"{file.relative_to(CHECKOUT)}\0{file.stat().st_size}\0".encode())
        digest.update(file.read_bytes())
        digest.update(f"{file.stat().st_mode:o}".encode() if rights else b"")
    return digest.hexdigest()


def _image(part: str) -> Image:
    folder = CHECKOUT / part
    requirements = sorted((CHECKOUT / "requirements").glob(f"{part}*.txt"))
    scripts = sorted(folder.glob("*.sh"))
    return Image(f"octavo-{part}", folder / "Dockerfile", (folder / f"octavo_{part}", *scripts, *requirements))


IMAGES = {part: _image(part) for part in ("engine", "operator")}


def wanted_now() -> set[str]:
    """References of our images with the sources as they are."""
    return {image.reference for image in IMAGES.values()}


def build(settings: Settings, image: Image) -> str:
    """Build an image with Docker where its engine runs, else with buildah; returns its reference."""
    reference = image.reference
    log = settings.cache / "logs" / f"{image.name}.log"
    log.unlink(missing_ok=True)
    docker = kind.docker_runs()
    if not docker:
        _ensure_room(settings, image)
        builder.ensure_base(settings)
    with step(f"build {reference} with {'Docker' if docker else 'buildah'}") as progress:
        progress.follow(lambda: last_line(log))
        if docker:
            target = ("-t", reference, "-f", str(image.dockerfile), str(CHECKOUT))
            command = ["docker", "build", *builder.secret(), *image.labels, *target]
            run(command, log=log, env={"DOCKER_BUILDKIT": "1"}, timeout=builder.BUILD_TIMEOUT)
        else:
            parts, keys = zip(*image.recipe, strict=True)
            targets = recipes.targets(parts, keys, builder.parts(settings))
            builder.build(settings, image.dockerfile, reference, log, options=image.labels, targets=targets)
            builder.note_parts(settings, reference, keys)
    return reference


def _ensure_room(settings: Settings, image: Image) -> None:
    """See to it that a build does not fill the disk in its middle."""
    needed = recipes.height(image.sizes, builder.parts(settings)) + space.SPARE
    space.ensure(settings.cache, needed, f"building {image.name}", pruning.remedies(settings, wanted_now()))


def build_missing(settings: Settings, wanted: Iterable[Image]) -> None:
    """Build what neither the node, as far as it can be asked, nor the builder's own store has."""
    there = pruning.built(settings)
    if healthy(f"unix:{settings.containerd_socket}"):
        there |= runtime.references(settings)
    for image in wanted:
        if image.reference not in there:
            build(settings, image)


def load(settings: Settings, image: Image) -> str:
    """Bring an image into the node, building it first where it is missing; returns its reference.

    Older ones of its name leave the node and the builder's store, which they would fill within days.
    """
    if kind.meant(settings):
        reference = build(settings, image)
        kind.load(settings, reference)
        return reference
    if settings.kubeconfig is not None:
        raise NodeError("images are loaded into the embedded node only; push them to a registry your cluster can reach")
    reference = image.reference
    if reference not in runtime.references(settings):
        if reference not in pruning.built(settings):
            build(settings, image)
        with step(f"load {reference}"):
            if kind.docker_runs():
                runtime.import_from(settings, ["docker", "save", reference])
            else:
                with builder.turn(settings):
                    linking.link(settings, reference, builder.image(settings, reference))
    name = reference.rpartition(":")[0]
    pruning.drop_old(settings, name, retention.loaded(settings, reference))
    return reference


def current(_: Settings, image: Image) -> str:
    """The reference an image has with the sources as they are."""
    return image.reference
