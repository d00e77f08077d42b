"""Dissimilarity against a loop over pairs of patches, and on surfaces where the odd one is known."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from keepad.dissimilarity import dissimilarity, dissimilarity_to_landmarks
from keepad.routing import is_landmark


def features_of(count: int, seed: int = 0) -> torch.Tensor:
    """Double precision, so that nothing but the method decides."""
    return torch.randn(count, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def brute(features: list[list[float]], live: list[int], columns: int, neighbours: int, window: int) -> list[float]:
    def cosine(a: list[float], b: list[float]) -> float:
        return sum(x * y for x, y in zip(a, b, strict=True)) / math.hypot(*a) / math.hypot(*b)

    def apart(a: int, b: int) -> bool:
        rows, steps = abs(a // columns - b // columns), abs(a % columns - b % columns)
        return max(rows, steps) > window // 2

    values = []
    for here, patch in zip(live, features, strict=True):
        others = [cosine(patch, other) for there, other in zip(live, features, strict=True) if apart(here, there)]
        best = sorted(others, reverse=True)[:neighbours]
        values.append(1 - sum(best) / len(best) if best else 0.0)
    return values


@settings(deadline=None, max_examples=150)
@given(
    st.integers(1, 7),
    st.integers(1, 7),
    st.data(),
    st.sampled_from([1, 3, 5]),
    st.integers(1, 12),
    st.integers(0, 10**6),
)
def test_equal_to_a_loop_over_pairs(
    rows: int, columns: int, data: st.DataObject, window: int, neighbours: int, seed: int
) -> None:
    live = sorted(data.draw(st.sets(st.integers(0, rows * columns - 1), min_size=1)))
    features = features_of(len(live), seed)
    values = dissimilarity(features, torch.tensor(live), (rows, columns), neighbours=neighbours, window=window)
    expected = brute(features.tolist(), live, columns, neighbours, window)
    assert values.tolist() == pytest.approx(expected, abs=1e-9)


def test_length_does_not_count() -> None:
    features, index = features_of(30), torch.arange(30)
    longer = features * torch.linspace(0.1, 10, 30, dtype=torch.float64)[:, None]
    torch.testing.assert_close(dissimilarity(longer, index, (5, 6)), dissimilarity(features, index, (5, 6)))


@pytest.mark.parametrize(("distance", "counts"), [(1, False), (2, False), (3, True)])
def test_a_twin_counts_only_outside_the_window(distance: int, counts: bool) -> None:
    # Two patches in one row look alike and like no other; the window of 5 reaches two patches to each side.
    features = torch.zeros(7 * 7, 2, dtype=torch.float64)
    features[:, 0] = 1
    features[[21, 21 + distance]] = torch.tensor([0.0, 1.0], dtype=torch.float64)
    values = dissimilarity(features, torch.arange(49), (7, 7), neighbours=1)
    assert values[21] == pytest.approx(0.0 if counts else 1.0)
    assert dissimilarity(features, torch.arange(49), (7, 7), neighbours=1, window=1)[21] == pytest.approx(0.0)


@pytest.mark.parametrize("odd", [0, 37, 99])
def test_a_lone_odd_patch_on_a_repeating_surface_is_the_most_dissimilar(odd: int) -> None:
    motif = features_of(4).repeat(5, 1)  # four kinds of patches over and over, in every row
    surface = motif[(torch.arange(10)[:, None] + torch.arange(10)) % 4].view(100, 4)
    features = surface + 0.05 * features_of(100, seed=1)
    features[odd] = -surface.mean(0)
    values = dissimilarity(features, torch.arange(100), (10, 10))
    assert int(values.argmax()) == odd
    assert values[odd] > 5 * values[torch.arange(100) != odd].max()


def test_a_patch_with_nothing_outside_its_window_gets_zero() -> None:
    assert dissimilarity(features_of(9), torch.arange(9), (3, 3)).tolist() == [0.0] * 9
    assert dissimilarity(features_of(1), torch.tensor([17]), (5, 6)).tolist() == [0.0]
    # Where only some patches are alone, the others are compared as ever.
    row = torch.tensor([[1.0, 0.0], [0.3, 0.7], [0.5, 0.1], [0.6, 0.8]])
    assert dissimilarity(row, torch.arange(4), (1, 4)).tolist() == pytest.approx([0.4, 0.0, 0.0, 0.4])


def test_fewer_candidates_than_neighbours_are_averaged_as_they_are() -> None:
    # The first patch sees the last two of five: their cosines to it are 0.6 and 0.8.
    row = torch.tensor([[1.0, 0.0], [1.0, 0.1], [1.0, 0.2], [0.6, 0.8], [0.8, 0.6]])
    assert float(dissimilarity(row, torch.arange(5), (1, 5), neighbours=10)[0]) == pytest.approx(0.3)
    assert float(dissimilarity(row, torch.arange(5), (1, 5), neighbours=1)[0]) == pytest.approx(0.2)


@pytest.mark.parametrize("grid", [(1, 9), (5, 6), (9, 4)])
def test_a_whole_grid_is_treated_like_any_live_set(grid: tuple[int, int]) -> None:
    count = grid[0] * grid[1]
    features, index = features_of(count), torch.arange(count)
    # With a row more, which is all dead, the same patches are only some of the grid.
    taller = (grid[0] + 1, grid[1])
    assert torch.equal(dissimilarity(features, index, grid), dissimilarity(features, index, taller))


def test_the_order_of_live_patches_does_not_matter() -> None:
    count = 20
    features, index = features_of(count), torch.arange(count)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0))
    shuffled = dissimilarity(features[order], index[order], (6, 6))
    torch.testing.assert_close(shuffled, dissimilarity(features, index, (6, 6))[order])


def test_dead_patches_are_not_compared_with() -> None:
    features = features_of(36)
    live = torch.tensor([0, 5, 14, 21, 30, 35])
    whole = dissimilarity(features, torch.arange(36), (6, 6), neighbours=1)[live]
    some = dissimilarity(features[live], live, (6, 6), neighbours=1)
    assert (some >= whole - 1e-12).all()  # the best likeness among fewer is no better
    assert (some > whole + 0.01).any()


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 9), st.integers(1, 9), st.data())
def test_landmarks_are_one_patch_in_nine_and_only_they_count(rows: int, columns: int, data: st.DataObject) -> None:
    live = sorted(data.draw(st.sets(st.integers(0, rows * columns - 1), min_size=1)))
    features = features_of(len(live))
    values = dissimilarity_to_landmarks(features, torch.tensor(live), (rows, columns)).tolist()
    for here, value in enumerate(values):
        others = []
        for there, cell in enumerate(live):
            apart = max(abs(cell // columns - live[here] // columns), abs(cell % columns - live[here] % columns)) > 2
            if apart and cell // columns % 3 == 1 and cell % columns % 3 == 1:
                others.append(float(torch.cosine_similarity(features[here], features[there], dim=0)))
        best = sorted(others, reverse=True)[:3]
        assert value == pytest.approx(1 - sum(best) / len(best) if best else 0.0, abs=1e-9)


def test_a_chessboard_of_landmarks_leaves_no_texture_between_them() -> None:
    chess = is_landmark(torch.arange(6 * 5), (6, 5), 2).view(6, 5)
    assert (chess[:, 1:] != chess[:, :-1]).all()
    assert (chess[1:] != chess[:-1]).all()
    stripes = torch.zeros(12 * 12, 4)
    stripes[torch.arange(144) // 12 % 3 == 1, 0] = 1.0  # what every third row shows is on every landmark of one in nine
    stripes[torch.arange(144) // 12 % 3 != 1, 1] = 1.0
    one_in_nine = dissimilarity_to_landmarks(stripes, torch.arange(144), (12, 12))
    chessboard = dissimilarity_to_landmarks(stripes, torch.arange(144), (12, 12), one_in=2)
    assert one_in_nine.max() > 0.9
    assert chessboard.max() < 1e-6


def test_the_reference_grid_has_a_ninth_of_its_patches_as_landmarks() -> None:
    assert int(is_landmark(torch.arange(37 * 37), (37, 37)).sum()) == 144
