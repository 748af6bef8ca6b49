"""Plans as JSON: bytes, seconds, tokens and ratios, unrounded."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from octavo_engine.plan.estimate import Plan, with_four_bits
from octavo_engine.roofline import Rate


def render(plans: Sequence[Plan]) -> str:
    """One document: the model, and a plan for each device."""
    first = plans[0]
    model = {
        "architecture": first.spec.architecture,
        "parameters": first.parameters,
        "dtype": first.dtype,
        "quantization": _quantization(first),
        "max_model_len": first.needs.max_model_len,
    }
    return json.dumps({"model": model, "plans": [plan_document(plan) for plan in plans]}, indent=2)


def plan_document(plan: Plan) -> dict[str, Any]:
    """One device."""
    machine = plan.target.machine
    return {
        "device": {
            "name": machine.name,
            "count": plan.devices,
            "memory_bytes": plan.target.memory_bytes,
            "bandwidth_bytes_per_second": machine.bandwidth,
            "flops_per_second": machine.flops,
            "fp8_flops_per_second": plan.target.fp8_flops,
            "doubt": plan.target.doubt,
        },
        "fits": plan.cache is not None,
        "refusal": plan.refusal,
        "memory": _memory(plan),
        "prefill": [_rate(plan.prefill(length)) | {"prompt_tokens": length} for length in plan.lengths],
        "decode": [_rate(plan.decode(batch)) | {"batch": batch, "context": plan.context} for batch in plan.batches],
        "decode_turns_at": {str(length): plan.turning_batch(length) for length in plan.lengths},
        "four_bit_weights": _four_bits(plan),
    }


def _memory(plan: Plan) -> dict[str, Any]:
    needs, cache = plan.needs, plan.cache
    found: dict[str, Any] = {
        "weight_bytes": needs.weights,
        "activation_bytes": needs.activations,
        "graph_bytes": needs.graphs,
        "block_bytes": needs.geometry.block_bytes,
        "block_size": needs.geometry.block_size,
    }
    if cache is not None:
        sequences = {str(length): cache.sequences_of(length) for length in plan.lengths}
        found |= {"cache_bytes": cache.cache_bytes, "blocks": cache.blocks, "tokens": cache.tokens}
        found |= {"sequences_of": sequences}
    return found


def _rate(rate: Rate) -> dict[str, Any]:
    return {
        "tokens_per_second": rate.tokens_per_second,
        "seconds": rate.seconds,
        "bound": rate.bound.value,
        "bytes_per_token": rate.work.bytes / rate.tokens,
        "flops_per_token": rate.work.flops / rate.tokens,
    }


def _quantization(plan: Plan) -> dict[str, Any] | None:
    few = plan.spec.quantization
    return None if few is None else {"method": few.method, "bits": list(few.bits)}


def _four_bits(plan: Plan) -> dict[str, Any]:
    gained = with_four_bits(plan)
    return {
        "spared_bytes": gained.spared_bytes,
        "blocks": gained.blocks,
        "decode_one_stream_tokens_per_second": gained.single.tokens_per_second,
    }
