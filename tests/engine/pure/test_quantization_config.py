"""What `quantization_config` says of each module; what cannot be run is refused by name, before a weight is read."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from known_models import LLAMA_3_8B, SMOLLM2_135M, spec
from octavo_engine.config import EngineConfig
from octavo_engine.devices import DEVICES
from octavo_engine.errors import CheckpointInvalid, ModelUnsupported
from octavo_engine.model.fields import Fields
from octavo_engine.model.huggingface.quantization_config import has_kv_scales, read_quantization
from octavo_engine.model.huggingface.quantization_methods.facts import MOST_PATTERNS
from octavo_engine.model.tensors.costs import bytes_spared_by_four_bits, cost_of, product_weights, weight_bytes
from octavo_engine.model.tensors.parameters import Shape, check_tensors, parameters_of
from octavo_engine.model.tensors.sharding import shard_of
from octavo_engine.model.values.name_patterns import MAX_WAYS, exactly, like, ways, within
from octavo_engine.model.values.quantization import Packing, Quantization, Scheme
from octavo_engine.plan import document, text
from octavo_engine.plan.estimate import make_plan
from octavo_engine.plan.settings import PlanConfig
from octavo_engine.plan.target import device_target

UP = "model.layers.1.mlp.up_proj"
AWQ = {"quant_method": "awq"}
GPTQ = {"quant_method": "gptq", "bits": 4}
WEIGHTS = {"num_bits": 4, "group_size": 128, "strategy": "group", "symmetric": True}


def packed(*groups: dict[str, Any], **fields: Any) -> dict[str, Any]:
    named = {
        f"group_{at}": {"targets": ["Linear"], "weights": WEIGHTS} | group for at, group in enumerate(groups or ({},))
    }
    return {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": named} | fields


def rotated(*locations: str) -> dict[str, Any]:
    """A `transform_config` with one rotation, applied in those places."""
    steps = [{"targets": ["Linear"], "location": location, "inverse": False} for location in locations]
    return {"config_groups": {"R": {"type": "hadamard", "apply": steps}}}


def read(values: dict[str, Any]) -> Quantization:
    found = read_quantization(Fields(values, "config.json: quantization_config"))
    assert found is not None
    return found


GEMM = Scheme(Packing.AWQ_GEMM, 4, 128)
FIRST = Scheme(Packing.GPTQ, 4, 128, zero_points=False)
CT = Scheme(Packing.COMPRESSED_TENSORS, 4, 128, zero_points=False)


@pytest.mark.parametrize(
    ("config", "scheme"),
    [
        (AWQ, GEMM),
        (AWQ | {"version": "GEMM", "zero_point": True, "group_size": 128}, GEMM),
        (AWQ | {"version": "gemv", "group_size": 64}, Scheme(Packing.AWQ_GEMV, 4, 64)),
        (
            AWQ | {"checkpoint_format": "gemm", "group_size": -1, "zero_point": False},
            replace(GEMM, group=None, zero_points=False),
        ),
        (AWQ | {"w_bit": 4, "q_group_size": 64, "modules_to_not_convert": None}, replace(GEMM, group=64)),
        (GPTQ, FIRST),
        (GPTQ | {"sym": False, "desc_act": True, "group_size": 32}, Scheme(Packing.GPTQ, 4, 32, by_activation=True)),
        (GPTQ | {"bits": 8, "group_size": -1, "checkpoint_format": "gptq_v2"}, Scheme(Packing.GPTQ_V2, 8, None, False)),
        (GPTQ | {"bits": 2, "format": "gptq"}, replace(FIRST, bits=2)),
        (GPTQ | {"bits": 3, "meta": {"quantizer": ["gptqmodel:2.0"]}}, replace(FIRST, bits=3)),
        (packed(), CT),
        (
            packed({"weights": {"num_bits": 8, "strategy": "channel", "symmetric": False}}),
            replace(CT, bits=8, group=None, zero_points=True),
        ),
        (packed({"weights": WEIGHTS | {"actorder": "group"}}), replace(CT, by_activation=True)),
        (packed({"weights": WEIGHTS | {"actorder": "static"}}), CT),
        (packed(transform_config=rotated("weight_input", "weight_output")), CT),
        (packed({"weights": WEIGHTS | {"actorder": None, "observer": "minmax"}, "input_activations": None}), CT),
    ],
    ids=lambda value: str(value)[:60] if isinstance(value, dict) else "",
)  # fmt: skip
def test_a_config_is_a_scheme(config: dict[str, Any], scheme: Scheme) -> None:
    assert read(config).scheme_of(UP) == scheme


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"quant_method": "bitsandbytes"}, "bitsandbytes.*awq, gptq, compressed-tensors"),
        ({}, "None.*awq"),
        (AWQ | {"bits": 3}, "bits '3'.*4"),
        (AWQ | {"version": "gemv_fast"}, "version 'gemv_fast'.*gemm, gemv"),
        (AWQ | {"version": "gemv", "group_size": 16}, "group_size '16'"),
        (GPTQ | {"bits": 5}, "bits '5'.*2, 3, 4, 8"),
        (GPTQ | {"checkpoint_format": "marlin"}, "marlin.*gptq_v2"),
        (GPTQ | {"pack_dtype": "int16"}, "pack_dtype"),
        (GPTQ | {"bits": 3, "sym": False, "meta": {"quantizer": ["gptqmodel:2.0"]}}, "gptq_v2"),
        (GPTQ | {"dynamic": {"+:(.*)+x": {}}}, "repeats a group"),
        (packed({"input_activations": {"num_bits": 8}}), "input_activations"),
        (packed({"output_activations": {"num_bits": 8}}), "output_activations"),
        (packed({"format": "float-quantized"}), "format 'float-quantized'.*pack-quantized"),
        (packed(format="int-quantized"), "int-quantized"),
        (packed({"weights": WEIGHTS | {"num_bits": 6}}), "num_bits '6'"),
        (packed({"weights": WEIGHTS | {"type": "float"}}), "type 'float'"),
        (packed({"weights": {"num_bits": 8, "strategy": "tensor"}}), "strategy 'tensor'"),
        (packed({"weights": WEIGHTS | {"actorder": "random"}}), "actorder"),
        (packed(sparsity_config={"format": "sparse-24-bitmask"}), "sparsity_config"),
        (packed(ignore=["re:" + ".*a" * 9]), "too many ways"),
        (packed(ignore=[f"re:.*{n}.*x.*" for n in range(200)]), "the patterns in ignore can match in too many ways"),
        (packed(ignore=["x"] * (MOST_PATTERNS + 1)), f"ignore has {MOST_PATTERNS + 1} patterns.*{MOST_PATTERNS}"),
        (packed({"targets": ["x"] * 10_000}), f"config_groups has 10000 patterns.*{MOST_PATTERNS}"),
        (packed(*[{}] * (MOST_PATTERNS + 1)), f"config_groups has {MOST_PATTERNS + 1} patterns"),
        (AWQ | {"modules_to_not_convert": ["x"] * 10_000}, "modules_to_not_convert has 10000 patterns"),
        (GPTQ | {"dynamic": {f"-:x{n}": {} for n in range(10_000)}}, "dynamic has 10000 patterns"),
        (GPTQ | {"dynamic": {f".*{n}.*x.*": {} for n in range(200)}}, "in dynamic can match in too many ways"),
        (GPTQ | {"modules_in_block_to_quantize": [["x"] * 5000] * 2}, "modules_in_block_to_quantize has 10000"),
        (packed(transform_config=rotated("weight_output", "input")), "location .input.*weight_input, weight_output"),
        (packed(transform_config=rotated("attn_q")), "transform_config.*R: location .attn_q"),
    ],
    ids=lambda value: str(value)[:60] if isinstance(value, dict) else "",
)
def test_what_cannot_be_run_is_refused_by_name(config: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelUnsupported, match=named):
        read(config)


@pytest.mark.parametrize(
    ("config", "named"),
    [
        (AWQ | {"group_size": 0}, "group_size is 0"),
        (AWQ | {"zero_point": "yes"}, "zero_point is yes"),
        (AWQ | {"modules_to_not_convert": "lm_head"}, "modules_to_not_convert"),
        (GPTQ | {"bits": "4"}, "bits is 4"),
        (GPTQ | {"dynamic": ["x"]}, "dynamic"),
        (GPTQ | {"modules_in_block_to_quantize": ["q_proj"]}, "list of lists"),
        (packed(config_groups={}), "config_groups"),
        (packed(config_groups={"W4A16": ["Linear"]}), "must be an object"),
        (packed({"weights": {"num_bits": 4, "strategy": "group"}}), "group_size"),
        (packed({"targets": "Linear"}), "targets"),
        (packed(transform_config={"config_groups": {"R": {"apply": "input"}}}), "R: apply is input"),
    ],
    ids=lambda value: str(value)[:60] if isinstance(value, dict) else "",
)
def test_what_makes_no_sense_is_a_damaged_config(config: dict[str, Any], named: str) -> None:
    with pytest.raises(CheckpointInvalid, match=named):
        read(config)


class TestModules:
    """Which of them are quantized."""

    def test_awq_leaves_the_head_and_what_it_is_told_to(self) -> None:
        found = read(AWQ | {"modules_to_not_convert": ["layers.1", "k_proj", "model.layers.2.mlp"]})
        plain = ["lm_head", UP, "model.layers.7.self_attn.k_proj", "model.layers.2.mlp.gate_proj"]
        assert [found.scheme_of(name) for name in plain] == [None] * 4
        for name in ("model.layers.10.mlp.up_proj", "model.layers.2.self_attn.q_proj"):
            assert found.scheme_of(name) == GEMM

    def test_gptq_leaves_the_head_unless_told_otherwise(self) -> None:
        assert read(GPTQ).scheme_of("lm_head") is None
        assert read(GPTQ | {"lm_head": True}).scheme_of("lm_head") == FIRST

    def test_gptq_has_exceptions_by_pattern(self) -> None:
        dynamic = {
            r"-:.*\.0\..*": {},
            r".*down_proj": {"bits": 8, "group_size": 64, "desc_act": True},
            r"+:model\.layers\.1\.": {"sym": False},
        }
        found = read(GPTQ | {"dynamic": dynamic})
        assert found.scheme_of("model.layers.0.mlp.down_proj") is None
        assert found.scheme_of("model.layers.1.mlp.down_proj") == replace(FIRST, bits=8, group=64, by_activation=True)
        assert found.scheme_of(UP) == replace(FIRST, zero_points=True)
        assert found.scheme_of("model.layers.2.mlp.up_proj") == FIRST

    def test_optimum_lists_the_modules(self) -> None:
        found = read(
            GPTQ | {"modules_in_block_to_quantize": [["self_attn.q_proj", "self_attn.k_proj"], ["mlp.up_proj"]]}
        )
        assert found.scheme_of(UP) == FIRST
        assert found.scheme_of("model.layers.1.self_attn.k_proj") == FIRST
        assert found.scheme_of("model.layers.1.self_attn.v_proj") is None

    def test_compressed_tensors_have_groups_of_modules_and_others_to_ignore(self) -> None:
        eight = {"targets": [r"re:.*down_proj$"], "weights": WEIGHTS | {"num_bits": 8}}
        one = {"targets": ["model.layers.1.mlp.down_proj"], "weights": WEIGHTS | {"group_size": 32}}
        found = read(packed({}, eight, one, ignore=["lm_head", "re:.*self_attn.*", "model.layers.3.mlp.up_proj"]))
        assert found.scheme_of("lm_head") is None
        assert found.scheme_of("model.layers.1.self_attn.q_proj") is None
        assert found.scheme_of("model.layers.3.mlp.up_proj") is None
        assert found.scheme_of(UP) == CT
        assert found.scheme_of("model.layers.0.mlp.down_proj") == replace(CT, bits=8)
        assert found.scheme_of("model.layers.1.mlp.down_proj") == replace(CT, group=32)

    def test_a_head_that_is_not_ignored_is_quantized(self) -> None:
        assert read(packed()).scheme_of("lm_head") == CT


class TestPatterns:
    """They come from strangers."""

    @pytest.mark.parametrize(
        "expression",
        [r"(a+)+$", r"(?:a|b)*", r"(x){1,9}", r"(a)\1", r".*a" * 9, "a?" * 30, "(a|b)" * 30, "[", "(?P=x)", "(?P<n>a)"
         "(?(n)a|b)", r"(?x)([\w.]+) +!", r"(?ix:([\w.]+) +!)", "(?x)([a-z.]+)#\n+!"],
    )  # fmt: skip
    def test_what_could_take_for_ever_is_refused(self, expression: str) -> None:
        with pytest.raises(ModelUnsupported, match="the pattern"):
            like(expression)

    @pytest.mark.parametrize(
        "expression",
        [r".*lm_head", r"model\.layers\.\d+\.mlp\.(gate|up|down)_proj$", r".*\.(?:1[0-9]|2[0-3])\..*(?:gate|up).*"],
    )
    def test_what_tools_write_is_not(self, expression: str) -> None:
        assert like(expression).expression == expression
        assert ways(expression) < MAX_WAYS // 10

    def test_names_are_whole(self) -> None:
        assert exactly("a.b").matches("a.b")
        assert not exactly("a.b").matches("a.bc")
        assert not exactly("a.b").matches("a-b")
        assert within("b.c").matches("a.b.c.d")
        assert not within("b").matches("a.bc")


QUANTIZED = spec(
    hidden=64, layers=1, heads=4, kv_heads=2, head_dim=16, intermediate=96, vocab=50, max_positions=64,
    quantization=read(AWQ | {"group_size": 32, "modules_to_not_convert": ["down_proj"]}),
)  # fmt: skip


def stored(**changes: Shape | None) -> dict[str, Shape]:
    """The tensors of QUANTIZED's checkpoint, some changed, left out (None), or added."""
    parts = [part for parts in parameters_of(QUANTIZED).values() for part in parts]
    shapes = {name: tensor.shapes[0] for part in parts for name, tensor in part.tensors.items()}
    changed = shapes | {name.replace("__", "."): shape for name, shape in changes.items()}
    return {name: shape for name, shape in changed.items() if shape is not None}


