"""Shallow router: one token of every block stays (coverage), the rest of the budget goes to the riskiest (rescue)."""

from __future__ import annotations

import torch
from torch import Tensor

from keepad.budgets import block_ids, cell_ids, shallow_target
from keepad.presets import ShallowBudget
from keepad.routing.grid import best_of_each, rank_best_first


def keep_shallow(scores: Tensor, index: Tensor, grid: tuple[int, int], budget: ShallowBudget) -> Tensor:
    """Positions of the tokens of one image that stay, in ascending grid order.

    Args:
        scores: (n,) visual scores of the live tokens.
        index: (n,) their places on the original grid.
        grid: Rows and columns of that grid.
        budget: What may be kept.
    """
    order, rank = rank_best_first(scores, index)
    rows, columns = grid
    blocks = -(-rows // budget.block) * -(-columns // budget.block)
    winners = best_of_each(block_ids(index, grid, budget.block), blocks, rank)
    target = min(shallow_target(budget.rho, grid), len(scores))

    if len(winners) >= target and not budget.strict:
        return _in_grid_order(order[winners.sort().values[:target]], index)
    kept = torch.zeros(len(scores), dtype=torch.bool, device=scores.device)  # by rank, best first
    kept[winners] = True
    residual = target - len(winners)
    if residual > 0:
        kept[_diverse(order, rank, kept, index, grid, budget, residual)] = True
        rest = (~kept).nonzero().squeeze(1)
        kept[rest[: target - int(kept.sum())]] = True
    return _in_grid_order(order[kept], index)


def _diverse(
    order: Tensor,
    rank: Tensor,
    kept: Tensor,
    index: Tensor,
    grid: tuple[int, int],
    budget: ShallowBudget,
    residual: int,
) -> Tensor:
    """Ranks of the best tokens not yet kept of distinct coarse cells, best cells first, within the diversity slots."""
    open_ranks = (~kept).nonzero().squeeze(1)
    cell = cell_ids(index[order[open_ranks]], grid, budget.cells)
    best = best_of_each(cell, budget.cells**2, torch.arange(len(open_ranks), device=rank.device))
    return open_ranks[best.sort().values[: min(budget.diversity, residual)]]


def _in_grid_order(positions: Tensor, index: Tensor) -> Tensor:
    return positions[index[positions].argsort()]
