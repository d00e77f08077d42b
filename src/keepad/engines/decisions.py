"""What a pass decides between its network segments, in NumPy: who stays, and what the survivors' responses mean.

Each function gives what its namesake in `routing`, `recovery` and `scoring` gives; tests hold them together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from keepad.arrays import Array
from keepad.budgets import block_ids, cell_ids, shallow_target, token_budget, top_count
from keepad.errors import KeepADError
from keepad.presets import Calibration, DeepBudget, OperatingPoint, Placement, ShallowBudget

Grid = tuple[int, int]

_EPS = 1e-6
_EDGE = 1e-4  # responses are kept so far from 0 and 1 that their logits stay finite


def standardised(values: Array) -> Array:
    """Zero mean and unit deviation over the cells of one image, (m,) -> (m,)."""
    return (values - values.mean()) / (values.std() + np.float32(_EPS))


def keep_shallow(scores: Array, index: Array, grid: Grid, budget: ShallowBudget) -> Array:
    """Positions of the tokens of one image that stay, ascending.

    Args:
        scores: (n,) scores of the live tokens.
        index: (n,) their places on the original grid, ascending.
        grid: Rows and columns of that grid.
        budget: What may be kept.
    """
    order = np.argsort(-scores, kind="stable")
    winners = _first_of_each(block_ids(index, grid, budget.block)[order])
    target = min(shallow_target(budget.rho, grid), len(scores))
    if len(winners) >= target and not budget.strict:
        return np.sort(order[np.sort(winners)[:target]])
    kept = np.zeros(len(scores), dtype=bool)  # by rank, best first
    kept[winners] = True
    residual = target - len(winners)
    if residual > 0:
        open_ranks = np.flatnonzero(~kept)
        best = _first_of_each(cell_ids(index[order[open_ranks]], grid, budget.cells))
        kept[open_ranks[np.sort(best)[: min(budget.diversity, residual)]]] = True
        rest = np.flatnonzero(~kept)
        kept[rest[: target - int(kept.sum())]] = True
    return np.sort(order[kept])


def _first_of_each(group: Array) -> Array:
    """Where each group is met first, by ascending group."""
    first = np.full(group.max(initial=-1) + 1, -1)
    first[group[::-1]] = np.arange(len(group))[::-1]  # of several the last one stays
    return first[first >= 0]


def numbered(names: Array) -> tuple[Array, Array]:
    """The distinct ones of some small numbers, ascending, and which of these each one is."""
    there = np.zeros(names.max(initial=-1) + 1, dtype=bool)
    there[names] = True
    return np.flatnonzero(there), (np.cumsum(there) - 1)[names]


def keep_deep(risk: Array, index: Array, grid: Grid, budget: DeepBudget) -> tuple[Array, float]:
    """Positions of the tokens of one image that stay, ascending, and E(I); see `routing.keep_deep`."""
    risk = risk.astype(np.float64)
    evidence = evidence_of(risk, budget.tail)
    target = token_budget(evidence, len(risk), budget)
    _, member = numbered(block_ids(index, grid, budget.block))
    count = np.bincount(member)
    order = np.argsort(-np.bincount(member, weights=risk) / count, kind="stable")
    joined = np.cumsum(count[order]) - count[order] < target  # tokens before this block do not suffice yet
    kept = np.zeros(len(count), dtype=bool)
    kept[order] = joined
    return np.flatnonzero(kept[member]), evidence


def evidence_of(risk: Array, tail: float = 0.03) -> float:
    """E(I) in [0, 1]: the mean of dispersion and upper tail of the standardised risks, (n,) in double precision."""
    u = _sigmoid((risk - risk.mean()) / (risk.std() + _EPS))
    mean = u.mean()
    top = np.sort(u)[-max(1, math.ceil(tail * len(u))) :].mean()
    dispersion = math.sqrt(min(1.0, 4 * u.var()))
    upper_tail = min(1.0, max(0.0, (top - mean) / max(1 - mean, _EPS)))
    return float((dispersion + upper_tail) / 2)


@dataclass(frozen=True)
class Known:
    """What the routers knew of one image's tokens when they dropped some; see `recovery.Known`."""

    scores: Array | None
    live: Array
    risk: Array | None


