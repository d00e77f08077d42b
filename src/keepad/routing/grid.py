"""Cells of the original patch grid, and an order of tokens that depends on nothing but score and place."""

from __future__ import annotations

import torch
from torch import Tensor


def block_ids(index: Tensor, grid: tuple[int, int], size: int) -> Tensor:
    """Block of each token, (n,); blocks of size x size cells, smaller ones at the end of an uneven side."""
    columns = grid[1]
    across = -(-columns // size)
    return index // columns // size * across + index % columns // size


def cell_ids(index: Tensor, grid: tuple[int, int], cells: int) -> Tensor:
    """Cell of each token, (n,), when the grid is cut into cells x cells nearly equal parts."""
    rows, columns = grid
    return index // columns * cells // rows * cells + index % columns * cells // columns


def rank_best_first(scores: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    """Positions from the best score to the worst, and the rank of each position; ties go to the lower grid index."""
    by_place = index.argsort()
    order = by_place[scores[by_place].argsort(descending=True, stable=True)]
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order), device=order.device)
    return order, rank


def best_of_each(group: Tensor, groups: int, rank: Tensor) -> Tensor:
    """Rank of the best member of each non-empty group, in ascending group order."""
    empty = len(rank)
    best = torch.full((groups,), empty, dtype=rank.dtype, device=rank.device)
    best = best.scatter_reduce(0, group, rank, "amin")
    return best[best < empty]
