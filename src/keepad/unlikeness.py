"""Unlikeness: how unlike the rest of its own image a patch is.

Nothing is learned and no other image is looked at. A surface repeats itself, a defect mostly does not, so a patch that
finds no likeness elsewhere in its image is suspicious. Neighbours do not count: they overlap in what they have seen.
"""

from __future__ import annotations

from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

NEIGHBOURS = 10
WINDOW = 5
_STRIDE = 3  # landmarks stand in every third row and column, so that one patch in nine is one
_NEAREST = 3  # landmarks that count


def unlikeness(
    features: Tensor, index: Tensor, grid: tuple[int, int], *, neighbours: int = NEIGHBOURS, window: int = WINDOW
) -> Tensor:
    """One minus the mean cosine of each patch to its most similar patches outside its window, (n, C) -> (n,).

    A patch with nothing outside its window gets 0: there is nothing that it could be unlike.

    Args:
        features: (n, C) live patches of one image.
        index: (n,) their grid indices, ascending.
        grid: Rows and columns of the whole grid.
        neighbours: How many of the most similar patches count.
        window: Side of the square around a patch, in patches, in which no other one counts.
    """
    unit = F.normalize(features, dim=-1)
    near = _near(grid, window, features.device) if len(index) == grid[0] * grid[1] else _near_of(index, grid, window)
    cosine = (unit @ unit.T).masked_fill_(near, -torch.inf)
    return _far_from(cosine, neighbours)


def unlikeness_to_landmarks(features: Tensor, index: Tensor, grid: tuple[int, int]) -> Tensor:
    """Unlikeness measured against one patch in nine, for a ninth of the cost, (n, C) -> (n,); 0 where none is alive."""
    landmark = _on_lattice(index, grid).nonzero().squeeze(1)
    unit = F.normalize(features, dim=-1)
    near = _near_of(index, grid, WINDOW, landmark)
    cosine = (unit @ unit[landmark].T).masked_fill_(near, -torch.inf)
    return _far_from(cosine, _NEAREST)


def landmarks(grid: tuple[int, int]) -> int:
    """How many landmarks a whole grid has."""
    return int(_on_lattice(torch.arange(grid[0] * grid[1]), grid).sum())


def _on_lattice(index: Tensor, grid: tuple[int, int]) -> Tensor:
    """(n,) whether a patch is a landmark."""
    middle = _STRIDE // 2
    return (index // grid[1] % _STRIDE == middle) & (index % grid[1] % _STRIDE == middle)


def _far_from(cosine: Tensor, neighbours: int) -> Tensor:
    """One minus the mean of the highest cosines in each row; those that are minus infinity do not count."""
    best = cosine.topk(min(neighbours, cosine.shape[1]), dim=1, sorted=False).values
    found = best > -torch.inf
    return torch.where(found, 1 - best, 0).sum(1) / found.sum(1).clamp(min=1)


def _near_of(index: Tensor, grid: tuple[int, int], window: int, others: Tensor | None = None) -> Tensor:
    """(n, n) whether two patches lie within each other's window; only columns `others` where they are given."""
    reach = window // 2
    row, column = index // grid[1], index % grid[1]
    other = slice(None) if others is None else others
    return ((row[:, None] - row[other]).abs() <= reach) & ((column[:, None] - column[other]).abs() <= reach)


@lru_cache(maxsize=4)
def _near(grid: tuple[int, int], window: int, device: torch.device) -> Tensor:
    """The same for a whole grid, made once."""
    return _near_of(torch.arange(grid[0] * grid[1], device=device), grid, window)
