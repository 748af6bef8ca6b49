"""`octavo plan`: known models on known devices, as values, as text and as JSON. No torch, no weights."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from known_models import LLAMA_3_8B, QWEN25_7B, SMOLLM2_135M
from octavo_engine import cli
from octavo_engine.config import EngineConfig
from octavo_engine.devices import DEVICES
from octavo_engine.errors import InvalidConfiguration, StartupError
from octavo_engine.memory import HostRoom
from octavo_engine.plan import document, picture, text
from octavo_engine.plan.estimate import Plan, Target, curve, make_plan, with_four_bits
from octavo_engine.plan.settings import PlanConfig, PlanSettings
from octavo_engine.plan.target import device_target
from octavo_engine.roofline import Bound, Machine
from patience import PATIENCE_SECONDS
from tiny_files import CONFIG, checkpoint

BY_NAME = {device.name: device for device in DEVICES}
LLAMA_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 32,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "torch_dtype": "bfloat16",
}


def planned(spec=LLAMA_3_8B, device="H100", context=1024, config=None, **flags) -> Plan:
    engine = EngineConfig(**flags)
    target = device_target(BY_NAME[device], config or PlanConfig(source="hf://o/m"), engine, width=2)
    return make_plan(spec, engine, target, context=context)


def on_two_cores(**flags) -> Plan:
    engine = EngineConfig(**flags)
    machine = Machine(name="two cores", bandwidth=48e9, flops=600e9)
    room = HostRoom(limit=24 * 1024**3, wanted=engine.kv_cache_memory_bytes)
    target = Target(machine=machine, memory_bytes=room.limit, room=room, on_host=True)
    return make_plan(SMOLLM2_135M, engine, target, context=1024)


@pytest.mark.parametrize(
    ("spec", "device", "block_bytes"),
    [(LLAMA_3_8B, "H100", 2_097_152), (LLAMA_3_8B, "A10", 2_097_152), (QWEN25_7B, "H200", 917_504)],
    ids=["Llama-3-8B on H100", "Llama-3-8B on A10", "Qwen2.5-7B on H200"],
)
def test_the_cache_is_what_the_share_leaves(spec, device, block_bytes):
    plan = planned(spec, device)
    row = 4 * spec.hidden + 3 * spec.intermediate + 2 * (spec.query_size + 2 * spec.kv_size)
    activations = 2048 * row * 2 + 3 * 256 * spec.vocab * 4
    weights = 2 * {LLAMA_3_8B: 8_030_261_248, QWEN25_7B: 7_615_616_512}[spec]
    budget = int(BY_NAME[device].memory_bytes * 0.9) - weights - activations - plan.needs.graphs
    assert plan.cache is not None
    assert plan.cache.blocks == budget // block_bytes
    assert plan.cache.tokens == 16 * plan.cache.blocks


def test_llama_on_an_h100_in_figures():
    plan = planned()
    assert plan.parameters == 8_030_261_248
    assert plan.cache is not None
    assert (plan.cache.blocks, plan.cache.sequences_of(8192)) == (26_171, 51)
    assert plan.lengths == (128, 1024, 4096, 8192)
    assert plan.batches == (1, 2, 4, 8, 16, 32, 64, 128, 256)
    one = plan.decode(1)
    assert one.work.bytes == 2 * (8_030_261_248 - 128_256 * 4096) + 8192 + 1024 * 131_072
    assert one.tokens_per_second == pytest.approx(3.35e12 / one.work.bytes)
    assert plan.prefill(4096).bound is Bound.COMPUTE
    assert plan.prefill(128).bound is Bound.MEMORY


def test_qwen_keeps_more_in_a_smaller_cache():
    llama, qwen = planned(LLAMA_3_8B, max_model_len=8192), planned(QWEN25_7B, max_model_len=8192)
    assert llama.cache is not None
    assert qwen.cache is not None
    assert qwen.needs.geometry.token_bytes == 57_344
    assert qwen.cache.tokens / llama.cache.tokens == pytest.approx(131_072 / 57_344, rel=0.02)


def test_smollm2_on_two_cores():
    plan = on_two_cores()
    assert plan.cache is not None
    assert plan.cache.cache_bytes <= 6 * 1024**3 < plan.cache.cache_bytes + plan.needs.geometry.block_bytes
    step = plan.decode(32)
    assert step.work.bytes == 269_030_016 + 32 * (1_152 + 1024 * 23_040)
    assert 1e3 * step.seconds == pytest.approx(21.3, abs=0.1)
    assert step.bound is Bound.MEMORY


def test_what_does_not_fit_is_a_plan_with_a_reason():
    plan = planned(device="A10", gpu_memory_utilization=0.6)
    assert plan.cache is None
    assert plan.batches == ()
    assert "raise --gpu-memory-utilization to 0.76" in str(plan.refusal)
    assert "does not fit: " in text.report(plan)
    fits = planned(device="A10", gpu_memory_utilization=0.76)
    assert fits.cache is not None


def test_a_shared_device_is_planned_as_it_is_shared():
    config = PlanConfig(source="hf://o/m", held_by_others=30 * 10**9)
    assert "lower it to 0.62 or less" in str(planned(config=config).refusal)
    assert planned(config=config, gpu_memory_utilization=0.62).cache is not None
    assert planned(config=PlanConfig(source="hf://o/m", memory_bytes=40 * 10**9)).target.memory_bytes == 40 * 10**9


def test_four_bit_weights_leave_room_for_blocks():
    plan = planned()
    gained = with_four_bits(plan)
    assert gained.spared_bytes == int(6_979_321_856 * (2 - 4.15625 / 8))
    assert gained.blocks == gained.spared_bytes // 2_097_152 == 4927
    assert gained.single.seconds == pytest.approx((plan.decode(1).work.bytes - gained.spared_bytes) / 3.35e12, rel=1e-6)


def test_a_context_beyond_what_is_served_is_the_longest():
    plan = planned(context=100_000, max_model_len=2048)
    assert plan.context == 2048
    assert plan.lengths == (128, 1024, 2048)


def test_flags_that_do_not_suit_the_model_are_refused():
    with pytest.raises(InvalidConfiguration, match="made for 8192 positions"):
        planned(max_model_len=10_000)


def test_a_curve_ends_where_no_more_fits_and_never_falls():
    plan = planned()
    assert plan.cache is not None
    rates = list(curve(plan, 8192))
    assert [rates[0].tokens, rates[-1].tokens] == [1, plan.cache.sequences_of(8192)]
    speeds = [rate.tokens_per_second for rate in rates]
    assert speeds == sorted(speeds)


class TestText:
    """What a person reads."""

    def test_one_device(self):
        shown = text.report(planned())
        assert "LlamaForCausalLM, 8.03 G parameters in bfloat16" in shown
        assert "on H100: 80 GB, 3.35 TB/s, 990 TFLOP/s in bfloat16, 1.98 PFLOP/s in fp8" in shown
        assert "26,171 blocks of 16 tokens, 2.1 MB each" in shown
        assert "fits: 418,736 tokens; sequences at once: 256 of 128, 256 of 1,024, 102 of 4,096, 51 of 8,192" in shown
        assert "  128 tokens: at a batch of 438 (256 run at once here)" in shown
        assert "  1,024 tokens and more: never, K and V" in shown
        assert "4,096 tokens and more" not in shown
        assert "room for 4,927 KV blocks, 19 % more; one stream at best 696 tokens/s instead of 221" in shown
        lines = [line.split() for line in shown.splitlines()]
        assert ["1", "221", "4.52", "memory", "15,144.08", "15.55"] in lines

    def test_a_processor_has_no_fp8_and_a_process(self):
        shown = text.report(on_two_cores())
        assert "fp8" not in shown
        assert "the process" in shown
        assert "the process" not in text.report(planned())

    def test_figures_in_doubt_are_said_to_be(self):
        plan = on_two_cores()
        doubtful = replace(plan, target=replace(plan.target, doubt="others use it"))
        assert "memory is the bound\nothers use it\n" in text.report(doubtful)
        assert text.overview([doubtful]).endswith("\n\ntwo cores: others use it")
        assert json.loads(document.render([doubtful]))["plans"][0]["device"]["doubt"] == "others use it"

    def test_all_devices(self):
        shown = text.overview(
            [planned(device=name) for name in ("H200", "L40S")] + [planned(device="A10", dtype="float32")]
        )
        assert "H200 (141 GB)" in shown
        assert "A10 (24 GB)    does not fit" in shown
        assert "\n\nA10: " in shown

    @pytest.mark.parametrize(
        ("value", "shown"),
        [(0, "0 "), (999, "999 "), (999.6, "1 k"), (8.03e9, "8.03 G"), (989.5e12, "990 T"), (3.958e15, "3.96 P")],
    )
    def test_numbers_have_three_digits(self, value, shown):
        assert text.si(value) == shown


def test_the_document_has_what_the_text_has():
    plan = planned()
    found = json.loads(document.render([plan, planned(device="A10", gpu_memory_utilization=0.6)]))
    assert found["model"]["parameters"] == 8_030_261_248
    fits, does_not = found["plans"]
    assert fits["fits"] is True
    assert fits["refusal"] is None
    assert fits["memory"]["blocks"] == 26_171
    assert fits["memory"]["sequences_of"] == {"128": 256, "1024": 256, "4096": 102, "8192": 51}
    assert fits["device"]["fp8_flops_per_second"] == 1.979e15
    assert [rate["batch"] for rate in fits["decode"]] == list(plan.batches)
    assert fits["decode"][0]["bytes_per_token"] == plan.decode(1).work.bytes
    assert fits["decode"][0]["bound"] == "memory"
    assert fits["decode_turns_at"]["1024"] is None
    assert fits["decode_turns_at"]["128"] == pytest.approx(438, abs=0.5)
    assert fits["four_bit_weights"]["blocks"] == 4927
    assert does_not["fits"] is False
    assert "--gpu-memory-utilization" in does_not["refusal"]
    assert "blocks" not in does_not["memory"]


class TestSettings:
    """Flags of the plan and of `octavo serve`, in one line."""

    def test_a_pods_arguments_can_be_pasted(self):
        settings = PlanSettings.parse(
            ["m", "--device=l40s", "--max-model-len=2048", "--host=0.0.0.0", "--api-key=k", "--dtype=float16"]
        )
        assert settings.config.devices == (BY_NAME["L40S"],)
        assert (settings.engine.max_model_len, settings.engine.dtype, settings.engine.device) == (
            2048,
            "float16",
            "auto",
        )

    def test_every_device_and_the_processor_by_default(self):
        assert PlanSettings.parse(["m"]).config.devices == (*DEVICES, None)
        assert PlanSettings.parse(["m", "--device=CPU"]).config.devices == (None,)

    def test_an_address_may_stand_for_the_model(self):
        assert PlanSettings.parse(["hf://org/name"]).config.source == "hf://org/name"
        assert PlanSettings.parse(["m", "--source=hf://org/name"]).config.source == "hf://org/name"

    @pytest.mark.parametrize(
        ("args", "words"),
        [
            ([], "name a model"),
            (["m", "--device=cuda"], "--device is 'cuda'; choose one of A100-80GB, .*, cpu"),
            (["m", "--device=H100", "--picture=a.gif"], r"must end with \.svg or \.png"),
            (["m", "--picture=a.svg"], "name it by --device"),
            (["m", "--max-num-seqs=0"], "--max-num-seqs"),
            (["m", "--port=99999"], "--port"),
            (["m", "--memory-bytes=0"], "--memory-bytes"),
            (["m", "--no-such-flag"], "--no-such-flag"),
        ],
    )
    def test_wrong_flags_are_named(self, args, words):
        with pytest.raises(InvalidConfiguration, match=words):
            PlanSettings.parse(args)


class TestCommandLine:
    """What is printed, and the exit code."""

    @pytest.fixture
    def llama(self, tmp_path):
        (tmp_path / "config.json").write_text(json.dumps(LLAMA_CONFIG))
        return str(tmp_path)

    def test_a_lone_config_is_enough(self, llama, capsys):
        assert cli.main(["plan", llama, "--device=H100"]) == 0
        assert capsys.readouterr().out == text.report(planned()) + "\n"
        assert cli.main(["plan", f"{llama}/config.json", "--device=H100", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["plans"][0]["memory"]["blocks"] == 26_171

    def test_what_does_not_fit_is_shown_and_is_no_success(self, llama, capsys):
        assert cli.main(["plan", llama, "--device=A10", "--gpu-memory-utilization=0.6"]) == 2
        assert "does not fit" in capsys.readouterr().out

    def test_a_whole_checkpoint_is_checked_tensor_by_tensor(self, tmp_path, capsys):
        for name, content in checkpoint().items():
            (tmp_path / name).write_bytes(content)
        assert cli.main(["plan", str(tmp_path), "--device=A10"]) == 0
        (tmp_path / "config.json").write_text(json.dumps(CONFIG | {"hidden_size": 32}))
        assert cli.main(["plan", str(tmp_path), "--device=A10"]) == 2
        assert capsys.readouterr().err.startswith("CheckpointInvalid: ")

    def test_nothing_there_is_one_line(self, tmp_path, capsys):
        assert cli.main(["plan", str(tmp_path / "missing"), "--device=A10"]) == 2
        assert capsys.readouterr().err.startswith("ModelNotFound: ")

    def test_plans_for_accelerators_load_no_torch(self, llama):
        program = f"""
