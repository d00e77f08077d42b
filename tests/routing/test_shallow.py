"""Coverage and rescue, on grids small enough to draw and on every shape hypothesis can think of."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepad.presets import POINTS, Calibration, ShallowBudget, resolved
from keepad.routing import keep_shallow, shallow_target
from live_grids import block_of, live_tokens

NO_DIVERSITY = {"diversity": 0}


def kept_of(picture: str, **budget: object) -> str:
    """Survivors drawn as # on the grid whose scores are drawn as digits; a blank is a token that is not alive."""
    rows = [line.strip().split("|")[1] for line in picture.strip().splitlines()]
    cells = [
        (r * len(rows[0]) + c, int(char)) for r, line in enumerate(rows) for c, char in enumerate(line) if char != " "
    ]
    index = np.array([cell for cell, _ in cells])
    scores = np.array([float(score) for _, score in cells])
    keep = keep_shallow(scores, index, (len(rows), len(rows[0])), ShallowBudget(**budget))  # type: ignore[arg-type]
    alive = set(index[keep].tolist())
    return "\n".join(
        "".join("#" if r * len(rows[0]) + c in alive else "." for c in range(len(rows[0]))) for r in range(len(rows))
    )


def drawn(picture: str) -> str:
    return "\n".join(line.strip().strip("|") for line in picture.strip().splitlines())


def test_coverage_keeps_the_best_token_of_every_block() -> None:
    scores = """
        |9812|
        |0034|
        |5500|
        |5501|
    """
    assert kept_of(scores, rho=4 / 16, **NO_DIVERSITY) == drawn("""
        |#...|
        |...#|
        |#...|
        |...#|
    """)


def test_rescue_spends_the_residual_by_score() -> None:
    scores = """
        |9812|
        |0034|
        |5500|
        |5501|
    """
    assert kept_of(scores, rho=6 / 16, **NO_DIVERSITY) == drawn("""
        |##..|
        |...#|
        |##..|
        |...#|
    """)


def test_coverage_goes_by_the_scores_and_rescue_by_the_smoothed_ones() -> None:
    scores = np.array([9, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 5], dtype=np.float32)
    smoothed = np.zeros(16, dtype=np.float32)
    smoothed[[2, 3]] = 1.0  # where the scores themselves see nothing
    budget = ShallowBudget(rho=5 / 16, diversity=0)
    kept = keep_shallow(scores, np.arange(16), (4, 4), budget, smoothed=smoothed)
    assert kept.tolist() == [0, 2, 6, 8, 15]  # the best of every 2x2 block, and one of the smoothed scores' own
    assert keep_shallow(scores, np.arange(16), (4, 4), budget).tolist() == [0, 1, 6, 8, 15]


def test_diversity_comes_before_score_and_takes_distinct_cells() -> None:
    # Four coarse cells, two slots: the runner-up of the best cell and the runner-up of the second best one.
    scores = """
        |98  1  2|
        |76      |
        |        |
        |5       |
        |4      3|
        |        |
        |        |
        |2      1|
    """
    assert kept_of(scores, rho=9 / 64, diversity=1, cells=2) == drawn("""
        |##..#..#|
        |........|
        |........|
        |#.......|
        |#......#|
        |........|
        |........|
        |#......#|
    """)


def test_odd_sides_end_in_smaller_blocks() -> None:
    scores = """
        |123|
        |456|
        |789|
    """
    assert kept_of(scores, rho=0.1) == drawn("""
        |...|
        |.##|
        |.##|
    """)


def test_ties_go_to_the_lower_grid_index() -> None:
    assert kept_of("|1111|\n|1111|", rho=3 / 8, **NO_DIVERSITY) == drawn("|###.|\n|....|")


def test_without_strict_only_the_best_winners_stay_when_the_target_is_below_the_floor() -> None:
    scores = """
        |9812|
        |0034|
        |5500|
        |5501|
    """
    assert kept_of(scores, rho=2 / 16, strict=False) == drawn("""
        |#...|
        |....|
        |#...|
        |....|
    """)
    assert kept_of(scores, rho=2 / 16, strict=True).count("#") == 4


