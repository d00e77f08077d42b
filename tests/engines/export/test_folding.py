"""Folding: fewer operations, the same network."""

from __future__ import annotations

import pytest
import torch
from timm.layers.layer_scale import LayerScale
from torch import nn

from keepad.assembly import with_fresh_parts
from keepad.engines.export.folding import folded
from keepad.network import Network
from random_weights import short_backbone


def random_network(name: str) -> Network:
    backbone, spec = short_backbone(name, 5)
    for module in backbone.modules():  # untrained norms and scales are the identity
        if isinstance(module, nn.LayerNorm | LayerScale):
            for parameter in module.parameters():
                parameter.data = torch.rand_like(parameter) + 0.3
    rows, columns = backbone.patch
    return with_fresh_parts(backbone, spec, seed=2, image_size=(4 * rows, 6 * columns))


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "vit_small_patch14_dinov2", "vit_small_patch16_dinov3"])
@torch.inference_mode()
def test_every_block_of_the_folded_network_computes_the_same(name: str) -> None:
    network = random_network(name)
    images = torch.rand(2, 3, *network.image_size, generator=torch.Generator().manual_seed(0))
    exact, other = network.backbone, folded(network).backbone
    tokens = exact.embed(images)
    torch.testing.assert_close(other.embed(images).x, tokens.x, rtol=1e-4, atol=1e-4)
    live = [torch.tensor([0, 5, 7]), torch.tensor([2])]
    torch.testing.assert_close(other.embed_some(images, live).x, exact.embed_some(images, live).x, rtol=1e-4, atol=1e-4)
    for layer in range(1, exact.depth + 1):
        expected, actual = exact.run(tokens, layer, layer), other.run(tokens, layer, layer)
        torch.testing.assert_close(actual.x, expected.x, rtol=1e-4, atol=1e-4)
        tokens = expected


def test_plain_blocks_lose_their_constants_and_the_original_keeps_them() -> None:
    network = random_network("vit_small_patch14_dinov2")
    before = {name: value.clone() for name, value in network.state_dict().items()}
    names = list(folded(network).state_dict())
    assert not any("norm1" in name or "norm2" in name or ".ls" in name or "qkv" in name for name in names)
    assert any("norm1" in name for name in before)
    for name, value in network.state_dict().items():
        assert torch.equal(value, before[name])
