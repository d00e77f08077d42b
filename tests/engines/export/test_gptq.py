"""Rounding: the prepared network computes the same, and eight bits hold its weights well."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from timm.layers import LayerScale
from torch import Tensor, nn

from keepad.backbone import build_backbone
from keepad.engines.export.folding import folded
from keepad.engines.export.gptq import rounded, turned, weights_on_steps
from keepad.engines.export.writing import _feeds, segments_of
from keepad.errors import KeepADError
from keepad.loading import with_fresh_parts
from keepad.network import KeepAD
from random_weights import lively


@pytest.fixture(scope="module")
def images() -> list[np.ndarray]:
    draw = np.random.default_rng(0)
    return [draw.integers(0, 256, (140, 154, 3), dtype=np.uint8) for _ in range(3)]


@pytest.fixture
def network() -> KeepAD:
    """A folded detector with LayerScale and a class token, of whose channels one is far above the others."""
    backbone, spec = build_backbone("vit_small_patch14_dinov2", seed=1)
    lively(backbone)
    with torch.no_grad():
        backbone.vit.patch_embed.proj.bias[7] += 30
        for module in backbone.modules():  # untrained norms and scales would hide a mistake
            if isinstance(module, nn.LayerNorm | LayerScale):
                for one in module.parameters():
                    one.copy_(torch.rand_like(one) + 0.3)
        for parameter in (backbone.vit.pos_embed, backbone.vit.cls_token):
            parameter.copy_(torch.randn_like(parameter))
    return folded(with_fresh_parts(backbone, spec, seed=2, image_size=(140, 154)))


def through(model: KeepAD, images: list[np.ndarray], turn: Tensor | None = None) -> list[np.ndarray]:
    """What the deep router's segment gives for each image, after both segments before it."""
    feeds = _feeds(model, images, turn)
    tail = segments_of(model, turn)["tail"]
    with torch.no_grad():
        return [tail(*(torch.from_numpy(feed[name]) for name in tail.inputs))[0].numpy() for feed in feeds["tail"]]


def test_a_turned_network_computes_the_same(network: KeepAD, images: list[np.ndarray]) -> None:
    before, outlying = through(network, images), _peak(network, images)
    turn = turned(network)
    assert turn is not None
    identity = torch.eye(len(turn))
    torch.testing.assert_close(turn @ turn.T, identity, atol=1e-5, rtol=0)
    torch.testing.assert_close(turn.sum(1), torch.ones(len(turn)), atol=1e-4, rtol=0)  # the mean stays where it is
    for ours, theirs in zip(before, through(network, images, turn), strict=True):
        np.testing.assert_allclose(theirs, ours, atol=1e-4)
    assert _peak(network, images, turn) < 0.5 * outlying


def _peak(model: KeepAD, images: list[np.ndarray], turn: Tensor | None = None) -> float:
    """Largest value that enters the first MLP."""
    seen: list[float] = []
    hook = model.backbone.vit.blocks[0].mlp.fc1.register_forward_pre_hook(
        lambda module, given: seen.append(float(given[0].abs().max()))
    )
    _feeds(model, images, turn)
    hook.remove()
    return max(seen)


def test_a_network_with_a_norm_before_its_blocks_is_not_turned() -> None:
    backbone, spec = build_backbone("vit_base_patch16_clip_quickgelu_224", seed=1)
    model = folded(with_fresh_parts(backbone, spec, seed=2, image_size=(64, 96)))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert turned(model) is None
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])


def test_ranges_are_divided_out_of_a_network_that_computes_the_same(network: KeepAD, images: list[np.ndarray]) -> None:
    before = through(network, images)
    plain = copy.deepcopy(network)
    written = rounded(network, lambda: patches_of_all(network, images))
    for ours, theirs in zip(before, through(network, images), strict=True):
        np.testing.assert_allclose(theirs, ours, atol=1e-4)
    block, was = network.backbone.vit.blocks[0], plain.backbone.vit.blocks[0]
    assert not torch.equal(block.mlp.fc1.weight, was.mlp.fc1.weight)
    for name in ("attn.q_proj", "attn.k_proj", "attn.v_proj", "attn.proj", "mlp.fc1", "mlp.fc2"):
        ours, theirs = (one.get_submodule(name).weight for one in (block, written.backbone.vit.blocks[0]))
        assert not torch.equal(theirs, ours)
        torch.testing.assert_close(on_nearest_steps(theirs), theirs)
    assert torch.equal(written.head.patch, network.head.patch)


def patches_of_all(network: KeepAD, images: list[np.ndarray]) -> list[np.ndarray]:
    return [feed["patches"] for feed in _feeds(network, images)["prefix"]]


def on_nearest_steps(weight: Tensor, levels: int = 127) -> Tensor:
    """Plain rounding, as whoever quantises the written network will do it."""
    step = weight.abs().amax(1, keepdim=True) / levels
    return (weight / step).round() * step


def test_the_patch_projection_has_few_steps_and_still_reads_pixels_well(network: KeepAD) -> None:
    draw = np.random.default_rng(1)
    coarse = [draw.integers(20, 236, (5, 11, 3), dtype=np.uint8) for _ in range(4)]
    smooth = [np.kron(one, np.ones((28, 14, 1), dtype=np.uint8)) + draw.integers(0, 6, (140, 154, 3)) for one in coarse]
    images = [one.astype(np.uint8) for one in smooth]
    before = network.backbone.vit.patch_embed.proj
    weight, bias = before.weight.detach().flatten(1).clone(), before.bias.detach().clone()
    after = rounded(network, lambda: patches_of_all(network, images[:3])).backbone.vit.patch_embed.proj
    found = after.weight.flatten(1)
    torch.testing.assert_close(on_nearest_steps(found, 63), found)
    seen = torch.from_numpy(patches_of_all(network, images[3:])[0]).float()  # another image than those looked at
    right = seen @ weight.T + bias

    def wrong(ours: Tensor, offset: Tensor) -> float:
        return float((seen @ ours.T + offset - right).square().mean())

    assert 0 < wrong(found, after.bias) < 0.2 * wrong(on_nearest_steps(weight, 127), bias)
    assert torch.equal(before.weight.flatten(1), weight)  # the network itself still computes what it did


def test_channels_that_come_later_make_up_for_the_rounding_of_those_before() -> None:
    draw = torch.Generator().manual_seed(0)
    mixed = torch.randn(2000, 40, generator=draw) @ torch.randn(40, 200, generator=draw)  # channels go together
    x = mixed + 0.3 * torch.randn(2000, 200, generator=draw)
    weight = torch.randn(30, 200, generator=draw)
    found = weights_on_steps(weight, x.T @ x / len(x))
    torch.testing.assert_close(on_nearest_steps(found), found)

    def wrong(rounded: Tensor) -> float:
        return float((x @ (rounded - weight).T).square().mean())

    assert 0 < wrong(found) < 0.4 * wrong(on_nearest_steps(weight))


def test_features_that_are_not_finite_are_told_of() -> None:
    with pytest.raises(KeepADError, match="not finite"):
        weights_on_steps(torch.ones(3, 4), torch.full((4, 4), torch.nan))
