"""Dissimilarity: how unlike the rest of its own image a patch is.

Nothing is learned and no other image is looked at. A surface repeats itself, a defect mostly does not, so a patch that
finds no likeness elsewhere in its image is suspicious. Neighbours do not count: they overlap in what they have seen.
"""

from __future__ import annotations

from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from keepad.budgets import on_lattice

NEIGHBOURS = 10
WINDOW = 5
_NEAREST = 3  # landmarks that count


def dissimilarity(
    features: Tensor,
    index: Tensor,
    grid: tuple[int, int],
    *,
    place: Tensor | None = None,
    neighbours: int = NEIGHBOURS,
    window: int = WINDOW,
) -> Tensor:
    """One minus the mean cosine of each patch to its most similar patches outside its window, (n, C) -> (m,).

    A patch with nothing outside its window gets 0: there is nothing that it could be unlike.

    Args:
        features: (n, C) live tokens of one image.
        index: (m,) grid indices of the live cells, ascending.
        grid: Rows and columns of the whole grid.
        place: (m,) which of the tokens each cell has; None if each has its own.
        neighbours: How many of the most similar patches count.
        window: Side of the square around a patch, in patches, in which no other one counts.
    """
    near = _near(grid, window, features.device) if len(index) == grid[0] * grid[1] else near_of(index, grid, window)
    return dissimilarity_outside(features, near, place=place, neighbours=neighbours)


def dissimilarity_to_landmarks(
    features: Tensor,
    index: Tensor,
    grid: tuple[int, int],
    *,
    place: Tensor | None = None,
    landmarks: Tensor | None = None,
) -> Tensor:
    """Dissimilarity measured against one patch in nine, for a ninth of the cost, (n, C) -> (m,); 0 where none is alive.

    Args:
        features: (n, C) live tokens of one image.
        index: (m,) grid indices of the live cells, ascending.
        grid: Rows and columns of the whole grid.
        place: (m,) which of the tokens each cell has; None if each has its own.
        landmarks: Positions of the landmarks among the cells; found here if None.
    """
    if landmarks is not None:
        near = near_of(index, grid, others=landmarks)
    elif len(index) == grid[0] * grid[1]:
        landmarks, near = _landmarks(grid, features.device)
    else:
        landmarks = on_lattice(index, grid).nonzero().squeeze(1)
        near = near_of(index, grid, others=landmarks)
    return dissimilarity_outside(features, near, others=landmarks, place=place, neighbours=_NEAREST)


def dissimilarity_outside(
    features: Tensor,
    near: Tensor,
    *,
    others: Tensor | None = None,
    place: Tensor | None = None,
    neighbours: int = NEIGHBOURS,
) -> Tensor:
    """Dissimilarity of patches, (n, C) -> (m,), to those that are not near.

    Args:
        features: (n, C) live tokens of one image.
        near: (m, m) pairs of cells that do not count, or (m, k) where only k others are asked.
        others: (k,) positions of those, or None for all.
        place: (m,) which of the tokens each cell has; None if each has its own.
        neighbours: How many of the most similar patches count.
    """
    unit = F.normalize(features, dim=-1)
    if others is not None:
        asked = unit[others if place is None else place[others]]
        cosine = unit @ asked.T if place is None else (unit @ asked.T).index_select(0, place)
    elif place is None:
        cosine = unit @ unit.T
    else:  # each pair of tokens once, however many cells share them
        cosine = (unit @ unit.T).index_select(1, place).index_select(0, place)
    return _far_from(cosine.masked_fill_(near, -torch.inf), neighbours)


def _far_from(cosine: Tensor, neighbours: int) -> Tensor:
    """One minus the mean of the highest cosines in each row; those that are minus infinity do not count."""
    best = cosine.topk(min(neighbours, cosine.shape[1]), dim=1, sorted=False).values
    found = best > -torch.inf
    return torch.where(found, 1 - best, 0).sum(1) / found.sum(1).clamp(min=1)


def near_of(index: Tensor, grid: tuple[int, int], window: int = WINDOW, others: Tensor | None = None) -> Tensor:
    """(n, n) whether two patches lie within each other's window; only columns `others` where they are given."""
    reach = window // 2
    # Half as wide as indices are: these are the largest things here, and they only pass through the caches.
    row, column = (index // grid[1]).int(), (index % grid[1]).int()
    other = slice(None) if others is None else others
    return ((row[:, None] - row[other]).abs_() <= reach) & ((column[:, None] - column[other]).abs_() <= reach)


@lru_cache(maxsize=4)
def _near(grid: tuple[int, int], window: int, device: torch.device) -> Tensor:
    """The same for a whole grid, made once."""
    return near_of(torch.arange(grid[0] * grid[1], device=device), grid, window)


@lru_cache(maxsize=4)
def _landmarks(grid: tuple[int, int], device: torch.device) -> tuple[Tensor, Tensor]:
    """Landmarks of a whole grid, and which patches lie within each other's window, made once."""
    cells = torch.arange(grid[0] * grid[1], device=device)
    landmarks = on_lattice(cells, grid).nonzero().squeeze(1)
    return landmarks, near_of(cells, grid, others=landmarks)
