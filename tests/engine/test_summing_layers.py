"""The two orders of a decoder's layers give the same numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from octavo_engine.kernels import pointwise
from octavo_engine.kernels.choice import choose_attention
from octavo_engine.model.compute.decoder import Decoder
from octavo_engine.model.compute.layers import PlainLayers, SummingLayers, choose_layers
from octavo_engine.model.loading import load_model
from paging import prefill_logits
from tiny_models import make_model, save_model

pytestmark = pytest.mark.engine


@pytest.mark.parametrize("variant", ["qwen3", "qwen2_window", "llama_biases"])
def test_norms_may_add_to_the_residual_instead_of_products(variant: str, tmp_path) -> None:  # type: ignore[no-untyped-def]
    place = save_model(make_model(variant), tmp_path)
    products_add = load_model(
        str(place),
        dtype=torch.float32,
        device=torch.device("cpu"),
        kernels=choose_attention("reference"),
        loop="python",
    )
    norms_add = _summing(products_add)
    tokens = torch.randint(3, products_add.spec.vocab, (33,), generator=torch.Generator().manual_seed(1))
    found, wanted = (prefill_logits(decoder, tokens, [20, 1, 12]) for decoder in (norms_add, products_add))
    torch.testing.assert_close(found, wanted, atol=2e-5, rtol=1e-5)


def _summing(decoder: Decoder) -> Decoder:
    layers = decoder.layers
    assert type(layers) is PlainLayers
    summing = replace(pointwise.PLAIN, add_rms_norm=pointwise.add_rms_norm)
    chosen = choose_layers(layers.layers, layers.shape, replace(layers.kernels, pointwise=summing))
    assert type(chosen) is SummingLayers
    return replace(decoder, layers=chosen)
