"""Each loss on numbers small enough to check by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from keepad.training.losses import dice, focal, label_cross_entropy

# Logarithms as a table has them: -ln 0.9, -ln 0.8, -ln 0.5, -ln 0.2.
LN = {0.9: 0.105361, 0.8: 0.223144, 0.5: 0.693147, 0.2: 1.609438}


def test_focal_by_hand() -> None:
    response = torch.tensor([[0.9, 0.2], [0.8, 0.5]])
    target = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    # First image: the defect is right by 0.9, the normal patch by 1 - 0.2 = 0.8.
    first = (0.1**2 * LN[0.9] + 0.2**2 * LN[0.8]) / 2
    # Second: the normal patch is right by only 1 - 0.8 = 0.2, the defect by 0.5.
    second = (0.8**2 * LN[0.2] + 0.5**2 * LN[0.5]) / 2
    assert focal(response, target).tolist() == pytest.approx([first, second], abs=1e-6)
    assert [first, second] == pytest.approx([0.004990, 0.601664], abs=1e-6)


def test_focal_without_focus_is_cross_entropy() -> None:
    response, target = torch.tensor([[0.9, 0.2, 0.5]]), torch.tensor([[1.0, 0.0, 1.0]])
    plain = (LN[0.9] + LN[0.8] + LN[0.5]) / 3
    assert focal(response, target, gamma=0.0).tolist() == pytest.approx([plain], abs=1e-6)
    torch.testing.assert_close(
        focal(response, target, gamma=0.0), torch.nn.functional.binary_cross_entropy(response, target).view(1)
    )


def test_dice_by_hand() -> None:
    response = torch.tensor([[0.9, 0.2, 0.1], [0.3, 0.0, 0.2]])
    target = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    # First: overlap 0.9, map 1.2, mask 1. Second has no defect: only the 1s are left above, 0.5 + 1 below.
    first, second = 1 - (1.8 + 1) / (1.2 + 1 + 1), 1 - 1 / 1.5
    assert dice(response, target).tolist() == pytest.approx([first, second])
    assert [first, second] == pytest.approx([0.125, 1 / 3])


def test_a_perfect_map_costs_nothing() -> None:
    target = torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 0.0]])
    assert dice(target, target).tolist() == [0.0, 0.0]
    assert focal(target, target).tolist() == [0.0, 0.0]


def test_label_cross_entropy_by_hand() -> None:
    response = torch.tensor([[0.8, 0.5], [0.8, 0.5]])
    # Anomalous: right by 0.8 and 0.5. Normal: by 1 - 0.8 = 0.2 and 0.5.
    anomalous, normal = (LN[0.8] + LN[0.5]) / 2, (LN[0.2] + LN[0.5]) / 2
    loss = label_cross_entropy(response, torch.tensor([1, 0]))
    assert loss.tolist() == pytest.approx([anomalous, normal], abs=1e-6)
    assert [anomalous, normal] == pytest.approx([0.458146, 1.151293], abs=1e-6)


# Losses of (2, 3) responses: an anomalous and a normal image, three patches or layers.
MAP_TARGET = torch.tensor([[1.0, 1.0, 1.0], [0.0, 0.0, 0.0]])
LOSSES = {
    "focal": lambda response: focal(response, MAP_TARGET),
    "dice": lambda response: dice(response, MAP_TARGET),
    "label_cross_entropy": lambda response: label_cross_entropy(response, torch.tensor([1, 0])),
}


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_gradients_raise_what_is_anomalous_and_lower_what_is_normal(loss: Callable[[Tensor], Tensor]) -> None:
    logits = torch.tensor([[-2.0, 0.0, 2.0], [-2.0, 0.0, 2.0]], requires_grad=True)
    loss(torch.sigmoid(logits)).sum().backward()
    assert logits.grad is not None
    assert (logits.grad[0] < 0).all()
    assert (logits.grad[1] > 0).all()


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_an_image_has_gradients_on_its_own_responses_only(loss: Callable[[Tensor], Tensor]) -> None:
    response = torch.full((2, 3), 0.4, requires_grad=True)
    loss(response)[0].backward()
    assert response.grad is not None
    assert (response.grad[0] != 0).all()
    assert (response.grad[1] == 0).all()


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
@pytest.mark.parametrize("value", [0.0, 1e-12, 1 - 1e-7, 1.0])
def test_certain_responses_stay_finite(loss: Callable[[Tensor], Tensor], value: float) -> None:
    response = torch.full((2, 3), value, requires_grad=True)
    values = loss(response)
    values.sum().backward()
    assert response.grad is not None
    assert values.isfinite().all()
    assert (values >= 0).all()
    assert response.grad.isfinite().all()
