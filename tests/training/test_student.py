"""The pass of training: equal to inference without relaxation, and with gradients for both selectors with it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from keepad.network import Network
from keepad.presets import POINTS
from keepad.training.student import sparse_pass


@pytest.fixture
def pixels() -> np.ndarray:
    return np.random.default_rng(3).integers(0, 256, (2, 144, 176, 3), dtype=np.uint8)


@pytest.fixture
def images(pixels: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255


@pytest.mark.parametrize("early_exit", [False, True])
@pytest.mark.parametrize("name", ["paper70", "prune50"])
def test_without_relaxation_it_is_the_pass_of_inference(
    tiny: Network, pixels: np.ndarray, images: torch.Tensor, name: str, early_exit: bool
) -> None:
    point = replace(POINTS[name], early_exit=early_exit, pixels=None)
    with torch.no_grad():
        student = sparse_pass(tiny, tiny.encode(images), point, relaxed=False)
    for i, result in enumerate(tiny.infer(pixels, [point])[name]):
        np.testing.assert_array_equal(student.entered[i], result.survivors_shallow)
        np.testing.assert_array_equal(student.survivors[i], result.survivors)
        np.testing.assert_allclose(student.maps[i].view(tiny.grid).numpy(), result.patch_map, atol=1e-6, rtol=1e-5)


def test_smoothed_scores_and_absolute_evidence_choose_as_in_inference(
    tiny: Network, pixels: np.ndarray, images: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = ((0.3, 0.2, 0.05), (0.7, 0.1, 0.05))
    calibration = replace(tiny.calibration, landmarks=2, score_smoothing=1.0, evidence=rows)
    monkeypatch.setattr(tiny, "calibration", calibration)
    point = replace(POINTS["prune50"], pixels=None)
    with torch.no_grad():
        student = sparse_pass(tiny, tiny.encode(images), point, relaxed=False)
    for i, result in enumerate(tiny.infer(pixels, [point])["prune50"]):
        np.testing.assert_array_equal(student.entered[i], result.survivors_shallow)
        np.testing.assert_array_equal(student.survivors[i], result.survivors)


def test_a_presence_of_one_is_the_plain_block(tiny: Network, images: torch.Tensor) -> None:
    with torch.no_grad():
        tokens = tiny.encode(images).gather([np.arange(0, 99, 2), np.arange(40)])  # a ragged batch
        plain = tiny.backbone.run(tokens, 4, 6)
        present = tiny.backbone.run(tokens, 4, 6, torch.ones(len(tokens.index)))
    torch.testing.assert_close(present.x, plain.x, atol=1e-4, rtol=1e-4)


def test_a_presence_near_zero_is_nearly_a_dropped_token(tiny: Network, images: torch.Tensor) -> None:
    with torch.no_grad():
        tokens = tiny.encode(images[:1])
        kept = torch.arange(0, 99, 3)
        presence = torch.full((99,), 1e-9)
        presence[kept] = 1.0
        masked = tiny.backbone.run(tokens, 4, 4, presence)
        dropped = tiny.backbone.run(tokens.gather([kept.numpy()]), 4, 4)
    torch.testing.assert_close(masked.cls(), dropped.cls(), atol=2e-3, rtol=2e-3)
    torch.testing.assert_close(masked.patches()[kept], dropped.patches(), atol=2e-3, rtol=2e-3)


@pytest.fixture
def trainable(tiny: Network) -> Network:
    """The network with trainable selectors."""
    tiny.requires_grad_(False)
    for selector in (tiny.shallow, tiny.deep):
        selector.requires_grad_(True)
    tiny.deep.gate.data.fill_(0.5)  # initially 0, where the prototype term has no gradient
    return tiny


def test_the_detection_loss_reaches_both_selectors(trainable: Network, images: torch.Tensor) -> None:
    student = sparse_pass(trainable, trainable.encode(images), POINTS["paper70"])
    cls = torch.stack(list(student.responses.cls.values()))
    (student.maps.mean() + cls.mean()).backward()
    for selector in (trainable.shallow, trainable.deep):
        assert all(value.grad is not None and bool(value.grad.any()) for value in selector.parameters())
    frozen = (*trainable.head.parameters(), *trainable.backbone.parameters())
    assert all(value.grad is None for value in frozen)


def test_a_hard_choice_is_that_of_inference_and_still_trains_both_selectors(
    trainable: Network, images: torch.Tensor
) -> None:
    """Rows that a soft mask has scaled have other risks, and with them training would choose other tokens."""
    point = replace(POINTS["paper50"], early_exit=False)
    with torch.no_grad():
        tokens = trainable.encode(images)
        expected = sparse_pass(trainable, tokens, point, relaxed=False)
    hard, scaled = (sparse_pass(trainable, tokens, point, hard_choice=choice) for choice in (True, False))
    for i in range(2):
        np.testing.assert_array_equal(hard.survivors[i], expected.survivors[i])
    assert any(not np.array_equal(scaled.survivors[i], expected.survivors[i]) for i in range(2))
    hard.maps.mean().backward()
    for name, parameter in trainable.named_parameters():
        assert parameter.grad is None or bool(parameter.grad.any()) == name.startswith(("shallow", "deep")), name
    assert trainable.shallow.query.weight.grad is not None
    assert trainable.deep.query.weight.grad is not None
