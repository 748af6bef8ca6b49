"""What a checkpoint describes, read from its headers alone: fast enough to plan with, before any weight is touched."""

from __future__ import annotations

from pathlib import Path

from octavo_engine.errors import ModelNotFound, ModelUnsupported
from octavo_engine.model.gguf.file import GgufFile
from octavo_engine.model.gguf.spec import spec_from_gguf
from octavo_engine.model.huggingface.config import spec_from_config
from octavo_engine.model.values.architecture import ModelSpec
from octavo_engine.model.values.rope_spec import RopeSpec

__all__ = ["ModelSpec", "RopeSpec", "find_checkpoint", "read_spec"]

PICKLES = (".bin", ".pt", ".pth", ".pkl", ".ckpt")


def find_checkpoint(path: str) -> Path:
    """The `.gguf` file or the safetensors directory that `path` means.

    Raises ModelNotFound if there is none, ModelUnsupported if there are only pickles (they run code when read) or
    several `.gguf` files to choose from.
    """
    try:
        return _find(path, Path(path))
    except OSError as error:
        raise ModelNotFound(f"{path} cannot be read: {error.strerror}") from None


def _find(path: str, place: Path) -> Path:
    if place.is_file() and place.suffix == ".gguf":
        return place
    if not place.is_dir():
        raise ModelNotFound(f"{path}: no such directory or .gguf file")
    ggufs = sorted(entry for entry in place.iterdir() if entry.suffix == ".gguf")
    if any(place.glob("*.safetensors")) or any(place.glob("*.safetensors.index.json")):
        return place
    if len(ggufs) == 1:
        return ggufs[0]
    if ggufs:
        names = ", ".join(entry.name for entry in ggufs[:8])
        raise ModelUnsupported(f"{path} holds several .gguf files ({names}); name one of them")
    pickles = sorted(entry.name for entry in place.iterdir() if entry.suffix in PICKLES)
    if pickles:
        raise ModelUnsupported(
            f"{path} holds weights only as pickles ({pickles[0]}), which can run code when they are read;"
            " supported are safetensors and GGUF: save the model again with safe_serialization=True"
        )
    raise ModelNotFound(f"{path} holds neither .safetensors nor .gguf files")


def read_spec(path: str) -> ModelSpec:
    """The ModelSpec of a directory with config.json and safetensors, of a .gguf file, or of a directory with one.

    Raises ModelNotFound, ModelUnsupported or CheckpointInvalid.
    """
    place = find_checkpoint(path)
    if place.is_dir():
        return spec_from_config(place)
    return spec_from_gguf(GgufFile.open(place))
