"""The contract of a backbone, for all named backbones and some of timm's other families, with random weights."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import timm
import torch
from torch import nn

import keepad.backbone.vit
from keepad.assembly import with_fresh_parts
from keepad.backbone import BACKBONES, Backbone, BackboneSpec, build_backbone, spec_of
from keepad.errors import KeepADError
from keepad.presets import POINTS, DeepBudget, Placement, ShallowBudget
from keepad.tokens import Tokens
from random_weights import short_backbone

# Beyond the named ones: no LayerScale, absolute + rotary + SwiGLU, learned per-head rotary, pooled without CLS.
OTHERS = (
    "vit_tiny_patch16_224",
    "eva02_tiny_patch14_224",
    "vit_small_patch16_rope_mixed_224",
    "vit_base_patch16_siglip_224",
)
GRID = (3, 5)


@pytest.fixture(scope="module", params=[*BACKBONES, *OTHERS])
def backbone(request: pytest.FixtureRequest) -> Backbone:
    """A small model of the family: six blocks, two heads."""
    return short_backbone(request.param, 6, embed_dim=128, num_heads=2)[0]


@pytest.mark.parametrize("spec", BACKBONES.values(), ids=BACKBONES)
def test_named_backbones_exist_in_timm(spec: BackboneSpec) -> None:
    known = timm.list_pretrained(f"{spec.architecture}.*")
    assert f"{spec.architecture}.{spec.tag or 'lvd142m'}" in known
    config = timm.get_pretrained_cfg(f"{spec.architecture}.{spec.tag or 'lvd142m'}")
    assert config is not None
    assert (tuple(config.mean), tuple(config.std)) == (spec.mean, spec.std)


@pytest.fixture(scope="module")
def images(backbone: Backbone) -> torch.Tensor:
    size = (GRID[0] * backbone.patch[0], GRID[1] * backbone.patch[1])
    return torch.rand(2, 3, *size, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def tokens(backbone: Backbone, images: torch.Tensor) -> Tokens:
    """Live tokens of two images on a rectangular grid, as they enter block 1."""
    with torch.inference_mode():
        return backbone.embed(images)


@torch.inference_mode()
def test_all_tokens_give_timms_features(backbone: Backbone, images: torch.Tensor, tokens: Tokens) -> None:
    if not backbone.antialias:  # timm resamples positions with antialiasing; at the native size nothing is resampled
        native: tuple[int, int] = backbone.vit.patch_embed.img_size
        images = torch.rand(1, 3, *native, generator=torch.Generator().manual_seed(1))
        tokens = backbone.embed(images)
    mean, std = torch.tensor(backbone.mean).view(3, 1, 1), torch.tensor(backbone.std).view(3, 1, 1)
    expected = backbone.vit.forward_features((images - mean) / std)
    if isinstance(backbone.vit.norm, nn.Identity):  # models that average their patches have it behind that
        expected = backbone.vit.fc_norm(expected)
    actual = backbone.norm(backbone.run(tokens, 1, backbone.depth).x)
    torch.testing.assert_close(actual, expected.flatten(0, 1), atol=1e-5, rtol=1e-5)


@torch.inference_mode()
def test_keeping_everything_changes_nothing(backbone: Backbone, tokens: Tokens) -> None:
    everything = tokens.gather([torch.arange(15), torch.arange(15)])
    assert torch.equal(backbone.run(everything, 1, backbone.depth).x, backbone.run(tokens, 1, backbone.depth).x)


@torch.inference_mode()
def test_a_pruned_pass_that_keeps_everything_is_the_dense_pass(backbone: Backbone, images: torch.Tensor) -> None:
    height, width = images.shape[-2:]
    network = with_fresh_parts(backbone, spec_of(backbone.name), image_size=(height, width))
    deep = DeepBudget(rho_min=1.0, rho_max=1.0)
    keep_all = replace(POINTS["dense"], name="keep-all", shallow=ShallowBudget(1.0), deep=deep)
    pixels = (255 * images).byte().permute(0, 2, 3, 1).numpy()
    results = network.infer(pixels, [POINTS["dense"], keep_all])
    for dense, pruned in zip(results["dense"], results["keep-all"], strict=True):
        assert len(pruned.survivors) == 15
        assert pruned.score == pytest.approx(dense.score, abs=1e-5)
        np.testing.assert_allclose(pruned.anomaly_map, dense.anomaly_map, atol=1e-5, rtol=0)


@torch.inference_mode()
def test_the_order_of_the_live_tokens_changes_nothing(backbone: Backbone, tokens: Tokens) -> None:
    keep = torch.tensor([0, 3, 4, 8, 9, 14])
    order = torch.tensor([4, 0, 5, 2, 1, 3])
    straight = backbone.run(tokens.gather([keep, keep]), 1, backbone.depth)
    shuffled = backbone.run(tokens.gather([keep[order], keep]), 1, backbone.depth)
    pairs = ((straight.cls(), shuffled.cls()), (straight.patches()[:6][order], shuffled.patches()[:6]))
    for expected, actual in pairs:
        torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)


@torch.inference_mode()
def test_pruned_tokens_never_influence_survivors(backbone: Backbone, tokens: Tokens) -> None:
    keep = [torch.tensor([1, 2, 7, 11]), torch.tensor([0, 5])]
    poisoned = tokens.x.clone()
    rows = tokens.patch_rows()
    dropped = torch.ones(30, dtype=torch.bool)
    dropped[[1, 2, 7, 11, 15, 20]] = False
    poisoned[rows[dropped]] = 1e3
    clean = backbone.run(tokens.gather(keep), 1, backbone.depth)
    other = backbone.run(tokens.with_features(poisoned).gather(keep), 1, backbone.depth)
    assert torch.equal(clean.x, other.x)
    assert len(clean.x) == 2 * backbone.prefix + 6, "no padding is computed"


@torch.inference_mode()
def test_images_of_a_ragged_batch_do_not_see_each_other(backbone: Backbone, tokens: Tokens) -> None:
    ragged = tokens.gather([torch.tensor([1, 2, 7, 11]), torch.tensor([0, 5])])
    together = backbone.run(ragged, 1, backbone.depth)
    for image in (0, 1):
        alone = backbone.run(ragged.select(image), 1, backbone.depth)
        torch.testing.assert_close(together.select(image).x, alone.x, atol=1e-5, rtol=1e-5)


def test_chunks_of_rows_change_nothing(backbone: Backbone, tokens: Tokens, monkeypatch: pytest.MonkeyPatch) -> None:
    ragged = tokens.gather([torch.arange(0, 9, 2), *(torch.arange(7) for _ in range(tokens.images - 1))])
    whole = backbone.run(ragged, 1, 2)  # with gradients, and so without chunks
    monkeypatch.setattr(keepad.backbone.vit, "_CHUNK_ROWS", 3)
    with torch.inference_mode():
        chunked = backbone.run(ragged, 1, 2)
    torch.testing.assert_close(chunked.x, whole.x, rtol=1e-4, atol=1e-5)


def test_an_input_that_is_no_multiple_of_the_patch_is_refused(backbone: Backbone) -> None:
    with pytest.raises(KeepADError, match="multiples of"):
        backbone.embed(torch.zeros(1, 3, 3 * backbone.patch[0] + 1, 64))


@pytest.mark.parametrize(
    ("depth", "head", "routers", "last"),
    [(24, (12, 15, 18, 21, 24), (8, 12), 21), (12, (6, 8, 9, 11, 12), (4, 6), 11), (6, (3, 4, 5, 6), (2, 3), 6)],
)
def test_placement_scales_with_depth(depth: int, head: tuple[int, ...], routers: tuple[int, int], last: int) -> None:
    placement = Placement.for_depth(depth)
    assert (placement.head_layers, (placement.shallow, placement.deep), placement.exit) == (head, routers, last)
    assert placement.base_layers == (head[0], last)
    assert placement.mid_layers == tuple(layer for layer in head if layer <= last)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("dinov2-smal", "did you mean dinov2-small"),
        ("swin_tiny_patch4_window7_224", "only timm's plain"),
        ("resnet18", "only timm's plain"),
        ("vit_base_patch16_xp_224", "ParallelScalingBlock"),
        ("deit_tiny_distilled_patch16_224", "only timm's plain"),
        ("vit_tiny_patch16_224.nope", "timm has no weights called"),
    ],
)
def test_unusable_models_are_refused_in_one_sentence(name: str, sentence: str) -> None:
    with pytest.raises(KeepADError, match=sentence):
        build_backbone(name)
