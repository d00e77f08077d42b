"""Dissimilarity: one minus the cosine of a patch to its most similar patches elsewhere in the same image.

A surface repeats itself and a defect mostly does not. Nothing is learned, and no other image is involved. Patches
within a window around a patch are excluded, since their receptive fields overlap.
"""

from __future__ import annotations

from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from keepad.context import Context
from keepad.routing.grid import is_landmark
from keepad.tokens import Merge

NEIGHBOURS = 10
WINDOW = 5
_LANDMARK_NEIGHBOURS = 3


def dissimilarity(
    features: Tensor,
    index: Tensor,
    grid: tuple[int, int],
    *,
    merge: Merge | None = None,
    neighbours: int = NEIGHBOURS,
    window: int = WINDOW,
) -> Tensor:
    """One minus the mean cosine of each cell to its most similar cells outside its window, (n, C) -> (m,).

    0 where no live cell lies outside the window.

    Args:
        features: (n, C) live tokens of one image.
        index: (m,) grid indices of the live cells, ascending.
        grid: Rows and columns of the whole grid.
        merge: Which token each cell uses; None if each has its own.
        neighbours: Most similar cells that count.
        window: Side of the excluded square around a cell, in patches.
    """
    # An exported graph serves any number of cells, so it cannot take the cached mask of a whole grid.
    whole = not torch.compiler.is_compiling() and len(index) == grid[0] * grid[1]
    near = _near_on_grid(grid, window, features.device) if whole else near_pairs(index, grid, window)
    unit = F.normalize(features, dim=-1)
    cosine = unit @ unit.T
    if merge is not None:  # products are per token, however many cells share one
        cosine = cosine.index_select(1, merge.token).index_select(0, merge.token)
    return _mean_distance(cosine.masked_fill_(near, -torch.inf), neighbours)


def dissimilarity_to_landmarks(
    features: Tensor,
    index: Tensor,
    grid: tuple[int, int],
    *,
    merge: Merge | None = None,
    landmarks: Tensor | None = None,
    one_in: int = 9,
) -> Tensor:
    """Dissimilarity to the landmarks alone, one cell in nine or two, at that share of the cost, (n, C) -> (m,).

    0 where no landmark is alive outside the window. Other arguments are those of `dissimilarity`.

    Args:
        landmarks: Positions of the landmarks among the cells; computed here if None.
        one_in: One in how many cells is a landmark.
    """
    if landmarks is not None:
        near = near_pairs(index, grid, others=landmarks)
    elif len(index) == grid[0] * grid[1]:
        landmarks, near = _landmarks_on_grid(grid, features.device, one_in)
    else:
        landmarks = is_landmark(index, grid, one_in).nonzero().squeeze(1)
        near = near_pairs(index, grid, others=landmarks)
    unit = F.normalize(features, dim=-1)
    cosine = unit @ unit[landmarks if merge is None else merge.token[landmarks]].T
    if merge is not None:
        cosine = cosine.index_select(0, merge.token)
    return _mean_distance(cosine.masked_fill_(near, -torch.inf), _LANDMARK_NEIGHBOURS)


def dissimilarity_in_context(
    features: Tensor, index: Tensor, grid: tuple[int, int], context: Context, *, merge: Merge | None = None
) -> Tensor:
    """Dissimilarity of the live cells of an image whose dropped tokens are known roughly, (n, C) -> (m,).

    Among live cells alone it is too large, since the like of a cell may have been dropped; among all of them too small,
    since a dropped token was carried by live ones. Their mean is near to what a dense pass gives.
    """
    count, cells = features.shape[0], index.shape[0]  # len() would become a constant of an exported graph
    unit = F.normalize(torch.cat([features, context.x]), dim=-1)
    own = torch.arange(cells, device=index.device) if merge is None else merge.token
    cosine = (unit[:count] @ unit.T).index_select(1, torch.cat([own, count + context.token]))
    cosine = cosine if merge is None else cosine.index_select(0, own)
    live = cosine[:, :cells].masked_fill(near_pairs(index, grid), -torch.inf)
    apart = _near(index, context.cells, grid, WINDOW) | (context.size[context.token] == 0)
    both = torch.cat([live, cosine[:, cells:].masked_fill(apart, -torch.inf)], dim=1)
    return (_mean_distance(live, NEIGHBOURS) + _mean_distance(both, NEIGHBOURS)) / 2


def near_pairs(index: Tensor, grid: tuple[int, int], window: int = WINDOW, others: Tensor | None = None) -> Tensor:
    """(n, n) whether two cells lie within each other's window; only the columns at `others`, if given."""
    return _near(index, index if others is None else index[others], grid, window)


def _near(index: Tensor, others: Tensor, grid: tuple[int, int], window: int) -> Tensor:
    """(n, m) whether cells lie within the window of other cells."""
    reach = window // 2
    # int32: these matrices are the largest here and are bound by memory traffic
    (row, column), (other_row, other_column) = (
        ((cells // grid[1]).int(), (cells % grid[1]).int()) for cells in (index, others)
    )
    return ((row[:, None] - other_row).abs_() <= reach) & ((column[:, None] - other_column).abs_() <= reach)


def _mean_distance(cosine: Tensor, neighbours: int) -> Tensor:
    """One minus the mean of the highest cosines of each row; minus infinity does not count."""
    best = cosine.topk(min(neighbours, cosine.shape[1]), dim=1, sorted=False).values
    counted = best > -torch.inf
    return torch.where(counted, 1 - best, 0).sum(1) / counted.sum(1).clamp(min=1)


@lru_cache(maxsize=4)
def _near_on_grid(grid: tuple[int, int], window: int, device: torch.device) -> Tensor:
    """`near_pairs` of a whole grid."""
    return near_pairs(torch.arange(grid[0] * grid[1], device=device), grid, window)


@lru_cache(maxsize=4)
def _landmarks_on_grid(grid: tuple[int, int], device: torch.device, one_in: int) -> tuple[Tensor, Tensor]:
    """Landmarks of a whole grid, and their `near_pairs` with all cells."""
    cells = torch.arange(grid[0] * grid[1], device=device)
    landmarks = is_landmark(cells, grid, one_in).nonzero().squeeze(1)
    return landmarks, near_pairs(cells, grid, others=landmarks)
