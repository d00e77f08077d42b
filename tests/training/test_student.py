"""The pass of training: equal to inference where nothing is relaxed, and a way for gradients where something is."""

from __future__ import annotations

import pytest
import torch

from keepad.network import KeepAD
from keepad.presets import POINTS, OperatingPoint
from keepad.training.student import sparse_pass


@pytest.fixture
def images() -> torch.Tensor:
    return torch.rand(2, 3, 144, 176, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("point", ["paper70", "prune50"])
def test_without_relaxation_it_is_the_pass_of_inference(tiny: KeepAD, images: torch.Tensor, point: str) -> None:
    chosen = POINTS[point]
    whole = OperatingPoint(**{**vars(chosen), "early_exit": False})
    with torch.no_grad():
        tokens = tiny.prefix(images)
        student = sparse_pass(tiny, tokens, whole, relaxed=False)
        outcomes = tiny.finish(tokens, whole, tokens.grid)
    for place, outcome in enumerate(outcomes):
        assert torch.equal(student.survivors[place], outcome.survivors)
        torch.testing.assert_close(student.maps[place], outcome.patch_map.flatten(), atol=1e-6, rtol=1e-5)


def test_a_block_with_everything_present_is_the_plain_block(tiny: KeepAD, images: torch.Tensor) -> None:
    with torch.no_grad():
        tokens = tiny.prefix(images).gather([torch.arange(0, 99, 2), torch.arange(40)])  # a ragged batch
        plain = tiny.backbone.run(tokens, 4, 6)
        present = tiny.backbone.run(tokens, 4, 6, torch.ones(len(tokens.index)))
    torch.testing.assert_close(present.x, plain.x, atol=1e-4, rtol=1e-4)


def test_what_is_hardly_present_is_hardly_seen(tiny: KeepAD, images: torch.Tensor) -> None:
    with torch.no_grad():
        tokens = tiny.prefix(images[:1])
        kept = torch.arange(0, 99, 3)
        presence = torch.full((99,), 1e-9)
        presence[kept] = 1.0
        faint = tiny.backbone.run(tokens, 4, 4, presence)
        gone = tiny.backbone.run(tokens.gather([kept]), 4, 4)
    torch.testing.assert_close(faint.cls(), gone.cls(), atol=2e-3, rtol=2e-3)
    torch.testing.assert_close(faint.patches()[kept], gone.patches(), atol=2e-3, rtol=2e-3)


def test_detection_alone_reaches_both_selectors(tiny: KeepAD, images: torch.Tensor) -> None:
    tokens = tiny.prefix(images)
    tiny.requires_grad_(False)
    for part in (tiny.shallow, tiny.deep):
        part.requires_grad_(True)
    tiny.deep.gate.data.fill_(0.5)  # it starts closed, and then likeness to prototypes gets no gradient yet
    try:
        student = sparse_pass(tiny, tokens, POINTS["paper70"])
        (student.maps.mean() + student.cls.mean()).backward()
        for part in (tiny.shallow, tiny.deep):
            assert all(value.grad is not None and bool(value.grad.any()) for value in part.parameters())
        assert all(value.grad is None for value in (*tiny.head.parameters(), *tiny.backbone.parameters()))
    finally:
        tiny.zero_grad()
        tiny.deep.gate.data.zero_()
        tiny.requires_grad_(True)
        tiny.backbone.requires_grad_(False)