def refusal(shapes: dict[str, Shape]) -> str:
    with pytest.raises(CheckpointInvalid) as refused:
        check_tensors(QUANTIZED, parameters_of(QUANTIZED), shapes)
    return str(refused.value)


class TestTensors:
    """Packed tensors are checked as all others are."""

    UP = "model__layers__0__mlp__up_proj__"

    def test_the_right_ones_pass(self) -> None:
        shapes = stored()
        assert shapes["model.layers.0.mlp.up_proj.qweight"] == (64, 12)
        assert shapes["model.layers.0.mlp.up_proj.qzeros"] == (2, 12)
        assert shapes["model.layers.0.mlp.down_proj.weight"] == (64, 96)
        check_tensors(QUANTIZED, parameters_of(QUANTIZED), shapes)

    def test_a_missing_one_is_named(self) -> None:
        assert "up_proj.qzeros is missing" in refusal(stored(**{self.UP + "qzeros": None}))

    def test_one_of_another_shape_is_named(self) -> None:
        message = refusal(stored(**{self.UP + "scales": (4, 96)}))
        assert "up_proj.scales has the shape [4, 96]; the config says [2, 96]" in message

    def test_one_too_many_is_named(self) -> None:
        assert "down_proj.qweight is in the checkpoint" in refusal(
            stored(model__layers__0__mlp__down_proj__qweight=(96, 8))
        )
        assert "up_proj.weight is in the checkpoint" in refusal(stored(**{self.UP + "weight": (96, 64)}))

    def test_a_bias_that_the_model_has_not_passes_beside_a_quantized_weight_alone(self) -> None:
        check_tensors(QUANTIZED, parameters_of(QUANTIZED), stored(**{self.UP + "bias": (96,)}))
        assert "up_proj.bias" in refusal(stored(**{self.UP + "bias": (95,)}))
        assert "down_proj.bias" in refusal(stored(model__layers__0__mlp__down_proj__bias=(64,)))


