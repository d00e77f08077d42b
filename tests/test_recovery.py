"""Owners against a brute-force search, and the modes."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from keepad.errors import KeepADError
from keepad.recovery import RECOVERIES, RouterScores, Upsampler, owners_of, recover, smooth


def brute_owner(cell: int, survivors: list[int], columns: int, block: int | None) -> int:
    def distance(other: int) -> tuple[int, int]:
        return (other // columns - cell // columns) ** 2 + (other % columns - cell % columns) ** 2, other

    def block_of(other: int) -> tuple[int, int]:
        assert block
        return other // columns // block, other % columns // block

    mates = [s for s in survivors if block and block_of(s) == block_of(cell)]
    return min(mates or survivors, key=distance)


@settings(deadline=None, max_examples=150)
@given(st.integers(1, 13), st.integers(1, 13), st.data(), st.sampled_from([None, 2, 3]))
def test_owner_is_the_nearest_survivor(rows: int, columns: int, data: st.DataObject, block: int | None) -> None:
    survivors = sorted(data.draw(st.sets(st.integers(0, rows * columns - 1), min_size=1)))
    owner = owners_of(np.array(survivors), (rows, columns), block=block)
    found = [survivors[position] for position in owner.tolist()]
    assert found == [brute_owner(cell, survivors, columns, block) for cell in range(rows * columns)]


def test_same_block_first_differs_from_nearest_where_it_should() -> None:
    # The cell at row 1, column 1 has a survivor of its own block at distance sqrt(2), a foreign one at distance 1.
    survivors, responses = np.array([0, 6]), np.array([0.1, 0.9])
    same = recover(responses, survivors, (4, 4), mode="same_block_first")
    nearest = recover(responses, survivors, (4, 4), mode="nearest")
    assert same[1, 1] == pytest.approx(0.1)
    assert nearest[1, 1] == pytest.approx(0.9)
    zero = recover(responses, survivors, (4, 4), mode="zero")
    assert np.flatnonzero(zero).tolist() == [0, 6]


def test_a_full_grid_is_returned_as_it_is() -> None:
    responses = np.random.default_rng(0).random(12)
    for mode in ("same_block_first", "nearest", "zero"):
        assert np.array_equal(recover(responses, np.arange(12), (3, 4), mode=mode), responses.reshape(3, 4))


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(KeepADError, match="same_block_first, nearest, zero"):
        recover(np.ones(1), np.array([0]), (2, 2), mode="linear")


def test_upsampling_keeps_constants_and_smoothing_spreads() -> None:
    patches = np.full((3, 5), 0.4, np.float32)
    flat = Upsampler((3, 5), (42, 70), 0)(patches)
    np.testing.assert_allclose(flat, np.full((42, 70), 0.4), rtol=1e-6)
    np.testing.assert_allclose(Upsampler((3, 5), (42, 70), 4)(patches), flat, rtol=1e-6)
    spike = np.zeros((5, 5), np.float32)
    spike[2, 2] = 1
    assert Upsampler((5, 5), (70, 70), 8)(spike).max() < Upsampler((5, 5), (70, 70), 0)(spike).max()


grids = st.tuples(st.integers(2, 13), st.integers(2, 13))
seeds = st.integers(0, 2**31)


@settings(deadline=None, max_examples=30)
@given(grids, seeds, st.sampled_from([0.0, 0.6, 1.0, 2.0]), st.integers(1, 4))
def test_upsampling_is_torchs_bilinear_after_a_gaussian(
    grid: tuple[int, int], seed: int, sigma: float, scale: int
) -> None:
    patch_map = np.random.default_rng(seed).random(grid).astype(np.float32)
    size = (grid[0] * 7 * scale, grid[1] * 5)
    smoothed = torch.from_numpy(patch_map)[None, None]
    if sigma > 0:
        radius = max(1, int(4 * sigma + 0.5))
        kernel = torch.exp(-0.5 * (torch.arange(-radius, radius + 1) / sigma).square())
        kernel = kernel / kernel.sum()
        smoothed = F.conv2d(F.pad(smoothed, (radius, radius, 0, 0), mode="replicate"), kernel.view(1, 1, 1, -1))
        smoothed = F.conv2d(F.pad(smoothed, (0, 0, radius, radius), mode="replicate"), kernel.view(1, 1, -1, 1))
    expected = F.interpolate(smoothed, size=size, mode="bilinear", align_corners=False)[0, 0]
    upsampled = Upsampler(grid, size, sigma)(patch_map)
    np.testing.assert_allclose(upsampled, expected.numpy(), atol=2e-6)
    assert upsampled.dtype == np.float32
    batch = np.stack([patch_map, 1 - patch_map])
    np.testing.assert_allclose(smooth(batch, sigma)[0], smoothed[0, 0].numpy(), atol=2e-6)


def test_graded_responses_move_by_the_scores_of_the_routers() -> None:
    # A row of six: 0, 2 and 4 entered the deep router, only 0 left it; 1, 3 and 5 went in the shallow one.
    scores = RouterScores(np.array([0.0, 0.4, 1.0, 1.0, 0.0, -2.0]), np.array([0, 2, 4]), np.array([1.0, -1.0, 0.5]))
    response = np.array([0.8])
    recovered = recover(response, np.array([0]), (1, 6), mode="graded", scores=scores, grades=(0.5, 1.5)).ravel()
    own = math.log(0.8 / 0.2)
    second, fourth = own + 1.5 * (-1.0 - 1.0), own + 1.5 * (0.5 - 1.0)  # dropped by the deep router
    logits = np.array([own, own + 0.5 * 0.4, second, second + 0.5 * 0.0, fourth, fourth + 0.5 * -2.0])
    np.testing.assert_allclose(recovered, 1 / (1 + np.exp(-logits)))


def test_graded_without_grades_or_scores_is_nearest() -> None:
    survivors, responses = np.array([1, 10]), np.array([0.3, 0.9])
    nearest = recover(responses, survivors, (3, 4), mode="nearest")
    assert np.array_equal(recover(responses, survivors, (3, 4), mode="graded"), nearest)
    random = np.random.default_rng(0)
    scores = RouterScores(random.normal(size=12), np.array([1, 5, 10]), random.normal(size=3))
    recovered = recover(responses, survivors, (3, 4), mode="graded", scores=scores)
    live = nearest.ravel()[[1, 5, 10]]
    np.testing.assert_allclose(recovered.ravel(), live[owners_of(np.array([1, 5, 10]), (3, 4), block=None)])


@settings(deadline=None, max_examples=100)
@given(grids, seeds, st.sampled_from(RECOVERIES))
def test_survivors_keep_their_response_and_tensors_give_the_same_with_gradients(
    grid: tuple[int, int], seed: int, mode: str
) -> None:
    random = np.random.default_rng(seed)
    cells = grid[0] * grid[1]
    live = np.sort(random.choice(cells, random.integers(1, cells + 1), replace=False))
    survivors = np.sort(random.choice(live, random.integers(1, len(live) + 1), replace=False))
    responses = (random.random(len(survivors)) * 0.9 + 0.05).astype(np.float32)
    shallow, risk = (random.normal(size=count).astype(np.float32) for count in (cells, len(live)))
    arrays = RouterScores(shallow, live, risk)
    recovered = recover(responses, survivors, grid, mode=mode, scores=arrays, grades=(0.5, 1.5))
    assert recovered.shape == grid
    np.testing.assert_allclose(recovered.ravel()[survivors], responses, atol=1e-6)
    leaf = torch.from_numpy(responses).requires_grad_()
    tensors = RouterScores(torch.from_numpy(shallow), live, torch.from_numpy(risk))
    same = recover(leaf, survivors, grid, mode=mode, scores=tensors, grades=(0.5, 1.5))
    np.testing.assert_allclose(same.detach().numpy(), recovered, atol=1e-6)
    (gradient,) = torch.autograd.grad(same.sum(), leaf)
    assert bool((gradient > 0).all())