import sys
from octavo_engine.cli import main
assert main(["plan", {llama!r}, "--device=B200"]) == 0
assert not {{"torch", "transformers", "fastapi", "matplotlib"}} & set(sys.modules)
"""
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        subprocess.run(
            [sys.executable, "-c", program], check=True, env=environment, timeout=PATIENCE_SECONDS, capture_output=True
        )


class TestPicture:
    """A file that a browser or a page can show."""

    @pytest.mark.parametrize("name", ["plan.svg", "plan.png"])
    @pytest.mark.parametrize("device", ["H100", "A10"])
    def test_it_is_drawn_the_same_each_time(self, tmp_path, name, device):
        plan, first, second = planned(device=device), tmp_path / name, tmp_path / f"again-{name}"
        picture.draw(plan, first)
        picture.draw(plan, second)
        assert first.read_bytes() == second.read_bytes()
        if name.endswith(".svg"):
            shown = first.read_text(encoding="utf-8")
            assert all(words in shown for words in (device, "prefill 1,024", "decode ×1", "8,192 tokens of context"))

    def test_what_does_not_fit_has_a_roofline_all_the_same(self, tmp_path):
        picture.draw(planned(device="A10", gpu_memory_utilization=0.6), tmp_path / "p.svg")
        assert "decode ×1" in (tmp_path / "p.svg").read_text(encoding="utf-8")

    def test_a_place_that_cannot_be_written_is_named(self, tmp_path):
        with pytest.raises(StartupError, match=r"--picture: .* cannot be written: No such file or directory"):
            picture.draw(planned(), Path(tmp_path / "missing" / "p.svg"))

    def test_without_matplotlib_the_way_to_get_it_is_told(self, tmp_path, monkeypatch, capsys):
        monkeypatch.setattr(picture.importlib.util, "find_spec", lambda name: None)
        assert cli.main(["plan", str(tmp_path), "--device=H100", "--picture=p.svg"]) == 2
        assert "--picture needs matplotlib: pip install 'octavo[plan]'" in capsys.readouterr().err


def test_a_plan_is_for_the_flags_it_was_given():
    few = planned(max_num_seqs=4)
    assert few.cache is not None
    assert few.cache.blocks == 4 * 512
    assert few.batches == (1, 2, 4)
    small = replace(few, config=EngineConfig(max_num_batched_tokens=64))
    assert small.prefill(1024).seconds > few.prefill(1024).seconds


class TestDocument:
    """docs/PLANNING.md shows what is printed, and the devices that there are."""

    PAGE = (Path(__file__).resolve().parents[3] / "docs" / "PLANNING.md").read_text(encoding="utf-8")

    def test_the_plan_that_it_shows_is_the_one_that_is_printed(self):
        assert f"$ octavo plan llama-3-8b --device H100\n{text.report(planned())}\n```" in self.PAGE

    def test_so_is_the_table_of_all_devices(self):
        shown = text.overview([planned(device=device.name) for device in DEVICES])
        rows = {" ".join(line.split()) for line in self.PAGE.splitlines()}
        assert {" ".join(line.split()) for line in shown.splitlines()} <= rows

    @pytest.mark.parametrize("device", DEVICES, ids=lambda device: device.name)
    def test_every_device_has_its_row(self, device):
        (row,) = [line for line in self.PAGE.splitlines() if line.startswith(f"| {device.name} ")]
        figures = [cell.strip().replace(",", "") for cell in row.split("|")[2:-1]]
        rates = [f"{device.bf16_flops / 1e12:g}", f"{(device.fp8_flops or 0) / 1e12:g}"]
        assert figures[:2] == [f"{device.memory_bytes / 1e9:g} GB", f"{device.bandwidth / 1e9:g} GB/s"]
        assert figures[2] == f"{rates[0]} TFLOP/s"
        assert figures[3] == (f"{rates[1]} TFLOP/s" if device.fp8_flops else "")
