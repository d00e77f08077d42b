"""One budget over tiles: every tile keeps a few tokens, the rest go where scores are highest, in any order."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from keepad.presets import DeepBudget, ShallowBudget
from keepad.routing import far_from_others, pooled, share_deep, share_shallow

grids = st.tuples(st.integers(4, 9), st.integers(4, 12))


@given(grid=grids, tiles=st.integers(1, 5), rho=st.floats(0.1, 0.9), seed=st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_one_budget_is_spent_by_score_whatever_the_order(
    grid: tuple[int, int], tiles: int, rho: float, seed: int
) -> None:
    random = np.random.default_rng(seed)
    count = grid[0] * grid[1]
    alive = random.integers(min(14, count), count + 1, tiles)
    cells = [np.sort(random.choice(count, number, replace=False)) for number in alive]
    scores = [random.normal(size=len(own)).astype(np.float32) for own in cells]
    corners = [(0, 5 * number) for number in range(tiles)]
    keep = share_shallow(scores, cells, grid, ShallowBudget(rho), corners, sum(map(len, cells)))
    total = sum(len(own) for own in cells)
    for own, kept in zip(scores, keep, strict=True):
        assert np.array_equal(kept, np.unique(kept))
        assert len(kept) >= 12
        assert int(own.argmax()) in kept.tolist()
    if sum(len(kept) for kept in keep) > 28 * tiles:  # beyond the floor
        assert sum(len(kept) for kept in keep) == round(rho * total)
    order = random.permutation(tiles).tolist()
    shuffled = [scores[i] for i in order], [cells[i] for i in order], [corners[i] for i in order]
    again = share_shallow(shuffled[0], shuffled[1], grid, ShallowBudget(rho), shuffled[2], total)
    for position, number in enumerate(order):
        assert keep[number].tolist() == again[position].tolist()
    live = [own[kept] for own, kept in zip(cells, keep, strict=True)]
    risks = [own[kept] for own, kept in zip(scores, keep, strict=True)]
    choices = share_deep(risks, live, grid, DeepBudget(), corners)
    assert all(len(choice.keep) >= min(12, len(own)) for choice, own in zip(choices, live, strict=True))
    assert len({choice.evidence for choice in choices}) == 1


def test_a_tile_with_high_scores_takes_from_the_others() -> None:
    cells = [np.arange(100)] * 3
    scores = [np.linspace(0, 1, 100, dtype=np.float32) + level for level in (0, 5, 0)]
    keep = share_shallow(scores, cells, (10, 10), ShallowBudget(0.5), [(0, 0), (0, 10), (0, 20)], 300)
    assert [len(own) for own in keep] == [150 - 100 - len(keep[2]), 100, len(keep[2])]
    assert all(12 <= len(own) <= 28 or len(own) == 100 for own in keep)


def test_what_repeats_in_other_tiles_is_near_and_what_does_not_is_far() -> None:
    random = np.random.default_rng(0)
    words = random.normal(size=(4, 16))
    words /= np.linalg.norm(words, axis=1, keepdims=True)
    features = [words[np.arange(81) % 2].astype(np.float32) for _ in range(2)]
    features[1][40:43] = words[3]
    far = far_from_others(features, [np.arange(81)] * 2, (9, 9), [(0, 0), (0, 9)])
    assert far[0].max() < 0.01
    assert np.flatnonzero(far[1] > 0.2).tolist() == [40, 41, 42]
    scores = pooled([np.zeros(81, np.float32)] * 2, far, [(0, 0), (0, 9)])
    assert scores[1][41] == max(own.max() for own in scores)


def test_landmarks_around_a_token_do_not_count_even_in_another_tile() -> None:
    """A defect in the overlap of two tiles is in both of them; it must not make itself look normal."""
    features = [np.tile(np.eye(8, dtype=np.float32)[0], (81, 1)) for _ in range(2)]
    for tile, columns in ((0, (6, 7, 8)), (1, (0, 1, 2))):  # columns 6 to 8 of the photograph
        for row in (3, 4, 5):
            for column in columns:
                features[tile][row * 9 + column] = np.eye(8)[1]
    far = far_from_others(features, [np.arange(81)] * 2, (9, 9), [(0, 0), (0, 6)])
    assert far[0][4 * 9 + 7] > 0.9
    assert far[1][4 * 9 + 1] > 0.9


def test_controls_hold_for_tiles_too() -> None:
    random = np.random.default_rng(3)
    cells, corners = [np.arange(100)] * 3, [(0, 0), (0, 10), (0, 20)]
    scores = [random.normal(size=100).astype(np.float32) for _ in cells]
    drawn, again, ranked = (
        share_shallow(scores, cells, (10, 10), ShallowBudget(0.6, seed=seed), corners, 300) for seed in (1, 1, None)
    )
    assert [own.tolist() for own in drawn] == [own.tolist() for own in again]
    assert [own.tolist() for own in drawn] != [own.tolist() for own in ranked]
    assert sum(map(len, drawn)) == sum(map(len, ranked)) == 180
    (var, tail, both) = (
        share_deep(scores, cells, (10, 10), DeepBudget(evidence=kind), corners)[0].evidence
        for kind in ("var", "tail", "both")
    )
    assert both == (var + tail) / 2
    fixed = DeepBudget(rho_min=0.43, rho_max=0.43, kappa=1.0, exact=True)  # 129 of 300, and blocks hold four
    assert sum(len(own.keep) for own in share_deep(scores, cells, (10, 10), fixed, corners)) == 129
