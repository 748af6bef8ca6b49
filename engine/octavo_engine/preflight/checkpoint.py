"""A checkpoint as its headers describe it, on a disk or at a source: what a decision needs, and no weight."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from octavo_engine.errors import ModelUnsupported
from octavo_engine.fetch.directory import Directory
from octavo_engine.fetch.remote import RemoteFile
from octavo_engine.fetch.retry import Patience
from octavo_engine.fetch.selection import CONFIGS
from octavo_engine.fetch.snapshot import Snapshot, read_whole
from octavo_engine.model.fields import read_json
from octavo_engine.model.file_bytes import FileBytes
from octavo_engine.model.gguf.file import GgufFile
from octavo_engine.model.gguf.spec import spec_from_gguf
from octavo_engine.model.huggingface.checkpoint_files import INDEX, check_links, checkpoint_files, map_file
from octavo_engine.model.huggingface.config import spec_from_config
from octavo_engine.model.huggingface.safetensors_header import join_headers, read_header
from octavo_engine.model.spec import find_checkpoint
from octavo_engine.model.values.architecture import ModelSpec
from octavo_engine.preflight.remote_bytes import RemoteBytes

READ_FIRST = ("config.json", "generation_config.json", INDEX)
TOKENIZER = "tokenizer.json"
Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model that was looked at: what it is, which tensors it has, and how much of it there is."""

    spec: ModelSpec
    shapes: Shapes
    revision: str
    files: int
    total_bytes: int


def look_at_path(path: str) -> Checkpoint:
    """The checkpoint at a local path; raises StartupError as serving it would."""
    place = find_checkpoint(path)
    if place.is_file():
        spec, shapes = _gguf(GgufFile.open(place))
        return Checkpoint(spec, shapes, *_local_facts(place.parent, [place]))
    spec = spec_from_config(place)
    weights, index = checkpoint_files(place)
    check_links(place, weights)
    shapes = _safetensors({file.name: map_file(file) for file in weights}, index)
    configs = [place / name for name in (*CONFIGS, *([INDEX] if index else [])) if (place / name).is_file()]
    _check_tokenizer([file.name for file in configs])
    return Checkpoint(spec, shapes, *_local_facts(place, [*configs, *weights]))


def look_at_source(snapshot: Snapshot, patience: Patience) -> Checkpoint:
    """The checkpoint at a source: its config, its index and the headers of its files are read."""
    files = {file.name: file for file in snapshot.files}
    weights = [file for name, file in files.items() if name.endswith((".safetensors", ".gguf"))]
    contents: dict[str, FileBytes] = {file.name: _remote_bytes(snapshot, file, patience) for file in weights}
    if weights[0].name.endswith(".gguf"):
        spec, shapes = _gguf(GgufFile(weights[0].name, contents[weights[0].name]))
    else:
        with TemporaryDirectory(prefix="octavo-preflight-") as scratch:
            place = Path(scratch)
            for name in READ_FIRST:
                if name in files:
                    (place / name).write_bytes(read_whole(snapshot.source, files[name], patience))
            spec = spec_from_config(place)
            index = read_json(place / INDEX).section("weight_map").values if INDEX in files else {}
        _check_tokenizer(files)
        shapes = _safetensors(contents, index)
    return Checkpoint(spec, shapes, snapshot.revision, len(files), snapshot.total_bytes)


def _remote_bytes(snapshot: Snapshot, file: RemoteFile, patience: Patience) -> RemoteBytes:
    def read(start: int, end: int) -> bytes:
        content = patience.call(lambda: b"".join(snapshot.source.read(file, start, end)), file.name)
        patience.progress()
        return content

    return RemoteBytes(file.name, file.size, read)


def _gguf(file: GgufFile) -> tuple[ModelSpec, Shapes]:
    from octavo_engine.model.gguf.tensors import stored_bytes, tensors_of  # noqa: PLC0415 (a third of a second)

    spec, tensors = spec_from_gguf(file), tensors_of(file)
    for info in tensors.values():
        stored_bytes(file, info)  # checks type and place
    return spec, {name: info.shape for name, info in tensors.items()}


def _safetensors(contents: Mapping[str, FileBytes], index: Mapping[str, str]) -> Shapes:
    headers = {name: read_header(name, data) for name, data in contents.items()}
    return {name: tensor.shape for name, tensor in join_headers(headers, index).items()}


def _check_tokenizer(names: Collection[str]) -> None:
    if TOKENIZER not in names:
        raise ModelUnsupported(f"the checkpoint has no {TOKENIZER}; save it with a fast tokenizer of transformers")


def _local_facts(directory: Path, files: list[Path]) -> tuple[str, int, int]:
    """Revision, number and bytes of local files. The revision is the one that was fetched, if it was."""
    sizes = {file.name: file.stat().st_size for file in files}
    manifest = Directory(directory).manifest()
    if manifest is not None:
        return manifest.revision, len(sizes), sum(sizes.values())
    text = "".join(f"{name}\n{size}\n" for name, size in sorted(sizes.items()))
    return "files-" + hashlib.sha256(text.encode()).hexdigest()[:16], len(sizes), sum(sizes.values())