@pytest.mark.parametrize(("share", "target"), [("30", 958), ("50", 684), ("70", 411)])
@pytest.mark.parametrize(("geometry", "blocks"), [("paper", 361), ("prune", 169)])
def test_reference_grid(geometry: str, blocks: int, share: str, target: int) -> None:
    """37x37: 361 blocks of 2x2 or 169 of 3x3; targets 958, 684, 411, all of them above the floor."""
    point = f"{geometry}{share}"
    budget = resolved(POINTS[point], Calibration()).shallow
    assert budget is not None
    assert shallow_target(budget.rho, (37, 37)) == target
    scores = np.random.default_rng(3).random(1369)
    index = np.arange(1369)
    assert len(keep_shallow(scores, index, (37, 37), budget)) == target
    floor = keep_shallow(scores, index, (37, 37), ShallowBudget(rho=0.0, block=budget.block))
    assert len(floor) == blocks
    assert set(floor.tolist()) <= set(keep_shallow(scores, index, (37, 37), budget).tolist())


@settings(deadline=None, max_examples=150)
@given(live_tokens(), st.floats(0, 1), st.integers(0, 20))
def test_floor_count_and_rescue_hold_on_every_grid(tokens, rho, diversity) -> None:
    scores, index, grid = tokens
    keep = keep_shallow(scores, index, grid, ShallowBudget(rho, diversity=diversity))
    kept = index[keep].tolist()
    blocks = {block_of(cell, grid) for cell in index.tolist()}

    assert kept == sorted(set(kept)), "ascending, distinct"
    assert {block_of(cell, grid) for cell in kept} == blocks, "the floor: every non-empty block keeps a token"
    target = max(len(blocks), round(rho * grid[0] * grid[1]))
    assert len(kept) == min(target, len(index))
    # coverage is the best of each block, ties to the lower index
    score_at = dict(zip(index.tolist(), scores.tolist(), strict=True))
    winners = {min((p for p in score_at if block_of(p, grid) == b), key=lambda p: (-score_at[p], p)) for b in blocks}
    assert winners <= set(kept)
    # rescue: the best open token of distinct 8x8 cells first, then by score
    rest = sorted(set(score_at) - winners, key=lambda p: (-score_at[p], p))
    residual = len(kept) - len(winners)
    diverse: list[int] = []
    taken: set[tuple[int, int]] = set()
    for cell in rest:
        coarse = (cell // grid[1] * 8 // grid[0], cell % grid[1] * 8 // grid[1])
        if coarse not in taken and len(diverse) < min(diversity, residual):
            taken.add(coarse)
            diverse.append(cell)
    by_score = [cell for cell in rest if cell not in diverse][: residual - len(diverse)]
    assert set(kept) == winners | set(diverse) | set(by_score)


@settings(deadline=None, max_examples=60)
@given(live_tokens(), st.floats(0, 1))
def test_not_strict_never_exceeds_the_target(tokens, rho) -> None:
    scores, index, grid = tokens
    keep = keep_shallow(scores, index, grid, ShallowBudget(rho, strict=False))
    assert len(keep) == min(round(rho * grid[0] * grid[1]), len(index))


def test_random_rescue_keeps_coverage_and_depends_on_seed_and_image_alone() -> None:
    grid, cells = (6, 6), np.arange(36)
    scores = np.random.default_rng(0).random(36).astype(np.float32)
    winners = keep_shallow(scores, cells, grid, ShallowBudget(0.0))
    draws = [keep_shallow(scores, cells, grid, ShallowBudget(0.5, seed=seed)) for seed in (11, 11, 29)]
    assert [len(draw) for draw in draws] == [18, 18, 18]
    assert all(set(winners) < set(draw) for draw in draws)
    np.testing.assert_array_equal(draws[0], draws[1])
    assert not np.array_equal(draws[0], draws[2])
    assert not np.array_equal(draws[0], keep_shallow(scores + 1, cells, grid, ShallowBudget(0.5, seed=11)))
