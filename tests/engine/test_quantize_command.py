"""`octavo quantize` from its arguments to a checkpoint that is served, with a stand-in for the library.

The stand-in rounds weights to the nearest code, and writes what the library writes, tokenizers that it spoilt included.
"""

from __future__ import annotations

import importlib.machinery
import json
import logging
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from octavo_engine import cli, termination
from octavo_engine.errors import InvalidConfiguration
from octavo_engine.kernels.choice import choose_attention
from octavo_engine.kernels.cpu import library as cpu_library
from octavo_engine.model.loading import load_model
from octavo_engine.quantize import library
from quantized_checkpoints import Recipe, awq_config, awq_gemm, gptq, gptq_config, save_quantized
from tool_checkpoints import save_plain, sentences

pytestmark = pytest.mark.engine
META = {"offload_to_disk": True, "offload_to_disk_path": "/somewhere/here", "quantizer": ["stand-in:1"]}
Save = Callable[["StandIn", Path], None]


class StandIn:
    """A model as the library has it in its hands."""

    def __init__(self, place: str, settings: dict[str, Any], save: Save) -> None:
        self.place, self.settings, self._save = place, settings, save
        self.samples: list[dict[str, list[int]]] = []
        self.backend = ""

    def quantize(self, samples: list[dict[str, list[int]]], *, batch_size: int, backend: str) -> None:
        sys.stdout.write("a picture of a progress bar\n")  # it does
        Path("logs").mkdir()  # and that, wherever it is
        assert batch_size == 1
        self.samples, self.backend = samples, backend

    def save(self, place: str) -> None:
        self._save(self, Path(place))


def save_rounded(model: StandIn, place: Path) -> None:
    settings = model.settings
    symmetric, group = settings["sym"], settings["group_size"]
    if settings["quant_method"] == "awq":
        recipe = Recipe(awq_config(group_size=group, meta=META), awq_gemm, group=group, symmetric=symmetric)
    else:
        changes = {"bits": settings["bits"], "group_size": group, "sym": symmetric, "desc_act": settings["desc_act"]}
        recipe = Recipe(
            gptq_config(**changes, meta=META), gptq, bits=settings["bits"], group=group, symmetric=symmetric,
            by_activation=settings["desc_act"],
        )  # fmt: skip
    plain = transformers.AutoModelForCausalLM.from_pretrained(model.place, dtype=torch.float32)
    save_quantized(plain, place, recipe)
    (place / "quantize_config.json").write_text(json.dumps(recipe.config))
    (place / "tokenizer.json").write_text("{}")
    (place / "added_tokens.json").write_text('{"<more>": 64}')


