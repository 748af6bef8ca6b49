"""Octavo's images: built from the Dockerfiles any user would build, named by content, loaded layer by layer.

The tag is a digest of everything that goes in, so changed code is a changed reference and Deployments roll, and an
image that is already there is neither built nor imported.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Collection, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from node import kind, mounts, prerequisites, retention, runtime, turns
from node.config import CHECKOUT, Settings
from node.health import healthy
from node.shell import CommandError, NodeError, last_line, run
from node.steps import step

_BUILD_TIMEOUT = 1800.0
_BASE = "localhost/octavo-base:bookworm"
# Layers in an OCI layout are always compressed; this is the fastest way, and half the disk of plain tar.
_COMPRESSION = ("--compression-format=zstd", "--compression-level=1")
_CA_BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")
_UV_CACHE_IN_BUILD = "/host/uv-cache"


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
        digest = hashlib.sha256()
        for file in self._files():
            digest.update(f"{file.relative_to(CHECKOUT)}\0{file.stat().st_size}\0".encode())
            digest.update(file.read_bytes())
        tag = "-".join(part for part in (digest.hexdigest()[:12], self.variant) if part)
        return f"localhost/{self.name}:{tag}"

    @property
    def labels(self) -> list[str]:
        """Options of a build."""
        return [f"--label=org.opencontainers.image.version={self.variant}"] if self.variant else []

    def _files(self) -> list[Path]:
        found = [self.dockerfile]
        for path in self.inputs:
            found += [path] if path.is_file() else [item for item in path.rglob("*") if item.is_file()]
        return sorted(file for file in found if "__pycache__" not in file.parts)


def _image(part: str) -> Image:
    folder = CHECKOUT / part
    requirements = CHECKOUT / "requirements" / f"{part}.txt"
    return Image(f"octavo-{part}", folder / "Dockerfile", (folder / f"octavo_{part}", requirements))


IMAGES = {part: _image(part) for part in ("engine", "operator")}


def build(settings: Settings, image: Image) -> str:
    """Build an image with Docker where its engine runs, else with buildah; returns its reference."""
    reference = image.reference
    log = settings.cache / "logs" / f"{image.name}.log"
    log.unlink(missing_ok=True)
    builder = "Docker" if kind.docker_runs() else "buildah"
    if builder == "buildah":
        prerequisites.ensure_tools(prerequisites.IMAGE_TOOLS)
        _ensure_base(settings)
    with step(f"build {reference} with {builder}") as progress:
        progress.follow(lambda: last_line(log))
        if builder == "buildah":
            _build_with_buildah(settings, image, reference, log)
        else:
            target = ("-t", reference, "-f", str(image.dockerfile), str(CHECKOUT))
            command = ["docker", "build", *_secret(), *image.labels, *target]
            run(command, log=log, env={"DOCKER_BUILDKIT": "1"}, timeout=_BUILD_TIMEOUT)
    return reference


def build_missing(settings: Settings, wanted: Iterable[Image]) -> None:
    """Build what neither the node, as far as it can be asked, nor the builder's own store has."""
    there = _built(settings)
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
        if reference not in _built(settings):
            build(settings, image)
        with step(f"import {reference}"):
            if kind.docker_runs():
                _import_from_docker(settings, reference)
            else:
                _import_from_buildah(settings, reference)
    _drop_old(settings, reference)
    return reference


def _drop_old(settings: Settings, reference: str) -> None:
    """Remove old images of ours. One that a build or a container holds at this moment goes another time."""
    name = reference.rpartition(":")[0]
    kept = retention.loaded(settings, reference) | runtime.in_use(settings)
    with suppress(CommandError):
        runtime.remove(settings, _others(runtime.references(settings), name, kept))
    if not kind.docker_runs():
        for old in _others(_built(settings), name, kept):
            with suppress(CommandError):
                _buildah(settings, "rmi", old)


def _others(references: Collection[str], name: str, kept: Collection[str]) -> list[str]:
    return sorted(item for item in references if item.rpartition(":")[0] == name and item not in kept)


def _built(settings: Settings) -> set[str]:
    """What the builder's own store holds of ours."""
    if kind.docker_runs():
        names = run(["docker", "images", "--format={{.Repository}}:{{.Tag}}", "localhost/*"])
    elif shutil.which("buildah") is None:
        names = ""
    else:
        names = _buildah(settings, "images", "--format={{.Name}}:{{.Tag}}", "--filter=dangling=false")
    return set(names.split())


def current(_: Settings, image: Image) -> str:
    """The reference an image has with the sources as they are."""
    return image.reference


def _secret() -> list[str]:
    return [f"--secret=id=ca,src={_CA_BUNDLE}"] if _CA_BUNDLE.exists() else []


def _import_from_docker(settings: Settings, reference: str) -> None:
    with tempfile.TemporaryDirectory(dir=settings.cache) as scratch:
        archive = Path(scratch, "image.tar")
        run(["docker", "save", "-o", archive, reference], timeout=_BUILD_TIMEOUT)
        runtime.ctr(settings, "images", "import", str(archive))