def recover(
    responses: Array, survivors: Array, grid: Grid, point: OperatingPoint, known: Known, grades: tuple
) -> Array:
    """Responses on the whole grid, (rows, columns), from those of the survivors, (k,)."""
    cells = grid[0] * grid[1]
    if len(survivors) == cells:
        return responses.reshape(grid)
    if point.recovery == "zero":
        whole = np.zeros(cells, dtype=responses.dtype)
        whole[survivors] = responses
        return whole.reshape(grid)
    if point.recovery != "graded":
        block = 2 if point.recovery == "same_block_first" else None
        return responses[owners_of(survivors, grid, block=block)].reshape(grid)
    kept = np.clip(responses, _EDGE, 1 - _EDGE)
    values = np.log(kept / (1 - kept))
    if len(survivors) < len(known.live):
        owner = owners_of(survivors, grid)[known.live]
        values = values[owner]
        if known.risk is not None:
            place = np.searchsorted(known.live, survivors)
            values = values + grades[1] * (known.risk - known.risk[place][owner])
    owner = owners_of(known.live, grid)
    values = values[owner]
    if known.scores is not None:
        values = values + grades[0] * (known.scores - known.scores[known.live][owner])
    return _sigmoid(values).reshape(grid)


def owners_of(survivors: Array, grid: Grid, *, block: int | None = None) -> Array:
    """Position within `survivors` of the owner of each grid cell, (rows * columns,).

    The nearest survivor of the cell's own block, if there is one and `block` is given, else the nearest anywhere;
    Euclidean on the grid, ties to the lower grid index.
    """
    rows, columns = grid
    owner = _nearest(survivors, grid)
    if block is None:
        return owner
    cell = np.arange(rows * columns)
    own, theirs = block_ids(cell, grid, block), block_ids(survivors, grid, block)
    for name in np.unique(theirs):
        members, mates = np.flatnonzero(own == name), np.flatnonzero(theirs == name)
        down = members[:, None] // columns - survivors[mates] // columns
        across = members[:, None] % columns - survivors[mates] % columns
        owner[members] = mates[(down**2 + across**2).argmin(1)]
    return owner


def _nearest(survivors: Array, grid: Grid) -> Array:
    """Position of the nearest survivor of each cell: along every row first, then over the rows."""
    rows, columns = grid
    far = rows + columns  # a row without survivors lies farther away than any real one
    # Half as wide as indices are wherever that holds the largest code: the passes over the codes are most of the cost.
    whole = np.int32 if (columns + 2 * far) ** 2 * rows * columns < 2**31 else np.int64
    row, column = np.arange(rows, dtype=whole), np.arange(columns, dtype=whole)
    alive = np.zeros(grid, dtype=bool)
    alive.reshape(-1)[survivors] = True
    left = np.maximum.accumulate(np.where(alive, column, whole(-far)), axis=1)
    right = np.minimum.accumulate(np.where(alive, column, whole(columns + far))[:, ::-1], axis=1)[:, ::-1]
    closest = np.where(column - left <= right - column, left, right)  # (rows, columns): in each row, from each column
    index = row[:, None] * columns + np.clip(closest, 0, columns - 1)
    across = (closest - column) ** 2 * whole(rows * columns) + index
    down = (row[:, None] - row) ** 2 * whole(rows * columns)  # (row of the cell, row of the survivor)
    code = across[None] + down[:, :, None]  # (rows, rows, columns)
    place = np.empty(rows * columns, dtype=np.int64)
    place[survivors] = np.arange(len(survivors))
    return place[code.min(1).reshape(-1) % (rows * columns)]


