"""Relaxation: soft masks in (0, 1] beside the hard choices of the routers, so that gradients reach the selectors."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from keepad.arrays import Array
from keepad.presets import DeepBudget
from keepad.routing import Grid, block_ids, choose_blocks, relabel

_EPS = 1e-6
_SHALLOW_TEMPERATURE = 0.20
_DEEP_TEMPERATURE = 0.12


@dataclass(frozen=True)
class BlockValues:
    """Reductions over the tokens of each non-empty block.

    Attributes:
        member: (n,) number of each token's block, counted over the non-empty ones.
        count: Non-empty blocks.
    """

    member: Tensor
    count: int

    @staticmethod
    def of(cells: Array, grid: Grid, size: int, device: torch.device | None = None) -> BlockValues:
        """Blocks of size x size cells that hold the tokens at `cells`, (n,) grid indices."""
        blocks, member = relabel(block_ids(cells, grid, size))
        return BlockValues(torch.from_numpy(member).to(device), len(blocks))

    def sum(self, values: Tensor) -> Tensor:
        """(n,) -> (count,)"""
        return values.new_zeros(self.count).index_add(0, self.member, values)

    def mean(self, values: Tensor) -> Tensor:
        """(n,) -> (count,)"""
        return self.sum(values) / self.sum(torch.ones_like(values))

    def max(self, values: Tensor) -> Tensor:
        """(n,) -> (count,)"""
        empty = values.new_full((self.count,), -torch.inf)
        return empty.scatter_reduce(0, self.member, values, "amax")

    def softmax(self, values: Tensor) -> Tensor:
        """(n,) -> (n,), summing to one in every block."""
        power = (values - self.max(values.detach())[self.member]).exp()
        return power / self.sum(power)[self.member]


def shallow_presence(scores: Tensor, keep: Array, blocks: BlockValues) -> Tensor:
    """(n,) relaxed choice of the shallow router: softmax of the scores in each block, 1 for rescued tokens.

    Args:
        scores: (n,) visual scores, in ascending grid order.
        keep: (k,) positions of the tokens that stay.
        blocks: Coverage blocks of the tokens.
    """
    soft = blocks.softmax(scores / _SHALLOW_TEMPERATURE)
    kept = torch.zeros_like(scores, dtype=torch.bool)
    kept[torch.from_numpy(keep).to(scores.device)] = True
    # A block's coverage winner is its best token; ties go to the lowest index, as in keep_shallow.
    best = scores == blocks.max(scores.detach())[blocks.member]
    position = torch.arange(len(scores), device=scores.device)
    first = torch.full((blocks.count,), len(scores), device=scores.device)
    first = first.scatter_reduce(0, blocks.member[best], position[best], "amin")
    winner = first[blocks.member] == position
    return torch.where(kept & ~winner, 1.0, soft)


def deep_presence(risk: Tensor, cells: Array, grid: Grid, budget: DeepBudget, target: int) -> Tensor:
    """(n,) relaxed choice of the deep router: sigmoid of the distance of a block's standardised risk to the cut.

    The cut lies half-way between the last kept and the first dropped block.

    Args:
        risk: (n,) fused risk of the live tokens.
        cells: (n,) their grid indices.
        grid: Rows and columns of the grid.
        budget: Budget of the deep router.
        target: Tokens to keep.
    """
    blocks = BlockValues.of(cells, grid, budget.block, risk.device)
    mean = blocks.mean(risk)
    standard = (mean - mean.mean()) / (mean.std(correction=0) + _EPS)
    _, mask = choose_blocks(risk.detach().cpu().numpy(), block_ids(cells, grid, budget.block), target)
    kept = blocks.max(torch.from_numpy(mask).to(risk)) > 0
    lowest = standard[kept].min()
    highest = standard[~kept].max() if not bool(kept.all()) else lowest - 2  # no block is dropped
    cut = (lowest + highest).detach() / 2
    return torch.sigmoid((standard - cut) / _DEEP_TEMPERATURE)[blocks.member]