def test_float16_is_no_type_for_a_processor_and_little_of_a_quantized_checkpoint() -> None:
    few = replace(QUANTIZED, dtype="float16")
    assert few.numbers("auto", on_host=True) == "bfloat16"
    assert few.numbers("auto", on_host=False) == few.numbers("float16", on_host=True) == "float16"
    assert replace(few, quantization=None).numbers("auto", on_host=True) == "float16"
    assert replace(few, dtype="float32").numbers("auto", on_host=True) == "float32"


class TestCosts:
    """Bytes in memory, and bytes that a step reads at least."""

    SPEC = replace(LLAMA_3_8B, quantization=read(AWQ))

    def test_a_quantized_model_takes_its_codes_and_two_numbers_a_group(self) -> None:
        products = product_weights(LLAMA_3_8B)
        plain = 2 * (8_030_261_248 - products)
        assert weight_bytes(self.SPEC, 2) == plain + products // 2 + products // 128 * 8
        assert weight_bytes(self.SPEC, 4) == 2 * plain + products // 2 + products // 128 * 8

    def test_a_step_reads_codes_scales_and_zero_points(self) -> None:
        assert cost_of(self.SPEC, 2).step_bytes == cost_of(LLAMA_3_8B, 2, four_bits=True).step_bytes
        assert cost_of(self.SPEC, 2).head_bytes == cost_of(LLAMA_3_8B, 2).head_bytes
        assert cost_of(self.SPEC, 2).token_flops == cost_of(LLAMA_3_8B, 2).token_flops

    def test_four_bits_spare_nothing_more(self) -> None:
        assert bytes_spared_by_four_bits(self.SPEC, 2) == 0
        eight = replace(LLAMA_3_8B, quantization=read(GPTQ | {"bits": 8, "sym": False}))
        assert bytes_spared_by_four_bits(eight, 2) == product_weights(LLAMA_3_8B) * (8 + 24 / 128 - 4 - 20 / 128) / 8

    def test_an_order_of_inputs_is_counted(self) -> None:
        ordered = replace(SMOLLM2_135M, quantization=read(GPTQ | {"desc_act": True}))
        inputs = 30 * (6 * 576 + 1536)
        without = replace(SMOLLM2_135M, quantization=read(GPTQ))
        assert weight_bytes(ordered, 2) - weight_bytes(without, 2) == 8 * inputs

    def test_some_inputs_in_no_order_are_plain_weights_of_a_rank(self) -> None:
        """Outputs of such a matrix are one, with their order; inputs in one group, or in order, are one as well."""
        ordered, few, rows = (
            shard_of(replace(LLAMA_3_8B, quantization=read(GPTQ | fields)), 1, 2).spec
            for fields in ({"desc_act": True}, {}, {"desc_act": True, "group_size": -1})
        )
        cut = 32 * (4096 + 14336) // 2 * 4096  # of `o_proj` and `down_proj`
        more = cut * 2 - (cut // 2 + cut // 128 * 8)
        assert weight_bytes(ordered, 2) - weight_bytes(few, 2) == more + 8 * 32 * 5 * 4096
        assert cost_of(ordered, 2).step_bytes - cost_of(few, 2).step_bytes == cut * 2 - cut * (4 * 128 + 16) // 128 // 8
        whole_rows = replace(FIRST, group=None, by_activation=True)
        for part, scheme in ((few, FIRST), (rows, whole_rows), (ordered, None)):
            assert part.quantization is not None
            assert part.quantization.scheme_of("model.layers.0.mlp.down_proj") == scheme

    def test_a_plan_counts_them_and_says_what_they_are(self) -> None:
        config = EngineConfig()
        (h100,) = (device for device in DEVICES if device.name == "H100")
        target = device_target(h100, PlanConfig(source="hf://o/m"), config, width=2)
        few, plain = (make_plan(model, config, target, context=1024) for model in (self.SPEC, LLAMA_3_8B))
        assert few.needs.weights == weight_bytes(self.SPEC, 2) < plain.needs.weights / 2.5
        assert few.decode(1).tokens_per_second > 3 * plain.decode(1).tokens_per_second
        assert few.prefill(1024).tokens_per_second == plain.prefill(1024).tokens_per_second
        shown = text.report(few)
        assert "8.03 G parameters in bfloat16 (awq, 4 bits)" in shown
        assert "would spare" not in shown
        found = json.loads(document.render([few]))["model"]
        assert (found["parameters"], found["quantization"]) == (8_030_261_248, {"method": "awq", "bits": [4]})
        assert json.loads(document.render([plain]))["model"]["quantization"] is None


KV_CACHE = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}


