"""How weights come into memory: progress, threads, and one copy."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from octavo_engine.errors import CheckpointInvalid
from octavo_engine.kernels.choice import choose_attention
from octavo_engine.model.huggingface.safetensors_source import SafetensorsSource
from octavo_engine.model.loading import Progress, load_model, open_checkpoint
from octavo_engine.model.tensors.parameters import parameters_of
from octavo_engine.model.weights.lazy import LazyWeights
from tiny_models import make_model, save_model

pytestmark = pytest.mark.engine
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(make_model("llama"), tmp_path_factory.mktemp("llama"))


def load(place: Path, on_progress: Progress | None = None) -> None:
    """In float16, which takes torch's own kernels."""
    load_model(
        str(place), dtype=torch.float16, device=CPU, kernels=choose_attention("reference"), on_progress=on_progress
    )


def test_progress_is_told_by_the_loading_thread_and_ends_with_all_bytes(checkpoint: Path) -> None:
    told: list[tuple[int, int, int]] = []
    before = torch.get_num_threads()
    load(checkpoint, lambda done, total: told.append((done, total, threading.get_ident())))
    assert torch.get_num_threads() == before
    done, totals, threads = zip(*told, strict=True)
    assert list(done) == sorted(done)
    assert (
        done[-1] == totals[0] == sum(tensor.nbytes for tensor in load_file(checkpoint / "model.safetensors").values())
    )
    assert (set(totals), set(threads)) == ({totals[0]}, {threading.get_ident()})


def test_a_parameter_is_stacked_from_its_parts_in_the_wanted_type_and_not_kept(checkpoint: Path) -> None:
    spec, source = open_checkpoint(str(checkpoint))
    weights = LazyWeights(parameters_of(spec), source, torch.bfloat16, CPU)
    stored = load_file(checkpoint / "model.safetensors")
    parts = [stored[f"model.layers.1.self_attn.{name}_proj.weight"] for name in "qkv"]
    once, again = weights["1.qkv.weight"], weights["1.qkv.weight"]
    assert torch.equal(once, torch.cat(parts).bfloat16())
    assert torch.equal(once, again)
    assert once.data_ptr() != again.data_ptr()
    assert weights.get("1.qkv.bias") is None


def test_a_tensor_that_cannot_be_read_ends_the_load_and_leaves_the_process_its_threads(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(source: SafetensorsSource, name: str, dtype: torch.dtype) -> torch.Tensor:
        raise CheckpointInvalid(f"tensor {name} cannot be read")

    monkeypatch.setattr(SafetensorsSource, "read", read)
    before = torch.get_num_threads()
    with pytest.raises(CheckpointInvalid, match="cannot be read"):
        load(checkpoint)
    assert torch.get_num_threads() == before
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("weights")]
