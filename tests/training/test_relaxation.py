"""Relaxed choices on hand-worked blocks, and their agreement with the hard choices."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from keepad.presets import DeepBudget, ShallowBudget
from keepad.routing import keep_deep, keep_shallow
from keepad.training.relaxation import BlockValues, deep_presence, shallow_presence

GRID = (2, 4)  # two blocks of 2x2
CELLS = np.arange(8)


def test_sums_over_blocks() -> None:
    blocks = BlockValues.of(CELLS, GRID, 2)
    values = torch.tensor([1.0, 2.0, 10.0, 20.0, 3.0, 4.0, 30.0, 40.0])
    assert blocks.count == 2
    assert blocks.sum(values).tolist() == [10, 100]
    assert blocks.mean(values).tolist() == [2.5, 25]
    assert blocks.max(values).tolist() == [4, 40]
    torch.testing.assert_close(blocks.softmax(values)[[0, 1, 4, 5]], torch.softmax(torch.tensor([1.0, 2, 3, 4]), 0))


def test_presences_are_a_softmax_per_block_and_one_where_rescued() -> None:
    scores = torch.tensor([0.2, 0.0, 0.0, 0.0, 0.1, 0.0, 0.0, 0.4])
    blocks = BlockValues.of(CELLS, GRID, 2)
    keep = keep_shallow(scores.numpy(), CELLS, GRID, ShallowBudget(3 / 8, diversity=0))
    assert keep.tolist() == [0, 4, 7]  # two coverage winners, then the best of the rest
    presence = shallow_presence(scores, keep, blocks)
    left = [math.e**1, 1, math.e**0.5, 1]  # scores / 0.2 of the left block
    assert presence[0].item() == pytest.approx(left[0] / sum(left))
    assert presence[4].item() == 1.0
    right = [1, 1, 1, math.e**2]
    assert presence[7].item() == pytest.approx(right[3] / sum(right))
    assert presence[2].item() == pytest.approx(right[0] / sum(right))


def test_ties_go_to_the_first_token_of_a_block_and_the_others_are_rescued() -> None:
    scores = torch.zeros(8)
    keep = keep_shallow(scores.numpy(), CELLS, GRID, ShallowBudget(3 / 8, diversity=0))
    assert keep.tolist() == [0, 1, 2]
    presence = shallow_presence(scores, keep, BlockValues.of(CELLS, GRID, 2))
    assert presence.tolist() == [0.25, 1.0, 0.25, 0.25, 0.25, 0.25, 0.25, 0.25]


def test_deep_presence_is_a_sigmoid_of_the_distance_to_the_cut() -> None:
    grid, cells = (2, 6), np.arange(12)
    risk = torch.tensor([0.0, 0, 1, 1, 4, 4, 0, 0, 1, 1, 4, 4])  # three blocks: 0, 1 and 4
    presence = deep_presence(risk, cells, grid, DeepBudget(), 8)  # the blocks of 4 and 1 stay
    mean, deviation = 5 / 3, math.sqrt((25 / 9 + 4 / 9 + 49 / 9) / 3)
    standard = [(value - mean) / (deviation + 1e-6) for value in (0, 1, 4)]
    cut = (standard[0] + standard[1]) / 2
    for block, position in enumerate((0, 2, 4)):
        expected = 1 / (1 + math.exp(-(standard[block] - cut) / 0.12))
        assert presence[position].item() == pytest.approx(expected, abs=1e-5)
        assert presence[position].item() == presence[position + 6].item()


@pytest.mark.parametrize("seed", range(5))
def test_kept_tokens_are_more_present_than_dropped_ones(seed: int) -> None:
    torch.manual_seed(seed)
    grid, cells, risk = (6, 7), np.arange(42), torch.randn(42)
    choice = keep_deep(risk.numpy(), cells, grid, DeepBudget())
    presence = deep_presence(risk, cells, grid, DeepBudget(), choice.target)
    kept = torch.zeros(42, dtype=torch.bool)
    kept[torch.from_numpy(choice.keep)] = True
    assert presence[kept].min() > 0.5 > presence[~kept].max()


def test_without_drops_all_are_present_and_gradients_flow() -> None:
    risk = torch.randn(8, requires_grad=True)
    presence = deep_presence(risk, CELLS, GRID, DeepBudget(), 8)
    assert presence.min() > 0.99
    presence.sum().backward()
    assert risk.grad is not None