def test_scales_of_keys_and_values_may_come_with_weights_or_alone() -> None:
    both = packed(kv_cache_scheme=KV_CACHE | {"observer": "minmax", "block_structure": None})
    alone = {"quant_method": "compressed-tensors", "config_groups": {}, "kv_cache_scheme": KV_CACHE}
    for config, few_bits in ((both, True), (alone, False), (packed(), True), (packed(kv_cache_scheme=None), True)):
        fields = Fields(config, "config.json: quantization_config")
        assert (read_quantization(fields) is not None) == few_bits
        assert has_kv_scales(fields) == (config.get("kv_cache_scheme") is not None)
    assert not has_kv_scales(Fields({}, "config.json: quantization_config"))
    assert not has_kv_scales(Fields(AWQ | {"kv_cache_scheme": KV_CACHE}, "config.json: quantization_config"))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"num_bits": 4}, "num_bits '4'.*8"),
        ({"type": "int"}, "type 'int'.*float"),
        ({"strategy": "attn_head"}, "strategy 'attn_head'.*tensor"),
        ({"strategy": "channel"}, "strategy 'channel'.*tensor"),
        ({"dynamic": True}, "dynamic 'True'"),
        ({"symmetric": False}, "symmetric 'False'"),
    ],
    ids=str,
)
def test_other_scales_of_keys_and_values_are_refused_by_name(change: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelUnsupported, match=f"kv_cache_scheme: {named}"):
        has_kv_scales(Fields(packed(kv_cache_scheme=KV_CACHE | change), "config.json: quantization_config"))
