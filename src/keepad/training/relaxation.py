"""Relaxation: how present a token is while selectors learn, so that a hard choice lets gradients through.

A gather has no gradient. Beside every hard choice stands a relaxed one in (0, 1] that would have made it; it lives only
in training.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from keepad.presets import DeepBudget
from keepad.routing import block_ids, choose_blocks

_EPS = 1e-6


@dataclass(frozen=True)
class BlockValues:
    """Sums over blocks: which block each token belongs to, and how many there are.

    Attributes:
        member: (n,) number of each token's block, counted over the blocks that are not empty.
        count: Blocks.
    """

    member: Tensor
    count: int

    @staticmethod
    def of(index: Tensor, grid: tuple[int, int], size: int) -> BlockValues:
        """Blocks of size x size cells that the tokens at `index` lie in."""
        names, member = block_ids(index, grid, size).unique(return_inverse=True)
        return BlockValues(member, len(names))

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


def shallow_presence(
    scores: Tensor, index: Tensor, keep: Tensor, blocks: BlockValues, *, temperature: float = 0.20
) -> Tensor:
    """(n,) relaxed choice of the shallow router: each block shares one place by softmax, what was rescued is whole.

    Args:
        scores: (n,) visual scores.
        index: (n,) places on the grid, ascending.
        keep: Positions that the router kept.
        blocks: Coverage blocks of the tokens.
        temperature: Of the softmax.
    """
    shared = blocks.softmax(scores / temperature)
    kept = torch.zeros_like(scores, dtype=torch.bool)
    kept[keep] = True
    # The winner of a block is its best token, and of equals the one with the lowest index.
    best = scores == blocks.max(scores.detach())[blocks.member]
    first = torch.full((blocks.count,), len(index), device=index.device)
    place = torch.arange(len(index), device=index.device)
    first = first.scatter_reduce(0, blocks.member[best], place[best], "amin")
    winner = first[blocks.member] == place
    return torch.where(kept & ~winner, 1.0, shared)


def deep_presence(
    risk: Tensor, index: Tensor, grid: tuple[int, int], budget: DeepBudget, target: int, *, temperature: float = 0.12
) -> Tensor:
    """(n,) relaxed choice of the deep router: where a block's standardised risk stands to the cut.

    The cut lies half-way between the last block that stays and the first that goes.

    Args:
        risk: (n,) fused risk of the live tokens.
        index: (n,) places on the grid.
        grid: Rows and columns of the grid.
        budget: Of the deep router.
        target: Tokens that the image deserves.
        temperature: Of the sigmoid.
    """
    blocks = BlockValues.of(index, grid, budget.block)
    mean = blocks.mean(risk)
    standard = (mean - mean.mean()) / (mean.std(correction=0) + _EPS)
    _, stays = choose_blocks(risk.detach(), block_ids(index, grid, budget.block), target)
    kept = blocks.max(stays.to(risk.dtype)) > 0
    lowest = standard[kept].min()
    highest = standard[~kept].max() if not bool(kept.all()) else lowest - 2  # nothing goes: the cut lies well below
    cut = (lowest + highest).detach() / 2
    return torch.sigmoid((standard - cut) / temperature)[blocks.member]