def image_score(
    responses: dict[int, Array],
    cls: dict[int, float],
    recovered: Array,
    point: OperatingPoint,
    placement: Placement,
    calibration: Calibration,
) -> float:
    """The score of one image in [0, 1], from survivor responses and CLS responses by layer."""
    cells = recovered.size

    def over(layers: tuple[int, ...]) -> float:
        patch = np.mean([responses[layer] for layer in layers], axis=0)
        top = np.sort(patch)[-top_count(len(patch), cells, calibration) :].mean()
        mean = float(np.mean([cls[layer] for layer in layers]))
        return mean + calibration.patch_weight * (float(top) - mean)

    if point.score == "base":
        return over(placement.base_layers)
    if point.score == "mid":
        return over(placement.mid_layers)
    if point.score == "recovered_topk":
        return float(np.sort(recovered, axis=None)[-top_count(cells, cells, calibration) :].mean())
    if point.score == "gated":
        base = over(placement.base_layers)
        z = (base - calibration.base_mean) / calibration.base_std
        gate = 1 / (1 + math.exp(-(z - calibration.gate_centre) / calibration.gate_temperature))
        return base + gate * (over(placement.mid_layers) - base)
    raise KeepADError(f"there is no image score called {point.score!r}.")


class Enlarger:
    """Patch maps at pixel size: smoothed, then bilinear.

    Nothing here is a large matrix product, because NumPy would wake threads of its own for one, and they would go on
    looking for work while the engine already computes the next image: a quarter more time where cores are few.

    Args:
        grid: Rows and columns of the patch grid.
        size: Height and width, in whole patches.
        smoothing: Sigma of a Gaussian in patches; 0 is off.
    """

    def __init__(self, grid: Grid, size: tuple[int, int], smoothing: float) -> None:
        self._blur = [_gaussian(cells, smoothing) for cells in grid] if smoothing > 0 else None
        self._patch = size[0] // grid[0], size[1] // grid[1]

    def __call__(self, patch_map: Array) -> Array:
        """(rows, columns) -> (H, W) float32 in [0, 1]."""
        found = patch_map.astype(np.float32)
        if self._blur is not None:
            down, across = self._blur
            found = np.einsum("ir,rc->ic", down, found)
            found = np.einsum("ic,jc->ij", found, across)
        wide = _stretched(found.T, self._patch[1]).T
        pixels = _stretched(np.ascontiguousarray(wide), self._patch[0])
        return np.clip(pixels, 0, 1, out=pixels)


def _stretched(values: Array, patch: int) -> Array:
    """(cells * patch, m) lines, each between those of the two cells whose centres it lies between; edges repeated."""
    cells, width = values.shape
    half = patch // 2
    share = (np.arange(patch, dtype=np.float32) + np.float32(half + 0.5)) / np.float32(patch) - np.float32(0.5)
    lines = np.empty((cells * patch, width), dtype=np.float32)
    lines[:half], lines[half + (cells - 1) * patch :] = values[0], values[-1]
    between = lines[half : half + (cells - 1) * patch].reshape(cells - 1, patch, width)
    np.multiply((values[1:] - values[:-1])[:, None], share[:, None], out=between)
    between += values[:-1, None]
    return lines


def _gaussian(cells: int, sigma: float) -> Array:
    """(cells, cells) weights of a Gaussian cut at four sigma, edges repeated."""
    radius = max(1, int(4 * sigma + 0.5))
    offset = np.arange(-radius, radius + 1)
    kernel = np.exp(-0.5 * (offset / sigma) ** 2)
    weights = np.zeros((cells, cells), dtype=np.float32)
    for step, weight in zip(offset, kernel / kernel.sum(), strict=True):
        np.add.at(weights, (np.arange(cells), np.clip(np.arange(cells) + step, 0, cells - 1)), weight)
    return weights


def _sigmoid(values: Array) -> Array:
    return 1 / (1 + np.exp(-values))
