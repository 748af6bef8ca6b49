"""Damaged, incomplete, hostile or unsupported checkpoints: a typed error that names the culprit."""

from __future__ import annotations

import errno
import json
import os
import shutil
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from octavo_engine.errors import CheckpointInvalid, ModelNotFound, ModelUnsupported, StartupError
from octavo_engine.kernels.choice import choose_attention
from octavo_engine.model.huggingface.checkpoint_files import checkpoint_files
from octavo_engine.model.loading import load_model
from octavo_engine.model.spec import read_spec
from octavo_engine.model.values.architecture import FAMILIES
from tiny_models import make_model, save_model

pytestmark = pytest.mark.engine
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
Q_PROJ = "model.layers.1.self_attn.q_proj.weight"
LAST = "model.norm.weight"  # of those in the file


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(make_model("llama"), tmp_path_factory.mktemp("good"))


@pytest.fixture(scope="module")
def good_shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(make_model("llama"), tmp_path_factory.mktemp("shards"), max_shard_size="100KB")


@pytest.fixture
def checkpoint(good: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(good, tmp_path / "checkpoint"))


@pytest.fixture
def shards(good_shards: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(good_shards, tmp_path / "shards"))


def load(path: Path) -> None:
    load_model(str(path), dtype=torch.float32, device=torch.device("cpu"), kernels=choose_attention("reference"))


def edit_config(directory: Path, **changes: Any) -> None:
    file = directory / "config.json"
    config = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({key: value for key, value in config.items() if value is not ...}))


def edit_tensors(directory: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(directory / WEIGHTS)
    change(tensors)
    save_file(tensors, directory / WEIGHTS)


def edit_header(directory: Path, change: Callable[[dict[str, Any]], object]) -> None:
    data = (directory / WEIGHTS).read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    change(header)
    text = json.dumps(header).encode()
    (directory / WEIGHTS).write_bytes(struct.pack("<Q", len(text)) + text + data[8 + size :])


def shift(tensor: dict[str, Any], by: int) -> None:
    tensor["data_offsets"] = [place + by for place in tensor["data_offsets"]]


def edit_index(directory: Path, change: Callable[[dict[str, str]], object]) -> None:
    index = json.loads((directory / INDEX).read_text())
    change(index["weight_map"])
    (directory / INDEX).write_text(json.dumps(index))


def test_sound_checkpoints_load(checkpoint: Path, shards: Path) -> None:
    load(checkpoint)
    load(shards)
    assert len(list(shards.glob("*.safetensors"))) > 1


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda tensors: tensors.pop(Q_PROJ), Q_PROJ),
        (lambda tensors: tensors.update({"model.layers.9.extra": torch.zeros(2)}), "model.layers.9.extra"),
        (lambda tensors: tensors.update({Q_PROJ: torch.zeros(48, 47)}), Q_PROJ),
        (lambda tensors: tensors.update({Q_PROJ: torch.zeros(48 * 48)}), Q_PROJ),
    ],
    ids=["missing", "extra", "shape", "flat"],
)
def test_tensors_that_do_not_fit_the_config(change: Callable[[Any], object], named: str, checkpoint: Path) -> None:
    edit_tensors(checkpoint, change)
    with pytest.raises(CheckpointInvalid, match=named):
        load(checkpoint)


def test_integers_are_no_weights(checkpoint: Path) -> None:
    edit_tensors(checkpoint, lambda tensors: tensors.update({Q_PROJ: torch.zeros(48, 48, dtype=torch.int8)}))
    with pytest.raises(ModelUnsupported, match=Q_PROJ):
        load(checkpoint)


@pytest.mark.parametrize("length", [0, 4, 8, 100, 5000, -1])
def test_a_truncated_file(length: int, checkpoint: Path) -> None:
    data = (checkpoint / WEIGHTS).read_bytes()
    (checkpoint / WEIGHTS).write_bytes(data[:length])
    with pytest.raises(CheckpointInvalid, match=WEIGHTS):
        load(checkpoint)


@pytest.mark.parametrize(
    "change",
    [
        lambda header: header[Q_PROJ].update(data_offsets=header["lm_head.weight"]["data_offsets"]),
        lambda header: [shift(tensor, 4) for name, tensor in header.items() if name == LAST],
        lambda header: [shift(tensor, 4) for name, tensor in header.items() if name != "__metadata__"],
        lambda header: header.pop(LAST),
        lambda header: header[Q_PROJ].update(shape=[48, 47]),
        lambda header: header[Q_PROJ].update(dtype="BF16"),
        lambda header: header[Q_PROJ].update(shape=[48.0, 48]),
        lambda header: header[Q_PROJ].update(shape=48),
        lambda header: header[Q_PROJ].pop("data_offsets"),
        lambda header: header.update({Q_PROJ: []}),
        lambda header: header[Q_PROJ].update(data_offsets=[0, 1 << 60]),
        lambda header: header[Q_PROJ].update(data_offsets=[-1, 4]),
        lambda header: header[Q_PROJ].update(dtype="F31"),
        lambda header: header[Q_PROJ].update(shape=[1 << 40, 1 << 40]),
        lambda header: header.update(
            {f"t{i}": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]} for i in range(100_000)}
        ),
    ],
    ids=[
        *("overlap", "gap", "late", "unclaimed", "short", "narrow", "fraction", "no shape", "no place", "no object"),
        *("beyond", "negative", "dtype", "huge", "many"),
    ],
)
def test_a_lying_header(change: Callable[[Any], object], checkpoint: Path) -> None:
    edit_header(checkpoint, change)
    with pytest.raises(CheckpointInvalid, match=WEIGHTS):
        load(checkpoint)


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"null", b'{"a": NaN}', b"\xff\xfe", b"[" * 5000], ids=str)
def test_a_header_that_is_no_object(text: bytes, checkpoint: Path) -> None:
    (checkpoint / WEIGHTS).write_bytes(struct.pack("<Q", len(text)) + text)
    with pytest.raises(CheckpointInvalid, match=WEIGHTS):
        load(checkpoint)


