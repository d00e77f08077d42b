"""An order of tokens that depends on nothing but score and place."""

from __future__ import annotations

import torch
from torch import Tensor


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
