"""gptq: rotation and range equalisation do not change the output, and quantised weights lose little of it."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from timm.layers.layer_scale import LayerScale
from torch import Tensor, nn

from keepad.arrays import Array
from keepad.assembly import with_fresh_parts
from keepad.engines.export.feeds import Feed, segment_feeds
from keepad.engines.export.folding import folded
from keepad.engines.export.gptq import gptq, quantise_weights, rotate_tokens
from keepad.engines.export.segments import segments_of
from keepad.errors import KeepADError
from keepad.network import Network
from random_weights import short_backbone


@pytest.fixture(scope="module")
def images() -> list[Array]:
    random = np.random.default_rng(0)
    return [random.integers(0, 256, (140, 154, 3), dtype=np.uint8) for _ in range(3)]


@pytest.fixture
def network() -> Network:
    """A folded network with LayerScale, a CLS token and an outlier channel."""
    backbone, spec = short_backbone("vit_small_patch14_dinov2", 5)
    with torch.no_grad():
        backbone.vit.patch_embed.proj.bias[7] += 30
        for module in backbone.modules():  # untrained norms and scales are the identity
            if isinstance(module, nn.LayerNorm | LayerScale):
                for parameter in module.parameters():
                    parameter.copy_(torch.rand_like(parameter) + 0.3)
        for parameter in (backbone.vit.pos_embed, backbone.vit.cls_token):
            parameter.copy_(torch.randn_like(parameter))
    return folded(with_fresh_parts(backbone, spec, seed=2, image_size=(140, 154)))


def responses_of(network: Network, images: list[Array], rotation: Tensor | None = None) -> list[Array]:
    """Responses of the late segment to each image, after all segments before it."""
    late = segments_of(network, rotation)["late"]
    feeds = segment_feeds(network, images, rotation)["late"]
    with torch.no_grad():
        return [late(*(torch.from_numpy(feed[name]) for name in late.inputs))[0].numpy() for feed in feeds]


def early_feeds(network: Network, images: list[Array]) -> list[Feed]:
    return segment_feeds(network, images)["early"]


def test_a_rotated_network_computes_the_same(network: Network, images: list[Array]) -> None:
    expected, peak = responses_of(network, images), _peak(network, images)
    rotation = rotate_tokens(network)
    assert rotation is not None
    torch.testing.assert_close(rotation @ rotation.T, torch.eye(len(rotation)), atol=1e-5, rtol=0)
    torch.testing.assert_close(rotation.sum(1), torch.ones(len(rotation)), atol=1e-4, rtol=0)  # preserves the mean
    for before, after in zip(expected, responses_of(network, images, rotation), strict=True):
        np.testing.assert_allclose(after, before, atol=1e-4)
    assert _peak(network, images, rotation) < 0.5 * peak


def _peak(network: Network, images: list[Array], rotation: Tensor | None = None) -> float:
    """Largest input of the first MLP."""
    peaks: list[float] = []
    hook = network.backbone.vit.blocks[0].mlp.fc1.register_forward_pre_hook(
        lambda module, inputs: peaks.append(float(inputs[0].abs().max()))
    )
    segment_feeds(network, images, rotation)
    hook.remove()
    return max(peaks)


def test_a_network_with_a_norm_before_its_blocks_is_not_rotated() -> None:
    backbone, spec = short_backbone("vit_base_patch16_clip_quickgelu_224", 5)
    network = folded(with_fresh_parts(backbone, spec, seed=2, image_size=(64, 96)))
    before = {name: value.clone() for name, value in network.state_dict().items()}
    assert rotate_tokens(network) is None
    for name, value in network.state_dict().items():
        assert torch.equal(value, before[name])


def test_ranges_are_equalised_in_a_network_that_computes_the_same(network: Network, images: list[Array]) -> None:
    expected = responses_of(network, images)
    original = copy.deepcopy(network)
    quantised = quantise_weights(network, lambda: early_feeds(network, images))
    for before, after in zip(expected, responses_of(network, images), strict=True):
        np.testing.assert_allclose(after, before, atol=1e-4)
    block, before = network.backbone.vit.blocks[0], original.backbone.vit.blocks[0]
    assert not torch.equal(block.mlp.fc1.weight, before.mlp.fc1.weight)
    for name in ("attn.q_proj", "attn.k_proj", "attn.v_proj", "attn.proj", "mlp.fc1", "mlp.fc2"):
        exact, rounded = (own.get_submodule(name).weight for own in (block, quantised.backbone.vit.blocks[0]))
        assert not torch.equal(rounded, exact)
        torch.testing.assert_close(round_to_nearest(rounded), rounded)
    assert torch.equal(quantised.head.patch, network.head.patch)


def round_to_nearest(weight: Tensor, levels: int = 127) -> Tensor:
    """Weights rounded to the nearest level, as engines quantise them."""
    step = weight.abs().amax(1, keepdim=True) / levels
    return (weight / step).round() * step


def test_the_patch_projection_has_few_levels_and_a_small_error(network: Network) -> None:
    random = np.random.default_rng(1)
    coarse = [random.integers(20, 236, (5, 11, 3), dtype=np.uint8) for _ in range(4)]
    smooth = [np.kron(colours, np.ones((28, 14, 1), dtype=np.uint8)) for colours in coarse]
    images = [(image + random.integers(0, 6, (140, 154, 3))).astype(np.uint8) for image in smooth]
    before = network.backbone.vit.patch_embed.proj
    weight, bias = before.weight.detach().flatten(1).clone(), before.bias.detach().clone()
    after = quantise_weights(network, lambda: early_feeds(network, images[:3])).backbone.vit.patch_embed.proj
    quantised = after.weight.flatten(1)
    torch.testing.assert_close(round_to_nearest(quantised, 63), quantised)
    patches = torch.from_numpy(early_feeds(network, images[3:])[0]["patches"]).float()  # of another image
    expected = patches @ weight.T + bias

    def error(own_weight: Tensor, own_bias: Tensor) -> float:
        return float((patches @ own_weight.T + own_bias - expected).square().mean())

    assert 0 < error(quantised, after.bias) < 0.2 * error(round_to_nearest(weight, 127), bias)
    assert torch.equal(before.weight.flatten(1), weight)  # the network itself does not change


def test_later_columns_compensate_the_rounding_of_earlier_ones() -> None:
    generator = torch.Generator().manual_seed(0)
    mixed = torch.randn(2000, 40, generator=generator) @ torch.randn(40, 200, generator=generator)  # correlated
    x = mixed + 0.3 * torch.randn(2000, 200, generator=generator)
    weight = torch.randn(30, 200, generator=generator)
    quantised = gptq(weight, x.T @ x / len(x))
    torch.testing.assert_close(round_to_nearest(quantised), quantised)

    def error(rounded: Tensor) -> float:
        return float((x @ (rounded - weight).T).square().mean())

    assert 0 < error(quantised) < 0.4 * error(round_to_nearest(weight))


def test_dead_channels_are_quantised_too() -> None:
    weight, x = torch.randn(3, 6, generator=torch.Generator().manual_seed(0)), torch.zeros(10, 6)
    x[:, 0] = 1
    assert torch.isfinite(gptq(weight, x.T @ x / len(x))).all()


def test_features_that_are_not_finite_are_refused() -> None:
    with pytest.raises(KeepADError, match="not finite"):
        gptq(torch.ones(3, 4), torch.full((4, 4), torch.nan))
