"""What `octavo quantize` is told, what it refuses before hours are spent, and what is never left behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from known_models import LLAMA_3_8B, SMOLLM2_135M
from octavo_engine import cli, termination
from octavo_engine.errors import CheckpointInvalid, DiskFull, InvalidConfiguration, ModelNotFound, ModelUnsupported
from octavo_engine.quantize.calibration import OWN, calibration_of, json_lines, paragraphs, read_texts, spread
from octavo_engine.quantize.destination import check_free, check_room, written_beside
from octavo_engine.quantize.settings import QuantizeConfig
from octavo_engine.quantize.source import check_shapes, look, same_place, weights_of
from tiny_files import CONFIG, SHAPES, safetensors


class TestSettings:
    """Flags, and what does not go together."""

    def test_two_names_are_enough(self) -> None:
        found = QuantizeConfig.parse(["/models/a", "/models/b"])
        assert (found.model, found.out) == ("/models/a", "/models/b")
        assert (found.method, found.bits, found.group_size, found.desc_act) == ("gptq", 4, 128, False)

    def test_flags_stand_for_names(self) -> None:
        found = QuantizeConfig.parse(["--out", "b", "--model", "a", "--method", "awq", "--group-size", "-1"])
        assert (found.model, found.out, found.method, found.group_size) == ("a", "b", "awq", -1)

    @pytest.mark.parametrize(
        ("arguments", "named"),
        [
            ([], "octavo quantize MODEL OUT"),
            (["a"], "octavo quantize MODEL OUT"),
            (["a", "b", "--method", "nf4"], "gptq.*awq"),
            (["a", "b", "--method", "awq", "--bits", "8"], "--bits is 8; of --method awq there are 4"),
            (["a", "b", "--bits", "3"], "--bits is 3; of --method gptq there are 4, 8"),
            (["a", "b", "--group-size", "48"], "--group-size is 48.*32, 64, 128, -1"),
            (["a", "b", "--method", "awq", "--desc-act"], "--desc-act"),
            (["a", "b", "--device", "tpu"], "--device is 'tpu'"),
            (["a", "b", "--device", "cuda:"], "--device"),
            (["a", "b", "--samples", "0"], "--samples is 0"),
            (["a", "b", "--sample-tokens", "8"], "--sample-tokens is 8"),
        ],
    )
    def test_what_makes_no_sense_is_refused(self, arguments: list[str], named: str) -> None:
        with pytest.raises(InvalidConfiguration, match=named):
            QuantizeConfig.parse(arguments)


class TestCalibration:
    """From a file to token ids."""

    def test_paragraphs_stand_between_blank_lines(self) -> None:
        assert paragraphs("one\ntwo\n\n  \n\nthree  \r\n\r\nfour\n \t\nfive\n") == ["one\ntwo", "three", "four", "five"]

    def test_lines_of_json_have_a_text(self) -> None:
        assert list(json_lines('{"text": "a\\n\\nb", "id": 1}\n\n{"text": "c"}\n')) == ["a\n\nb", "c"]

    @pytest.mark.parametrize(
        ("text", "named"),
        [
            ('{"text": "a"}\n{"text": ', "line 2 is no JSON"),
            ('\n["a"]', "line 2 is no object"),
            ('{"prompt": "a"}', 'line 1.*"text"'),
            ('{"text": 5}', 'line 1.*"text"'),
            ("[" * 100_000, "line 1 is no JSON"),
        ],
        ids=lambda value: str(value)[:20],
    )
    def test_a_wrong_line_is_named(self, text: str, named: str) -> None:
        with pytest.raises(InvalidConfiguration, match=named):
            list(json_lines(text))

    def test_samples_are_spread_over_the_whole_file(self) -> None:
        assert spread(range(10), 4) == [0, 2, 5, 7]
        assert spread(range(3), 5) == [0, 1, 2]

    def test_samples_are_cut_and_short_ones_left_out(self) -> None:
        texts = ["a" * 15, "b" * 16, "c" * 50]
        found = calibration_of(texts, lambda text: [ord(letter) for letter in text], count=9, longest=40)
        assert [len(sample) for sample in found.samples] == [16, 40]
        assert (found.tokens, found.there) == (56, 2)
        assert str(found) == "2 of 2 samples, 56 tokens"

    def test_where_all_are_short_it_says_what_is_wanted(self) -> None:
        with pytest.raises(InvalidConfiguration, match="no sample of 16 tokens"):
            calibration_of(["short", "too"], lambda text: [1] * len(text), count=9, longest=40)

    def test_the_suffix_says_how_a_file_is_read(self, tmp_path: Path) -> None:
        for name, text, wanted in (
            ("a.txt", "one\n\ntwo", ["one", "two"]),
            ("a.jsonl", '{"text": "x\\n\\ny"}', ["x\n\ny"]),
        ):
            (tmp_path / name).write_text(text)
            assert read_texts(str(tmp_path / name)) == wanted

    def test_a_file_that_cannot_be_read_is_named(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        with pytest.raises(InvalidConfiguration, match=r"none\.txt cannot be read: No such file"):
            read_texts(str(tmp_path / "none.txt"))
        (tmp_path / "picture.txt").write_bytes(b"\xff\xd8\xff")
        with pytest.raises(InvalidConfiguration, match="no text in UTF-8"):
            read_texts(str(tmp_path / "picture.txt"))
        monkeypatch.setattr("octavo_engine.quantize.calibration.MAX_BYTES", 2)
        with pytest.raises(InvalidConfiguration, match="larger than"):
            read_texts(str(tmp_path / "picture.txt"))

    def test_the_samples_of_our_own_are_there(self) -> None:
        """Each is long enough to be used, and none is there twice."""
        own = read_texts(None)
        assert OWN.endswith(".txt")
        assert len(own) >= 30
        assert len(set(own)) == len(own)
        assert min(map(len, own)) > 80


def save(folder: Path, **changes: object) -> Path:
    """A small checkpoint without weights that mean anything."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG | changes))
    (folder / "model.safetensors").write_bytes(safetensors(SHAPES))
    (folder / "tokenizer.json").write_text("{}")
    return folder


