"""The node's image store: what containerd holds, and bringing images into it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from pathlib import Path

from node import archives, binaries, config, prerequisites
from node.archives import Descriptor
from node.config import Settings
from node.shell import CommandError, run
from node.steps import step

_NOBODY = "65532:65532"
_IMPORT_TIMEOUT = 600.0


def ensure_own_images(settings: Settings) -> None:
    """Make and import the images the node itself runs, where they are missing."""
    programs = {
        config.PAUSE_IMAGE: binaries.pause(settings),
        config.TOOLBOX_IMAGE: prerequisites.unpacked(settings, "busybox"),
        config.COREDNS_IMAGE: binaries.installed(settings, config.COREDNS_MODULE),
    }
    present = references(settings)
    for reference, program in programs.items():
        if reference not in present:
            with step(f"import image {reference}"):
                ctr(settings, "images", "import", "-", stdin=archives.program_image(reference, program, _NOBODY))


def references(settings: Settings) -> set[str]:
    """Names of the images the node has."""
    return set(ctr(settings, "images", "list", "-q").split())


def digests(settings: Settings) -> set[str]:
    """Digests ("sha256:...") of all blobs in the store."""
    return set(ctr(settings, "content", "list", "-q").split())


def import_parts(settings: Settings, reference: str, manifest: Descriptor, files: Iterable[Path]) -> None:
    """Stream an image into the store, without the layers it has; raises CommandError when containerd refuses."""
    command = [*_ctr(settings), "images", "import", "-"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            archives.write_archive(process.stdin, reference, manifest, {}, files)
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


def share_blobs(settings: Settings, folder: Path) -> None:
    """Turn files, named by their SHA-256, into hard links to the store's own, so that gigabytes lie there once.

    Both sides treat blobs as immutable. Where the two are on different file systems, nothing changes.
    """
    store = settings.cache / "containerd" / "io.containerd.content.v1.content" / "blobs" / "sha256"
    for file in folder.iterdir():
        twin = store / file.name
        if not twin.exists() or twin.samefile(file):
            continue
        link = file.with_name(f"{file.name}.link")
        link.unlink(missing_ok=True)
        try:
            link.hardlink_to(twin)
        except OSError:
            return
        link.replace(file)
