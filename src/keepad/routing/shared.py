"""One budget over the tiles of a photograph: tokens compete with those of every tile.

Scores of a router are relative to their own tile, so they cannot say which tile has evidence. What all tiles share is
the surface: how far a token lies from the tokens of the whole photograph is the same question in every tile, and both
rank the tokens. A tile without evidence keeps a few tokens, so that its map can be recovered.

Results do not depend on the order of the tiles: everything that is summed is taken in the order of their corners.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from keepad.arrays import Array
from keepad.presets import DeepBudget, ShallowBudget
from keepad.routing.deep import DeepChoice, choose_blocks, cut_last_block, evidence_of, token_budget
from keepad.routing.grid import Grid, block_ids, cell_ids, first_of_each, is_landmark, standardise
from keepad.routing.shallow import shuffled

Corners = Sequence[tuple[int, int]]

_FLOOR_CELLS = 4  # a tile keeps the best token of each of 4 x 4 coarse cells at the shallow router,
LEAST_IN_TILE = 12  # and this many at least of each router; engines need ten to compare tokens with each other
_LANDMARKS = 256  # of all tiles together
_WINDOW = 2  # patches around a token whose receptive fields overlap with its own
_NEIGHBOURS = 3
_EPS = 1e-6


def in_order(corners: Corners) -> list[int]:
    """Numbers of the tiles by their corners, from the top left."""
    return sorted(range(len(corners)), key=lambda tile: corners[tile])


def far_from_others(features: Sequence[Array], cells: Sequence[Array], grid: Grid, corners: Corners) -> list[Array]:
    """(m,) mean distance of each token to its nearest landmarks in all tiles, those around itself left out.

    Args:
        features: (m, C) tokens of each tile, as unit vectors.
        cells: (m,) their grid indices.
        grid: Rows and columns of a tile.
        corners: Row and column of the first cell of each tile.
    """
    order = in_order(corners)
    at = [
        (np.stack(np.divmod(own, grid[1]), axis=1) + corner).astype(np.int16)
        for own, corner in zip(cells, corners, strict=True)
    ]
    chosen = [np.flatnonzero(is_landmark(own, grid)) for own in cells]
    rows = np.concatenate([features[tile][chosen[tile]] for tile in order])
    places = np.concatenate([at[tile][chosen[tile]] for tile in order])
    if len(rows) <= _NEIGHBOURS:  # too few of the lattice are alive
        rows, places = (np.concatenate([part[tile] for tile in order]) for part in (features, at))
    some = np.linspace(0, len(rows) - 1, min(len(rows), _LANDMARKS)).round().astype(np.int64)
    rows, places = rows[some], places[some]
    return [_distance(own, place, rows, places) for own, place in zip(features, at, strict=True)]


def _distance(features: Array, at: Array, rows: Array, places: Array) -> Array:
    """(m,) mean distance to the nearest landmarks outside the window; 0 where there is none."""
    cosine = features @ rows.T
    down, across = (np.abs(at[:, axis, None] - places[:, axis]) <= _WINDOW for axis in (0, 1))
    cosine[down & across] = -np.inf
    count = min(_NEIGHBOURS, cosine.shape[1])
    best = np.partition(cosine, -count, axis=1)[:, -count:]
    best.sort(axis=1)  # sums do not depend on the order in which the partition left them
    counted = np.isfinite(best)
    distance: Array = np.where(counted, 1 - best, 0).sum(1) / np.maximum(counted.sum(1), 1)
    return distance.astype(np.float32)


def pooled(scores: Sequence[Array], distances: Sequence[Array], corners: Corners) -> list[Array]:
    """(m,) scores of each tile that compare across tiles: standardised over all tiles, distances likewise, summed."""
    order = in_order(corners)
    counts = [len(scores[tile]) for tile in order]
    own, far = (standardise(np.concatenate([part[tile] for tile in order])) for part in (scores, distances))
    parts = np.split(own + far, np.cumsum(counts)[:-1])
    return _unordered(parts, order)


def share_shallow(
    scores: Sequence[Array],
    cells: Sequence[Array],
    grid: Grid,
    budget: ShallowBudget,
    corners: Corners,
    tokens: int,
) -> list[Array]:
    """Positions of the tokens of each tile that stay, ascending: a few of every tile, then the best of all tiles.

    Args:
        scores: (m,) scores that compare across tiles.
        cells: (m,) grid indices of the cells that count.
        grid: Rows and columns of a tile.
        budget: The share of the tokens that is kept.
        corners: Row and column of the first cell of each tile.
        tokens: Tokens of all tiles; fewer than cells where the pixel router let some share one.
    """
    order = in_order(corners)
    kept = [np.zeros(len(own), dtype=bool) for own in scores]
    for tile in order:
        best = np.argsort(-scores[tile], kind="stable")
        kept[tile][best[first_of_each(cell_ids(cells[tile], grid, _FLOOR_CELLS)[best])]] = True
        kept[tile][best[:LEAST_IN_TILE]] = True
    every = np.concatenate([scores[tile] for tile in order])
    alive = np.concatenate([kept[tile] for tile in order])
    left = max(0, round(budget.rho * tokens) - int(alive.sum()))
    rest = np.flatnonzero(~alive)
    ranked = (
        rest[np.argsort(-every[rest], kind="stable")] if budget.seed is None else shuffled(rest, budget.seed, every)
    )
    alive[ranked[:left]] = True
    parts = np.split(alive, np.cumsum([len(scores[tile]) for tile in order])[:-1])
    return [np.flatnonzero(own) for own in _unordered(parts, order)]


def share_deep(
    risks: Sequence[Array],
    cells: Sequence[Array],
    grid: Grid,
    budget: DeepBudget,
    corners: Corners,
    evidence: float | None = None,
) -> list[DeepChoice]:
    """Which tokens of each tile stay: evidence of the photograph sets one budget, for which all blocks compete.

    Args:
        risks: (m,) risks that compare across tiles.
        cells: (m,) grid indices of the live cells.
        grid: Rows and columns of a tile.
        budget: From evidence to a token budget.
        corners: Row and column of the first cell of each tile.
        evidence: Of the photograph; that of its risks alone if None.
    """
    order = in_order(corners)
    every = np.concatenate([risks[tile] for tile in order]).astype(np.float64)
    evidence = evidence_of(every, budget.tail, budget.evidence) if evidence is None else evidence
    blocks = grid[0] * grid[1]  # more than a tile has
    block = [block_ids(own, grid, budget.block) for own in cells]
    floors = [choose_blocks(risks[tile], block[tile], LEAST_IN_TILE)[1] for tile in order]
    floor = np.concatenate(floors)
    target = max(token_budget(evidence, len(every), budget), int(floor.sum()))
    first = every + floor * (np.ptp(every) + 1)  # blocks of the floor join before any other
    of_all = np.concatenate([block[tile] + number * blocks for number, tile in enumerate(order)])
    joined, alive = choose_blocks(first, of_all, target)
    if budget.exact:
        cut_last_block(first, of_all, joined, alive, target)
    parts = np.split(alive, np.cumsum([len(risks[tile]) for tile in order])[:-1])
    return [DeepChoice(np.flatnonzero(own), evidence, int(own.sum())) for own in _unordered(parts, order)]


def _unordered(parts: Sequence[Array], order: Sequence[int]) -> list[Array]:
    """Parts that are in order, by the number of their tile."""
    numbered = dict(zip(order, parts, strict=True))
    return [numbered[tile] for tile in range(len(order))]