def config_of(**values: Any) -> QuantizeConfig:
    return QuantizeConfig(**{"model": "/m", "out": "/o"} | values)


class TestSource:
    """What cannot be quantized is known from headers."""

    def test_addresses_are_fetched_first(self) -> None:
        with pytest.raises(InvalidConfiguration, match="octavo fetch"):
            look(config_of(model="hf://org/name"))

    def test_nothing_there(self, tmp_path: Path) -> None:
        with pytest.raises(ModelNotFound):
            look(config_of(model=str(tmp_path / "none")))

    def test_a_gguf_file_is_none(self, tmp_path: Path) -> None:
        (tmp_path / "m.gguf").write_bytes(b"GGUF")
        for place in (tmp_path, tmp_path / "m.gguf"):
            with pytest.raises(ModelUnsupported, match=r"m\.gguf is a GGUF file.*safetensors"):
                look(config_of(model=str(place)))

    def test_what_is_quantized_is_not_quantized_again(self, tmp_path: Path) -> None:
        (save(tmp_path) / "quantize_config.json").write_text("{}")
        with pytest.raises(ModelUnsupported, match=r"quantize_config\.json.*plain model"):
            look(config_of(model=str(tmp_path)))
        (tmp_path / "quantize_config.json").unlink()
        save(tmp_path, quantization_config={"quant_method": "bitsandbytes"})
        with pytest.raises(ModelUnsupported, match="quantized by 'bitsandbytes'"):
            look(config_of(model=str(tmp_path)))

    def test_a_quantized_checkpoint_that_we_read_is_refused_too(self) -> None:
        place = Path(__file__).parents[2] / "data" / "quantized" / "gptq"
        with pytest.raises(ModelUnsupported):
            look(config_of(model=str(place)))

    def test_a_damaged_one_is_named(self, tmp_path: Path) -> None:
        save(tmp_path, num_hidden_layers=2)
        with pytest.raises(CheckpointInvalid, match=r"layers\.1\..* is missing"):
            look(config_of(model=str(tmp_path)))

    def test_weights_too_narrow_for_words_are_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ModelUnsupported, match=r"layers\.0\.self_attn\.q_proj has 16 outputs and 16 inputs"):
            look(config_of(model=str(save(tmp_path))))

    def test_products_of_layers_are_what_is_quantized(self) -> None:
        found = dict(weights_of(SMOLLM2_135M))
        assert len(found) == 7 * 30
        assert found["model.layers.0.mlp.down_proj"] == (576, 1536)
        assert not any("embed" in name or "norm" in name or "lm_head" in name for name in found)

    def test_a_group_must_divide_every_input(self) -> None:
        with pytest.raises(InvalidConfiguration, match=r"q_proj has 576 inputs, .*; use 64"):
            check_shapes(SMOLLM2_135M, config_of())
        for method in ("gptq", "awq"):
            for size in (64, 32, -1):
                check_shapes(SMOLLM2_135M, config_of(method=method, group_size=size))
            check_shapes(LLAMA_3_8B, config_of(method=method))

    def test_awq_wants_more_outputs_side_by_side(self) -> None:
        narrow = replace(SMOLLM2_135M, kv_heads=1, head_dim=32)
        check_shapes(narrow, config_of(group_size=32))
        with pytest.raises(ModelUnsupported, match=r"q_proj has 288 outputs.* for awq .* 64 and 32"):
            check_shapes(narrow, config_of(group_size=32, method="awq"))

    def test_places_that_overlap(self, tmp_path: Path) -> None:
        model = str(tmp_path / "m")
        assert same_place(model, str(tmp_path / "x" / ".." / "m"))
        assert same_place(model, str(tmp_path / "m" / "awq"))
        assert same_place(model, str(tmp_path))
        assert not same_place(model, str(tmp_path / "m-awq"))


