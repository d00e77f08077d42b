"""Deep router: evidence of the image sets the budget, and whole blocks stay, riskiest first."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from keepad.budgets import block_ids, token_budget
from keepad.presets import DeepBudget

_EPS = 1e-6


@dataclass(frozen=True)
class DeepChoice:
    """What the deep router decided for one image: positions that stay (ascending grid order), E(I), and target K."""

    keep: Tensor
    evidence: float
    target: int


def evidence_of(risk: Tensor, tail: float = 0.03) -> Tensor:
    """E(I), a scalar in [0, 1]: the mean of dispersion and upper tail of the standardised risks, (n,)."""
    risk = risk.double()  # a sum of tiny differences decides a budget; it must not depend on the batch
    u = torch.sigmoid((risk - risk.mean()) / (risk.std(correction=0) + _EPS))
    mean = u.mean()
    top = u.topk(max(1, math.ceil(tail * len(u)))).values.mean()
    dispersion = (4 * u.var(correction=0)).clamp(0, 1).sqrt()  # E_var
    upper_tail = ((top - mean) / (1 - mean).clamp(min=_EPS)).clamp(0, 1)  # E_tail
    return (dispersion + upper_tail) / 2


def choose_blocks(risk: Tensor, block: Tensor, target: int) -> tuple[Tensor, Tensor]:
    """Blocks from the highest mean risk to the lowest, and which of the tokens stay.

    Args:
        risk: (n,) fused risk of the live tokens.
        block: (n,) block of each token.
        target: Blocks join whole, best first, until this many tokens are reached.

    Returns:
        The non-empty blocks in the order in which they join (ties: lower block first), and an (n,) bool mask.
    """
    names, member, count = block.unique(return_inverse=True, return_counts=True)
    total = torch.zeros(len(names), dtype=torch.float64, device=risk.device).scatter_add_(0, member, risk.double())
    order = (total / count).argsort(descending=True, stable=True)
    joined = count[order].cumsum(0) - count[order] < target  # tokens before this block do not suffice yet
    kept = torch.zeros(len(names), dtype=torch.bool, device=risk.device)
    kept[order] = joined
    return names[order], kept[member]


def keep_deep(risk: Tensor, index: Tensor, grid: tuple[int, int], budget: DeepBudget) -> DeepChoice:
    """Which tokens of one image stay.

    Args:
        risk: (n,) fused risk of the live tokens.
        index: (n,) their places on the original grid.
        grid: Rows and columns of that grid.
        budget: How evidence becomes a budget.
    """
    device = risk.device
    risk, index = risk.cpu(), index.cpu()  # one transfer: a few hundred numbers, and doubles are not had everywhere
    evidence = float(evidence_of(risk, budget.tail))
    target = token_budget(evidence, len(risk), budget)
    _, mask = choose_blocks(risk, block_ids(index, grid, budget.block), target)
    positions = mask.nonzero().squeeze(1)
    return DeepChoice(positions[index[positions].argsort()].to(device), evidence, target)