def test_a_tensor_that_is_described_twice(checkpoint: Path) -> None:
    """Readers differ in which description they take; with one of them this file would be another model."""
    data = (checkpoint / WEIGHTS).read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    text = json.dumps(header)[:-1] + f', "{Q_PROJ}": {json.dumps(header[Q_PROJ])}}}'
    (checkpoint / WEIGHTS).write_bytes(struct.pack("<Q", len(text)) + text.encode() + data[8 + size :])
    with pytest.raises(CheckpointInvalid, match=f"{WEIGHTS}.*twice"):
        load(checkpoint)


def test_bytes_behind_the_last_tensor(checkpoint: Path) -> None:
    with (checkpoint / WEIGHTS).open("ab") as file:
        file.write(bytes(4))
    with pytest.raises(CheckpointInvalid, match=WEIGHTS):
        load(checkpoint)


@settings(max_examples=100, deadline=None)
@given(changes=st.lists(st.tuples(st.integers(0, 2999), st.integers(0, 255)), min_size=1, max_size=6))
def test_no_damage_of_a_header_escapes_the_error_tree(
    changes: list[tuple[int, int]], good: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    place = tmp_path_factory.mktemp("fuzz")
    data = bytearray((good / WEIGHTS).read_bytes())
    for offset, value in changes:
        data[offset] = value
    (place / WEIGHTS).write_bytes(data)
    (place / "config.json").write_bytes((good / "config.json").read_bytes())
    with suppress(StartupError):  # refused, by name; or a number within the weights, or metadata
        load(place)


def test_an_unknown_architecture_is_refused_before_a_weight_file_is_opened(checkpoint: Path) -> None:
    edit_config(checkpoint, architectures=["GPT2LMHeadModel"])
    (checkpoint / WEIGHTS).write_bytes(b"")
    with pytest.raises(ModelUnsupported, match="GPT2LMHeadModel.*" + ".*".join(FAMILIES)):
        load(checkpoint)


def test_a_header_that_claims_to_be_huge(checkpoint: Path) -> None:
    (checkpoint / WEIGHTS).write_bytes(struct.pack("<Q", 1 << 62) + b"{}")
    with pytest.raises(CheckpointInvalid, match=WEIGHTS):
        load(checkpoint)


@pytest.mark.parametrize(
    "place", ["../outside.safetensors", "/etc/passwd", "sub/x.safetensors", "..", "config.json", 7]
)
def test_an_index_names_files_beside_itself_only(place: object, shards: Path) -> None:
    edit_index(shards, lambda index: index.update({Q_PROJ: place}))
    with pytest.raises(CheckpointInvalid, match="not a file beside the index"):
        load(shards)


@pytest.mark.parametrize("text", ["{}", '{"weight_map": {}}', '{"weight_map": null}'])
def test_an_index_without_files_is_damaged(text: str, shards: Path) -> None:
    (shards / INDEX).write_text(text)
    with pytest.raises(CheckpointInvalid, match=f"{INDEX} places no tensor in a file"):
        load(shards)


def test_weights_may_not_be_links_to_elsewhere(shards: Path) -> None:
    first = min(shards.glob("*.safetensors"))
    first.symlink_to(shutil.move(first, shards.parent / "elsewhere.safetensors"))
    with pytest.raises(CheckpointInvalid, match=f"{first.name} is a link"):
        load(shards)


def test_links_into_the_same_store_are_ordinary(shards: Path) -> None:
    """The Hugging Face cache: a snapshot's files are links into `blobs` beside `snapshots`."""
    store = shards.parent / "models--org--name"
    snapshot = store / "snapshots" / "0123"
    snapshot.mkdir(parents=True)
    (store / "blobs").mkdir()
    for number, file in enumerate(sorted(shards.iterdir())):
        blob = store / "blobs" / f"{number}"
        shutil.move(file, blob)
        (snapshot / file.name).symlink_to(Path("../../blobs") / blob.name)
    load(snapshot)


def test_an_index_and_its_files_must_agree(shards: Path) -> None:
    files = sorted(file.name for file in shards.glob("*.safetensors"))
    edit_index(shards, lambda index: index.update({Q_PROJ: next(f for f in files if f != index[Q_PROJ])}))
    with pytest.raises(CheckpointInvalid, match=r"model\.layers"):
        load(shards)


def test_a_shard_is_missing(shards: Path) -> None:
    first = min(shards.glob("*.safetensors"))
    first.unlink()
    with pytest.raises(CheckpointInvalid, match=first.name):
        load(shards)


def test_an_old_index_does_not_count_beside_a_single_file(shards: Path) -> None:
    """transformers saves a smaller model into the same directory, and removes the older one's shards only."""
    whole = sorted(shards.glob("model-*.safetensors"))
    (shards / WEIGHTS).write_bytes(b"of an older model")
    assert checkpoint_files(shards)[0] == whole
    save_model(make_model("llama"), shards)
    assert (shards / INDEX).is_file()
    assert checkpoint_files(shards) == ([shards / WEIGHTS], {})
    load(shards)


def test_pickles_are_refused_with_the_remedy(checkpoint: Path) -> None:
    (checkpoint / WEIGHTS).rename(checkpoint / "pytorch_model.bin")
    with pytest.raises(ModelUnsupported, match=r"pickles.*safe_serialization"):
        load(checkpoint)


def test_nothing_is_there(checkpoint: Path) -> None:
    with pytest.raises(ModelNotFound, match="no such"):
        load(checkpoint / "nowhere")
    (checkpoint / WEIGHTS).unlink()
    with pytest.raises(ModelNotFound, match="neither"):
        load(checkpoint)


@pytest.mark.parametrize("pattern", ["config.json", "generation_config.json", INDEX, "*.safetensors"])
def test_a_file_that_may_not_be_read_is_named(pattern: str, shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with files of another user; root may read everything, so the system's answer is made up here."""
    name = min(shards.glob(pattern)).name
    _refuse(monkeypatch, name)
    with pytest.raises(ModelNotFound, match=f"^{name} cannot be read: Permission denied$"):
        load(shards)


def test_so_is_a_gguf_file_and_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    _refuse(monkeypatch, "m.gguf")
    with pytest.raises(ModelNotFound, match=r"^m\.gguf cannot be read: Permission denied$"):
        load(tmp_path)
    _refuse(monkeypatch, tmp_path.name)
    with pytest.raises(ModelNotFound, match=r"cannot be read: Permission denied$"):
        load(tmp_path)


def _refuse(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Refuse to open the file of that name, or to list the directory."""
    for method in ("open", "iterdir"):
        real = getattr(Path, method)

        def guarded(place: Path, *args: Any, real: Any = real, **options: Any) -> Any:
            if place.name == name:
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(place))
            return real(place, *args, **options)

        monkeypatch.setattr(Path, method, guarded)


@pytest.mark.parametrize(
    ("changes", "kind", "named"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, ModelUnsupported, "LlamaForCausalLM"),
        ({"architectures": ...}, ModelUnsupported, "architecture"),
        ({"quantization_config": {"quant_method": "aqlm"}}, ModelUnsupported, "aqlm.*awq, gptq"),
        ({"rope_parameters": {"rope_type": "longrope", "factor": 4.0}}, ModelUnsupported, "longrope.*llama3"),
        ({"hidden_act": "gelu"}, ModelUnsupported, "gelu"),
        ({"dtype": "float8_e4m3fn"}, ModelUnsupported, "float8"),
        ({"hidden_size": -1}, CheckpointInvalid, "hidden"),
        ({"hidden_size": 48.5}, CheckpointInvalid, "hidden_size"),
        ({"hidden_size": 1 << 40}, CheckpointInvalid, "hidden"),
        ({"hidden_size": ...}, CheckpointInvalid, "hidden_size is missing"),
        ({"num_hidden_layers": 1 << 50}, CheckpointInvalid, "num_hidden_layers"),
        ({"num_attention_heads": 0}, CheckpointInvalid, "heads"),
        ({"num_key_value_heads": 4}, CheckpointInvalid, "kv_heads"),
        ({"head_dim": 7}, CheckpointInvalid, "head_dim"),
        ({"rms_norm_eps": "NaN"}, CheckpointInvalid, "rms_norm_eps"),
        ({"vocab_size": True}, CheckpointInvalid, "vocab_size"),
        ({"rope_parameters": {"rope_type": "linear", "factor": -1}}, CheckpointInvalid, "factor"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": float("nan")}}, CheckpointInvalid, "rope_theta"),
        ({"eos_token_id": "</s>"}, CheckpointInvalid, "eos_token_id"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, dict) else "",
)
def test_configs(changes: dict[str, Any], kind: type[StartupError], named: str, checkpoint: Path) -> None:
    (checkpoint / "generation_config.json").unlink()
    edit_config(checkpoint, **changes)
    with pytest.raises(kind, match=named):
        read_spec(str(checkpoint))


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "[" * 100_000, "\x00"])
def test_a_config_that_is_no_object(text: str, checkpoint: Path) -> None:
    (checkpoint / "config.json").write_text(text)
    with pytest.raises(CheckpointInvalid, match=r"config\.json"):
        read_spec(str(checkpoint))