class TestDestination:
    """Whole or not at all."""

    def test_only_what_is_empty_may_become_it(self, tmp_path: Path) -> None:
        check_free(tmp_path)
        check_free(tmp_path / "new")
        (tmp_path / "file").write_text("")
        with pytest.raises(InvalidConfiguration, match="not empty"):
            check_free(tmp_path)
        with pytest.raises(InvalidConfiguration, match="Not a directory"):
            check_free(tmp_path / "file")

    @pytest.mark.parametrize("there", [False, True])
    def test_it_is_there_when_it_is_whole(self, tmp_path: Path, there: bool) -> None:
        out = tmp_path / "deep" / "out"
        if there:
            out.mkdir(parents=True)
        with written_beside(out, 1) as scratch:
            (scratch.result / "config.json").write_text("{}")
            (scratch.spare / "layer.bin").write_text("x")
            assert not (out / "config.json").exists()
        assert [entry.name for entry in out.iterdir()] == ["config.json"]
        assert [entry.name for entry in out.parent.iterdir()] == ["out"]
        usual = tmp_path / "usual"
        usual.mkdir()
        assert out.stat().st_mode == usual.stat().st_mode

    def test_an_error_leaves_nothing(self, tmp_path: Path) -> None:
        def give_up() -> None:
            with written_beside(tmp_path / "out", 1) as scratch:
                (scratch.result / "model.safetensors").write_text("half")
                raise ModelUnsupported("no")

        with pytest.raises(ModelUnsupported):
            give_up()
        assert list(tmp_path.iterdir()) == []

    def test_what_came_meanwhile_stays(self, tmp_path: Path) -> None:
        out = tmp_path / "out"

        def arrive() -> None:
            with written_beside(out, 1):
                out.mkdir()
                (out / "mine").write_text("")

        with pytest.raises(InvalidConfiguration, match="can no longer be written"):
            arrive()
        assert [entry.name for entry in tmp_path.rglob("*")] == ["out", "mine"]

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    def test_a_signal_takes_it_along_and_then_does_what_it_did(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
    ) -> None:
        monkeypatch.chdir(tmp_path)

        class LeftError(Exception):
            pass

        def leave(*_: object) -> None:
            raise LeftError

        before = signal.signal(number, leave)
        try:
            with pytest.raises(LeftError):
                self.interrupted(Path("out"), number)
            assert list(tmp_path.iterdir()) == []
            assert signal.getsignal(number) is leave
        finally:
            signal.signal(number, before)

    def interrupted(self, out: Path, number: signal.Signals) -> None:
        with written_beside(out, 1) as scratch:
            (scratch.result / "half").write_text("")
            with contextlib.chdir(scratch.spare):  # as the library does
                os.kill(os.getpid(), number)

    def test_a_full_disk_is_known_before(self, tmp_path: Path) -> None:
        check_room(tmp_path, 1)
        with pytest.raises(DiskFull, match="GiB are free"), written_beside(tmp_path / "out", 1 << 60):
            pytest.fail("nothing is begun")
        assert list(tmp_path.iterdir()) == []

    def test_a_place_that_cannot_be_made(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with (
            pytest.raises(InvalidConfiguration, match="cannot be written"),
            written_beside(tmp_path / "file" / "out", 1),
        ):
            pytest.fail("nothing is begun")


class TestCommand:
    """At a terminal."""

    def test_errors_are_one_line_and_a_code(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(termination, "leave_on_signal", lambda _code: None)
        assert cli.main(["quantize", str(tmp_path / "none"), str(tmp_path / "out")]) == cli.CANNOT_WORK
        assert cli.main(["quantize"]) == cli.CANNOT_WORK
        assert cli.main(["quantize", str(tmp_path), str(tmp_path / "out")]) == cli.CANNOT_WORK
        lines = capsys.readouterr().err.splitlines()
        assert [line.partition(":")[0] for line in lines if "INFO" not in line] == [
            "ModelNotFound",
            "InvalidConfiguration",
            "InvalidConfiguration",
        ]

    def test_it_is_in_the_list_of_commands(self) -> None:
        assert "octavo quantize MODEL OUT" in cli.USAGE

    def test_settings_load_neither_torch_nor_the_library(self) -> None:
        code = (
            "import sys, octavo_engine.quantize.command as c\n"
            "c.QuantizeConfig.parse(['a', 'b'])\n"
            "print(sorted(name for name in ('torch', 'gptqmodel', 'transformers') if name in sys.modules))"
        )
        assert child(code) == "[]"


def child(code: str) -> str:
    paths = os.pathsep.join(path for path in sys.path if path)
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()
