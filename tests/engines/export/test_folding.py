"""Folding: fewer operations, the same network."""

from __future__ import annotations

import pytest
import torch
from timm.layers import LayerScale
from torch import nn

from keepad.backbone import build_backbone
from keepad.engines.export.folding import folded
from keepad.loading import with_fresh_parts
from keepad.network import KeepAD
from random_weights import lively


def detector(name: str) -> KeepAD:
    backbone, spec = build_backbone(name, seed=1)
    lively(backbone)
    for module in backbone.modules():  # untrained norms and scales would hide a mistake
        if isinstance(module, nn.LayerNorm | LayerScale):
            for one in module.parameters():
                one.data = torch.rand_like(one) + 0.3
    rows, columns = backbone.patch
    return with_fresh_parts(backbone, spec, seed=2, image_size=(4 * rows, 6 * columns))


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "vit_small_patch14_dinov2", "vit_small_patch16_dinov3"])
def test_every_block_of_the_folded_network_gives_the_same(name: str) -> None:
    model = detector(name)
    images = torch.rand(2, 3, *model.image_size, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        tokens = model.backbone.embed(images)
        other = folded(model)
        torch.testing.assert_close(other.backbone.embed(images).x, tokens.x, rtol=1e-4, atol=1e-4)
        some = [torch.tensor([0, 5, 7]), torch.tensor([2])]
        theirs, ours = (one.backbone.embed_some(images, some) for one in (other, model))
        torch.testing.assert_close(theirs.x, ours.x, rtol=1e-4, atol=1e-4)
        for layer in range(1, model.backbone.depth + 1):
            ours, theirs = model.backbone.run(tokens, layer, layer), other.backbone.run(tokens, layer, layer)
            torch.testing.assert_close(theirs.x, ours.x, rtol=1e-4, atol=1e-4)
            tokens = ours


def test_plain_blocks_lose_their_constants_and_the_given_model_stays_whole() -> None:
    model = detector("vit_small_patch14_dinov2")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    names = dict(folded(model).state_dict())
    assert not any("norm1" in name or "norm2" in name or ".ls" in name or "qkv" in name for name in names)
    assert any("norm1" in name for name in before)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
