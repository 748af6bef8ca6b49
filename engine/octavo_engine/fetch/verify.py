"""Is a file what the source said it was? Its hash where there is one, and always its header."""

from __future__ import annotations

import hashlib
from pathlib import Path

from octavo_engine.fetch.remote import RemoteFile
from octavo_engine.model.gguf.file import GgufFile
from octavo_engine.model.huggingface.checkpoint_files import map_file
from octavo_engine.model.huggingface.safetensors_header import read_header

BLOCK_BYTES = 4 << 20


def hash_of(path: Path, algorithm: str) -> str:
    """The hex digest of a file: `sha256`, `md5`, or `git`, which is SHA-1 of a blob with its length before it."""
    if algorithm == "git":
        state = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
    else:
        state = hashlib.new(algorithm, usedforsecurity=False)
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            state.update(block)
    return state.hexdigest()


def check_header(path: Path, file: RemoteFile) -> None:
    """Read the header of a weight file at `path`; raises CheckpointInvalid naming the file."""
    if file.name.endswith(".safetensors"):
        read_header(file.name, map_file(path))
    elif file.name.endswith(".gguf"):
        GgufFile(file.name, map_file(path))
