"""Smoothing on the grid: of maps, and of scores of the cells that count."""

from __future__ import annotations

import numpy as np
import pytest

from keepad.recovery import smooth_scores

GRID = (8, 9)
ALL = np.arange(72)


def test_a_spot_of_several_patches_outranks_a_single_one_as_high() -> None:
    scores = np.zeros(GRID, dtype=np.float32)
    scores[1, 1] = 1.0  # noise
    scores[4:6, 5:7] = 0.7  # a defect
    smoothed = smooth_scores(scores.reshape(-1), ALL, GRID, 1.0).reshape(GRID)
    assert smoothed[4:6, 5:7].min() > smoothed[1, 1]


def test_equal_scores_stay_as_they_are_and_sigma_zero_changes_nothing() -> None:
    np.testing.assert_allclose(smooth_scores(np.full(72, 0.3, np.float32), ALL, GRID, 1.5), 0.3, atol=1e-6)
    scores = np.random.default_rng(0).random(72).astype(np.float32)
    assert smooth_scores(scores, ALL, GRID, 0.0) is scores


@pytest.mark.parametrize("sigma", [0.7, 1.0])
def test_cells_that_do_not_count_have_no_say(sigma: float) -> None:
    """A region of interest: what lies outside takes the score of the nearest cell inside."""
    cells = np.flatnonzero(ALL % 9 < 5)
    scores = np.random.default_rng(1).random(len(cells)).astype(np.float32)
    inside = smooth_scores(scores, cells, GRID, sigma)
    assert inside.shape == scores.shape
    np.testing.assert_allclose(smooth_scores(np.full(len(cells), 0.6, np.float32), cells, GRID, sigma), 0.6, atol=1e-6)
    # Right of the region, every row repeats its last cell, as an edge of the grid does.
    alone = smooth_scores(scores, np.arange(len(cells)), (8, 5), sigma)
    np.testing.assert_allclose(inside, alone, atol=1e-6)
