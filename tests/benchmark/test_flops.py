"""Counted FLOPs against torch's own counter, on real passes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from keepad.assembly import with_fresh_parts
from keepad.backbone import build_backbone
from keepad.benchmark.flops import BackboneShape, BlockShape, backbone_flops, count_flops, patches_entering, shape_of
from keepad.inference import Inference
from keepad.network import Network
from keepad.presets import POINTS, Placement
from random_weights import lively


@pytest.fixture(autouse=True)
def _single_thread() -> Iterator[None]:
    """Counting needs no second thread, and on a busy machine two would wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def infer(network: Network, point: str, images: int) -> list[Inference]:
    """Inferences of images of noise, in which the pixel router drops nothing."""
    noise = np.random.default_rng(0).integers(0, 256, (images, *network.image_size, 3), dtype=np.uint8)
    return network.infer(noise, [POINTS[point]])[point]


def counted_by_torch(network: Network, point: str, images: int) -> tuple[int, list[Inference]]:
    # The math backend runs attention as two matrix products, which the counter sees.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        inferences = infer(network, point, images)
    return counter.get_total_flops(), inferences


@pytest.mark.parametrize("point", POINTS)
def test_agrees_with_torch_on_a_single_image(tiny: Network, point: str) -> None:
    expected, (inference,) = counted_by_torch(tiny, point, 1)
    assert count_flops(tiny, inference, POINTS[point]).total == pytest.approx(expected, rel=0.002)


@pytest.mark.parametrize("point", ["prune30", "prune70"])
def test_agrees_with_torch_where_survivors_attend_to_dropped_tokens(tiny: Network, point: str) -> None:
    tiny.calibration = replace(tiny.calibration, context=True)
    expected, (inference,) = counted_by_torch(tiny, point, 1)
    assert inference.context > 0
    assert count_flops(tiny, inference, POINTS[point]).total == pytest.approx(expected, rel=0.002)


def test_agrees_with_torch_for_swiglu_rotary_positions_and_separate_projections() -> None:
    backbone, spec = build_backbone("eva02_tiny_patch14_224", seed=1)
    network = with_fresh_parts(lively(backbone), spec, seed=2, image_size=(7 * 14, 8 * 14))
    expected, (inference,) = counted_by_torch(network, "prune70", 1)
    assert count_flops(network, inference, POINTS["prune70"]).total == pytest.approx(expected, rel=0.002)


def test_agrees_with_torch_on_a_batch_whose_images_keep_different_numbers(tiny: Network) -> None:
    expected, inferences = counted_by_torch(tiny, "prune50", 3)
    total = sum(count_flops(tiny, inference, POINTS["prune50"]).total for inference in inferences)
    assert total == pytest.approx(expected, rel=0.002)


def test_sizes_are_those_of_the_layers(tiny: Network) -> None:
    shape = shape_of(tiny.backbone)
    assert (shape.patch, shape.prefix, len(shape.blocks)) == (3 * 16 * 16 * 192, 1, 12)
    assert shape.blocks[0] == BlockShape(4 * 192 * 192, 2 * 192 * 192, 2 * 4 * 192 * 192, attention=192)


def test_formula_by_hand() -> None:
    shape = BackboneShape(patch=12, prefix=1, blocks=(BlockShape(projections=16, keys=8, mlp=32, attention=2),) * 3)
    # 4 patches; blocks of 5 and 3 tokens run, the third never does
    assert backbone_flops(shape, 4, [4, 2]) == (2 * 4 * 12, 2 * (5 + 3) * 48, 4 * (25 + 9) * 2)
    # the two that were dropped have keys and values, and three tokens attend to them
    expected = (2 * 4 * 12, 2 * (5 + 3) * 48 + 2 * 2 * 8, 4 * (25 + 3 * 5) * 2)
    assert backbone_flops(shape, 4, [4, 2], [0, 2]) == expected


def test_routers_act_on_what_enters_their_block() -> None:
    placement = Placement.for_depth(12)  # routers before blocks 4 and 6, exit after 11
    assert patches_entering(placement, 99, 50, 20, early_exit=True) == [99] * 3 + [50] * 2 + [20] * 6
    assert patches_entering(placement, 99, 99, 99, early_exit=False) == [99] * 12


def test_pruning_costs_less_everywhere_but_in_the_selectors(tiny: Network) -> None:
    dense, pruned = (count_flops(tiny, infer(tiny, point, 1)[0], POINTS[point]) for point in ("dense", "prune70"))
    assert dense.selectors == 0 < pruned.selectors < 0.01 * pruned.total
    assert dense.embed == pruned.embed
    assert pruned.linear < dense.linear
    assert pruned.attention < dense.attention
    assert pruned.head < dense.head
