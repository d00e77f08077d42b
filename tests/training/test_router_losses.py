"""The losses of the selectors against numbers worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from keepad.training.losses import mask_loss, preserve_loss, teacher_loss
from keepad.training.relaxation import BlockValues

BLOCKS = BlockValues.of(np.arange(8), (2, 4), 2)  # left: 0 1 4 5, right: 2 3 6 7


def test_preserve_loss_is_over_the_top_decile_weighted_by_response() -> None:
    dense = torch.linspace(0.1, 0.8, 20)  # the top decile is the last two: 0.763 and 0.8
    presence = torch.ones(20)
    presence[18], presence[19] = 0.5, 0.25
    first, second = dense[18].item(), dense[19].item()
    expected = (first * math.log(2) + second * math.log(4)) / (first + second)
    assert preserve_loss(presence, dense).item() == pytest.approx(expected, rel=1e-5)


def test_teacher_loss_is_a_cross_entropy_in_blocks_of_high_contrast() -> None:
    dense = torch.tensor([0.5, 0.5, 0.9, 0.1, 0.5, 0.5, 0.1, 0.1])  # only the right block has contrast
    presence = torch.full((8,), 0.25)
    loss = teacher_loss(presence, dense, BLOCKS)
    assert loss is not None
    assert loss.item() == pytest.approx(math.log(4), rel=1e-5)
    presence[2] = 0.9
    better = teacher_loss(presence, dense, BLOCKS)
    assert better is not None
    share = torch.softmax(torch.tensor([0.9, 0.1, 0.1, 0.1]) / 0.08, 0)
    assert better.item() == pytest.approx(
        float(-(share[0] * math.log(0.9)) - share[1:].sum() * math.log(0.25)), rel=1e-4
    )


def test_blocks_that_tie_with_the_last_one_count_too() -> None:
    dense = torch.tensor([0.9, 0.1, 0.9, 0.1, 0.1, 0.1, 0.1, 0.1])  # equal contrast; a quarter of two blocks is one
    presence = torch.full((8,), 0.25)
    presence[0], presence[2] = 1.0, 0.01
    share = torch.softmax(torch.tensor([0.9, 0.1, 0.1, 0.1]) / 0.08, 0)
    rest = -float(share[1:].sum()) * math.log(0.25)
    expected = (rest + rest - float(share[0]) * math.log(0.01)) / 2
    assert teacher_loss(presence, dense, BLOCKS).item() == pytest.approx(expected, rel=1e-4)  # type: ignore[union-attr]


def test_an_image_without_contrast_has_no_teacher_loss() -> None:
    assert teacher_loss(torch.full((8,), 0.25), torch.full((8,), 0.3), BLOCKS) is None


def test_mask_loss_is_over_the_presence_on_defects_in_touched_blocks() -> None:
    presence = torch.tensor([0.1, 0.2, 0.7, 0.1, 0.3, 0.4, 0.1, 0.1])
    defect = torch.zeros(8, dtype=torch.bool)
    assert mask_loss(presence, defect, BLOCKS) is None
    defect[[1, 4]] = True
    assert mask_loss(presence, defect, BLOCKS).item() == pytest.approx(-math.log(0.5), rel=1e-5)  # type: ignore[union-attr]
    defect[2] = True
    expected = (-math.log(0.5) - math.log(0.7)) / 2
    assert mask_loss(presence, defect, BLOCKS).item() == pytest.approx(expected, rel=1e-5)  # type: ignore[union-attr]
    presence[1] = 1.0  # rescued: a presence above one counts as one
    expected = (0 - math.log(0.7)) / 2
    assert mask_loss(presence, defect, BLOCKS).item() == pytest.approx(expected, rel=1e-5)  # type: ignore[union-attr]
