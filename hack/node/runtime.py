"""The node's image store: what containerd holds, and bringing images into it."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

from node import archives, binaries, config, prerequisites, programs
from node.archives import Descriptor
from node.config import Settings
from node.shell import CommandError, run
from node.steps import step

_NOBODY = "65532:65532"
_IMPORT_TIMEOUT = 600.0
_UNPACKED = re.compile(r"^(sha256:\w+)\s.*\bcontainerd\.io/uncompressed=(sha256:\w+)", re.MULTILINE)


def ensure_own_images(settings: Settings) -> None:
    """Make and import the images the node itself runs, where they are missing."""
    images = {
        config.PAUSE_IMAGE: binaries.path(settings, programs.PAUSE),
        config.TOOLBOX_IMAGE: prerequisites.unpacked(settings, "busybox"),
        config.COREDNS_IMAGE: binaries.path(settings, programs.COREDNS),
    }
    for reference, program in images.items():
        ensure_program_image(settings, reference, program)


def ensure_program_image(settings: Settings, reference: str, program: Path, folder: str = "") -> None:
    """An image that holds one static program, made where the node has none of that name."""
    if reference not in references(settings):
        with step(f"import image {reference}"):
            ctr(settings, "images", "import", "-", stdin=archives.program_image(reference, program, _NOBODY, folder))


def references(settings: Settings) -> set[str]:
    """Names of the images the node has."""
    return set(ctr(settings, "images", "list", "-q").split())


def in_use(settings: Settings) -> set[str]:
    """Names of the images that containers of the node were made from."""
    lines = ctr(settings, "containers", "list").splitlines()[1:]
    return {line.split()[1] for line in lines}


def remove(settings: Settings, names: Iterable[str]) -> None:
    """Remove images; layers that others share stay."""
    names = list(names)
    if names:
        ctr(settings, "images", "remove", *names)


def layers(settings: Settings) -> dict[str, Descriptor]:
    """The layers in the store, by the digest of their uncompressed form, which containerd notes when it unpacks one."""
    blobs = settings.cache / "containerd" / "io.containerd.content.v1.content" / "blobs" / "sha256"
    found = {}
    for digest, uncompressed in _UNPACKED.findall(ctr(settings, "content", "list")):
        size = (blobs / digest.removeprefix("sha256:")).stat().st_size
        found[uncompressed] = Descriptor(archives.LAYER_ZSTD, digest, size)
    return found


def import_parts(settings: Settings, reference: str, manifest: Mapping[str, object], files: Iterable[Path]) -> None:
    """Stream an image into the store, without the layers it has; raises CommandError when containerd refuses."""
    content = archives.encode(manifest)
    root = Descriptor.of(archives.MANIFEST, content)
    command = [*_ctr(settings), "images", "import", "-"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            archives.write_archive(process.stdin, reference, root, {root.digest: content}, files)
            process.stdin.close()
        except BrokenPipeError:
            pass  # containerd gave up; what it printed says why
        output = process.stdout.read().decode(errors="replace")
        code = process.wait(timeout=_IMPORT_TIMEOUT)
    if code:
        raise CommandError(f"import of {reference} failed:\n{output.strip()}")


def ctr(settings: Settings, *arguments: str, stdin: bytes | None = None) -> str:
    """Run containerd's own client in the namespace where the kubelet looks."""
    return run([*_ctr(settings), *arguments], stdin=stdin, timeout=_IMPORT_TIMEOUT)


def _ctr(settings: Settings) -> list[str]:
    program = prerequisites.unpacked(settings, "containerd").with_name("ctr")
    return [str(program), "--address", str(settings.containerd_socket), "--namespace", "k8s.io"]