def _ensure_base(settings: Settings) -> None:
    """The Debian image below ours, made with debootstrap: there is no registry to pull it from."""
    with _clean_store(settings):  # before one looks: another build may be making it
        try:
            _buildah(settings, "inspect", "--type", "image", _BASE)
        except CommandError:
            _make_base(settings)


def _make_base(settings: Settings) -> None:
    with step(f"make base image {_BASE} with debootstrap") as progress, _scratch(settings) as scratch:
        log = settings.cache / "logs" / "debootstrap.log"
        progress.follow(lambda: last_line(log))
        root = Path(scratch, "root")
        run(["debootstrap", "--variant=minbase", "bookworm", root], log=log, timeout=_BUILD_TIMEOUT)
        shutil.rmtree(root / "var" / "cache" / "apt", ignore_errors=True)
        dockerfile = Path(scratch, "Dockerfile")
        dockerfile.write_text("FROM scratch\nCOPY root /\n")
        _buildah(settings, "build", "-t", _BASE, "-f", str(dockerfile), scratch)


def _build_with_buildah(settings: Settings, image: Image, reference: str, log: Path) -> None:
    uv_cache = Path(os.environ.get("UV_CACHE_DIR", Path.home() / ".cache" / "uv"))
    uv_cache.mkdir(parents=True, exist_ok=True)
    # The host's own download cache: gigabytes of wheels that its environment for tests has, too.
    shared = (f"--volume={uv_cache}:{_UV_CACHE_IN_BUILD}", f"--build-arg=UV_CACHE_DIR={_UV_CACHE_IN_BUILD}")
    options = ("--layers", "--network=host", f"--build-arg=BASE={_BASE}", *_secret(), *shared)
    files = (f"--ignorefile={image.dockerfile}.dockerignore", "-t", reference, "-f", str(image.dockerfile))
    with _clean_store(settings):
        _buildah(settings, "build", *options, *image.labels, *files, str(CHECKOUT), log=log)


@contextmanager
def _clean_store(settings: Settings) -> Iterator[None]:
    """A turn that begins, and ends if it fails, with nothing at work in the builder's store.

    A build that fails or is killed can leave a container with a mounted root, which nothing else would take away: the
    cache could not be deleted.
    """
    with _turn(settings):
        _sweep(settings)
        try:
            yield
        except BaseException:
            with suppress(NodeError):  # the build's own error says more
                _sweep(settings)
            raise


def _turn(settings: Settings) -> AbstractContextManager[None]:
    """One at a time builds in the builder's store or pushes from it: whatever else is at work there was left over."""
    return turns.taken(settings.cache / "buildah.lock", "another build is at work; waiting for it")


def _sweep(settings: Settings) -> None:
    store = _store(settings)
    if store.exists():
        _buildah(settings, "rm", "--all")
        mounts.release(store)


def _import_from_buildah(settings: Settings, reference: str) -> None:
    """Through an OCI layout where an empty file stands for each layer the node has, so that buildah leaves it out."""
    present = runtime.layers(settings)
    with _scratch(settings) as layout:
        blobs = Path(layout, "blobs", "sha256")
        blobs.mkdir(parents=True)
        for uncompressed in present:
            (blobs / _hexadecimal(uncompressed)).touch()
        with _turn(settings):
            _buildah(settings, "push", *_COMPRESSION, reference, f"oci:{layout}")
        (entry,) = json.loads(Path(layout, "index.json").read_text())["manifests"]
        manifest = json.loads((blobs / _hexadecimal(entry["digest"])).read_text())
        # A stand-in goes by the digest of the uncompressed layer, the node's own blob by that of the compressed one.
        known = {digest: layer.document() for digest, layer in present.items()}
        layers = [known.get(item["digest"], item) for item in manifest["layers"]]
        parts = [manifest["config"], *(item for item in manifest["layers"] if item["digest"] not in present)]
        files = [blobs / _hexadecimal(item["digest"]) for item in parts]
        runtime.import_parts(settings, reference, {**manifest, "layers": layers}, files)


def _hexadecimal(digest: str) -> str:
    return digest.removeprefix("sha256:")


def _buildah(settings: Settings, *arguments: str, log: Path | None = None) -> str:
    store = _store(settings)
    store.mkdir(parents=True, exist_ok=True)
    command = ("buildah", "--root", store / "storage", "--runroot", store / "run", "--storage-driver", "overlay")
    # chroot isolation needs no more of the host than root, so it also works inside containers.
    env = {"BUILDAH_ISOLATION": "chroot", "TMPDIR": str(store)}
    return run([*command, *arguments], log=log, env=env, timeout=_BUILD_TIMEOUT)


def _store(settings: Settings) -> Path:
    return settings.cache / "buildah"


def _scratch(settings: Settings) -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(dir=settings.cache, prefix=".partial-")