class Stage:
    """A plain model, samples, and a library that does as the test says."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.model, self.out = folder / "plain", folder / "out"
        save_plain(self.model)
        (folder / "text.txt").write_text("\n\n".join(sentences()))
        self.text = folder / "text.txt"
        self.save: Save = save_rounded
        self.asked: list[StandIn] = []
        module: Any = types.ModuleType("gptqmodel")
        module.__spec__ = importlib.machinery.ModuleSpec("gptqmodel", None)
        module.BACKEND, module.QuantizeConfig = str, dict
        module.GPTQModel = types.SimpleNamespace(load=self._load)
        monkeypatch.setitem(sys.modules, "gptqmodel", module)
        monkeypatch.setattr(termination, "leave_on_signal", lambda _code: None)

    def _load(self, place: str, settings: dict[str, Any], *, trust_remote_code: bool) -> StandIn:
        assert not trust_remote_code, "a checkpoint's own code is never run"
        self.asked.append(StandIn(place, settings, self.save))
        return self.asked[-1]

    def run(self, *arguments: str) -> int:
        names = ["quantize", str(self.model), str(self.out), "--group-size", "32", "--device", "cpu"]
        return cli.main([*names, "--calibration", str(self.text), *arguments])

    @property
    def left(self) -> list[str]:
        """What is beside the model, but for what was there."""
        return sorted(entry.name for entry in self.out.parent.iterdir() if entry.name not in ("plain", "text.txt"))


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    return Stage(tmp_path, monkeypatch)


WAYS = [(), ("--bits", "8"), ("--desc-act",), ("--method", "awq")]


@pytest.mark.parametrize("arguments", WAYS, ids=lambda words: " ".join(words) or "defaults")
def test_the_result_is_the_models_own_and_can_be_loaded(
    stage: Stage, arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert stage.run(*arguments) == 0
    facts = json.loads(capsys.readouterr().out)  # and nothing else: the picture went elsewhere
    assert facts["bytes"] < facts["bytes_before"]
    assert facts["quantization"] == f"{'awq' if 'awq' in arguments else 'gptq'}, {8 if '8' in arguments else 4} bits"
    assert stage.left == ["out"]
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        assert (stage.out / name).read_bytes() == (stage.model / name).read_bytes()
    assert not (stage.out / "added_tokens.json").exists()
    backend = choose_attention("torch" if cpu_library.load() is None else "cpu")
    decoder = load_model(str(stage.out), dtype=torch.bfloat16, device=torch.device("cpu"), kernels=backend)
    assert decoder.spec.quantization is not None


def test_nothing_of_this_machine_is_in_it(stage: Stage) -> None:
    assert stage.run() == 0
    for name in ("config.json", "quantize_config.json"):
        text = (stage.out / name).read_text()
        assert "/somewhere" not in text
        assert "stand-in:1" in text


def test_the_library_gets_what_was_asked_for(stage: Stage) -> None:
    assert stage.run("--samples", "5", "--sample-tokens", "16", "--desc-act") == 0
    (asked,) = stage.asked
    wanted = {"quant_method": "gptq", "format": "gptq", "bits": 4, "group_size": 32, "desc_act": True, "sym": True}
    assert wanted.items() <= asked.settings.items()
    assert asked.settings["device"] == "cpu"
    assert asked.settings["act_group_aware"] is False
    assert asked.backend == "gptq_torch"
    assert [len(sample["input_ids"]) for sample in asked.samples] == [16] * 5
    assert all(set(sample["attention_mask"]) == {1} for sample in asked.samples)


def test_names_may_be_relative_and_the_working_directory_stays_clean(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(stage.out.parent)
    names = ["quantize", "plain", "out", "--group-size", "32", "--device", "cpu", "--calibration", "text.txt"]
    assert cli.main(names) == 0
    assert stage.left == ["out"]
    assert Path.cwd() == stage.out.parent


def test_what_it_says_of_the_samples(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "octavo_engine"):
        assert stage.run() == 0
    assert "few samples" in caplog.text
    assert "calibration: 48 of 48 samples" in caplog.text


def fail(error: Exception) -> Save:
    def save(_model: StandIn, place: Path) -> None:
        (place / "model.safetensors").write_bytes(b"half")
        raise error

    return save


def spoil(name: str, change: Callable[[Path], object]) -> Save:
    def save(model: StandIn, place: Path) -> None:
        save_rounded(model, place)
        change(place / name)

    return save


def without_scales(file: Path) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(file)
    broken = {
        name: tensor * torch.nan if name.endswith("o_proj.scales") else tensor for name, tensor in tensors.items()
    }
    save_file(broken, file, metadata={"format": "pt"})


def as_other_bits(file: Path) -> None:
    file.write_text(file.read_text().replace('"bits": 4', '"bits": 8'))


def as_plain(file: Path) -> None:
    config = json.loads(file.read_text())
    del config["quantization_config"]
    file.write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("save", "told"),
    [
        (fail(ValueError("no such layer")), "ModelUnsupported: GPTQModel cannot quantize.*ValueError: no such layer"),
        (fail(OSError(28, "No space left on device")), "DiskFull: the disk is full"),
        (fail(torch.OutOfMemoryError("2 GiB more")), "InsufficientMemory: it does not fit.*2 GiB more"),
        (fail(ImportError("no torchao")), "InvalidConfiguration: GPTQModel cannot be loaded here.*no torchao"),
        (fail(MemoryError()), "InsufficientMemory: it does not fit"),
        (spoil("model.safetensors", Path.unlink), "ModelNotFound"),
        (spoil("model.safetensors", without_scales), "CheckpointInvalid: the scales of .*o_proj are no finite numbers"),
        (spoil("config.json", as_other_bits), "CheckpointInvalid: tensor .* has the shape"),
        (spoil("config.json", as_plain), "CheckpointInvalid: tensor .* is missing"),
    ],
    ids=["error", "disk", "device memory", "import", "memory", "no weights", "no scales", "other bits", "plain"],
)
def test_what_cannot_be_served_never_becomes_the_output(
    stage: Stage, save: Save, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    stage.save = save
    assert stage.run() == cli.CANNOT_WORK
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.partition(":")[0].isalpha()][-1:]
    assert_matches(told, line)
    assert stage.left == []


def assert_matches(pattern: str, line: str) -> None:
    with pytest.raises(AssertionError, match=pattern):
        raise AssertionError(line)


def test_without_the_library_it_says_how_to_get_it(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "gptqmodel")
    monkeypatch.setattr(library, "PACKAGE", "gptqmodel_that_nobody_has")
    assert stage.run() == cli.CANNOT_WORK
    assert "pip install 'octavo[quantize]'" in capsys.readouterr().err
    assert stage.left == []


def test_what_is_there_stays(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    stage.out.mkdir()
    (stage.out / "mine.txt").write_text("")
    assert stage.run() == cli.CANNOT_WORK
    assert "is not empty" in capsys.readouterr().err
    assert stage.left == ["out"]
    assert not stage.asked


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_devices_that_are_not_there() -> None:
    assert library.device_for("auto") == library.device_for("cpu") == "cpu"
    for name in ("cuda", "cuda:3"):
        with pytest.raises(InvalidConfiguration, match="there are 0 CUDA devices"):
            library.device_for(name)


def test_each_device_has_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [library.device_for(name) for name in ("auto", "cpu", "cuda", "cuda:1")] == [
        "cuda:0",
        "cpu",
        "cuda:0",
        "cuda:1",
    ]
    with pytest.raises(InvalidConfiguration, match="--device is cuda:2"):
        library.device_for("cuda:2")
