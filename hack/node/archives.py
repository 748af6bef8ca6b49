"""OCI image archives written by hand: one-program images, and documents of images whose layers are there."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_LAYER = "application/vnd.oci.image.layer.v1.tar"


@dataclass(frozen=True)
class Descriptor:
    """What an OCI index or manifest says of one blob."""

    media_type: str
    digest: str
    size: int

    @staticmethod
    def of(media_type: str, content: bytes) -> Descriptor:
        """The descriptor of `content`."""
        return Descriptor(media_type, f"sha256:{hashlib.sha256(content).hexdigest()}", len(content))

    def document(self) -> dict[str, object]:
        """As it stands in JSON."""
        return {"mediaType": self.media_type, "digest": self.digest, "size": self.size}


def program_image(reference: str, program: Path, user: str, folder: str = "") -> bytes:
    """Archive of an image that holds nothing but one static program, which it runs as `user` ("uid:gid").

    The program lies in `folder`, such as `bin/`; at the top, without one.
    """
    entry = f"/{folder}{program.name}"
    layer = _layer(program, folder)
    platform = {"architecture": _architecture(program), "os": "linux"}
    settings = {"Entrypoint": [entry], "User": user, "WorkingDir": "/"}
    layers = [Descriptor.of(_LAYER, layer)]
    image = encode({**platform, "config": settings, "rootfs": {"type": "layers", "diff_ids": [layers[0].digest]}})
    manifest = encode(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": Descriptor.of(_CONFIG, image).document(),
            "layers": [item.document() for item in layers],
        }
    )
    return archive(reference, manifest, (layer, image))


def archive(reference: str, manifest: bytes, blobs: Iterable[bytes]) -> bytes:
    """An OCI archive that names `manifest` as `reference`. Blobs that the receiver can do without may be left out."""
    root = Descriptor.of(MANIFEST, manifest)
    index = {"schemaVersion": 2, "manifests": [{**root.document(), "annotations": _names(reference)}]}
    output = io.BytesIO()
    with tarfile.open(fileobj=output, mode="w") as packed:
        _add(packed, "oci-layout", encode({"imageLayoutVersion": "1.0.0"}))
        _add(packed, "index.json", encode(index))
        for content in (manifest, *blobs):
            _add(packed, f"blobs/{Descriptor.of('', content).digest.replace(':', '/')}", content)
    return output.getvalue()


def _names(reference: str) -> dict[str, str]:
    return {"io.containerd.image.name": reference, "org.opencontainers.image.ref.name": reference.rpartition(":")[2]}


def _layer(program: Path, folder: str) -> bytes:
    output = io.BytesIO()
    with tarfile.open(fileobj=output, mode="w") as archive:
        _add(archive, f"{folder}{program.name}", program.read_bytes(), mode=0o755)
    return output.getvalue()


def _add(archive: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    archive.addfile(entry, io.BytesIO(content))


def encode(document: object) -> bytes:
    """JSON in one form only, so that equal documents have equal digests."""
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def _architecture(program: Path) -> str:
    """Go's name for the machine an ELF program was built for."""
    machine = int.from_bytes(program.read_bytes()[18:20], "little")
    return {0x3E: "amd64", 0xB7: "arm64"}[machine]
