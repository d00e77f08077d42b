"""Deep router: evidence of the image sets the budget, and whole blocks stay, riskiest first."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from keepad.arrays import Array
from keepad.errors import KeepADError
from keepad.presets import DeepBudget
from keepad.routing.grid import Grid, block_ids, relabel

_EPS = 1e-6


@dataclass(frozen=True)
class DeepChoice:
    """Decision of the deep router for one image.

    Attributes:
        keep: Positions of the tokens that stay, ascending.
        evidence: E(I).
        target: Token budget K that the evidence set; whole blocks may overshoot it.
    """

    keep: Array
    evidence: float
    target: int


def evidence_of(risk: Array, tail: float = 0.03, kind: str = "both") -> float:
    """E(I) in [0, 1]: the mean of dispersion (E_var) and upper tail (E_tail) of the standardised risks, (n,).

    As controls, `kind` "var" or "tail" gives one of them alone.
    """
    risk = risk.astype(np.float64)  # differences of nearly equal sums decide a budget
    u = 1 / (1 + np.exp(-(risk - risk.mean()) / (risk.std() + _EPS)))
    mean = u.mean()
    top = np.sort(u)[-max(1, math.ceil(tail * len(u))) :].mean()
    dispersion = math.sqrt(min(1.0, 4 * u.var()))
    upper_tail = min(1.0, max(0.0, (top - mean) / max(1 - mean, _EPS)))
    if kind not in ("both", "var", "tail"):
        raise KeepADError(f"there is no evidence called {kind!r}; choose both, var or tail.")
    return float({"both": (dispersion + upper_tail) / 2, "var": dispersion, "tail": upper_tail}[kind])


def absolute_evidence(dissimilarity: Array, cells: int, tail: float = 0.03) -> float:
    """E(I) on a scale that all images share: mean dissimilarity of the most unusual tokens, (n,) -> [0, 2].

    It falls with none of them: a token that grows more unusual, or one more unusual token, can only raise it.

    Args:
        dissimilarity: (n,) of the live tokens to the rest of their image.
        cells: Cells of the grid, of which a share `tail` counts, so that its number does not depend on pruning.
        tail: That share.
    """
    count = min(len(dissimilarity), max(1, math.ceil(tail * cells)))
    return float(np.partition(dissimilarity, -count)[-count:].astype(np.float64).mean())


def token_budget(evidence: float, live: int, budget: DeepBudget) -> int:
    """Tokens, of `live`, that an image with this evidence keeps."""
    gate = 1 / (1 + math.exp(-max(-60.0, min(60.0, (evidence - budget.centre) / budget.temperature))))
    rho: float = budget.rho_min + (budget.rho_max - budget.rho_min) * gate
    return max(1, round(float(live * rho**budget.kappa)))


def choose_blocks(risk: Array, block: Array, target: int) -> tuple[Array, Array]:
    """Blocks from the highest mean risk to the lowest, and which of the tokens stay.

    Args:
        risk: (n,) fused risk of the live tokens.
        block: (n,) block of each token.
        target: Blocks join whole, best first, until this many tokens are reached.

    Returns:
        The non-empty blocks in the order in which they join (ties: lower block first), and an (n,) bool mask.
    """
    blocks, member = relabel(block)
    count = np.bincount(member)
    order = np.argsort(-np.bincount(member, weights=risk.astype(np.float64)) / count, kind="stable")
    joins = np.cumsum(count[order]) - count[order] < target  # the blocks before do not fill the budget
    kept = np.zeros(len(blocks), dtype=bool)
    kept[order] = joins
    return blocks[order], kept[member]


def cut_last_block(risk: Array, block: Array, order: Array, kept: Array, target: int) -> None:
    """Drop the tokens of least risk of the block that joined last, so that `target` of them stay; changes `kept`.

    Args:
        risk: (n,) risks by which the blocks were ordered.
        block: (n,) block of each token.
        order: Blocks in the order in which they join.
        kept: (n,) bool, the tokens that stay.
        target: Number of tokens.
    """
    surplus = int(kept.sum()) - target
    if surplus > 0:
        last = order[np.isin(order, block[kept])][-1]
        members = np.flatnonzero(block == last)
        kept[members[np.argsort(risk[members], kind="stable")[:surplus]]] = False


def keep_deep(risk: Array, cells: Array, grid: Grid, budget: DeepBudget, evidence: float | None = None) -> DeepChoice:
    """Which tokens of one image stay.

    Args:
        risk: (n,) fused risk of the live tokens.
        cells: (n,) their grid indices, ascending.
        grid: Rows and columns.
        budget: From evidence to a token budget.
        evidence: Of the image; that of its risks alone if None.
    """
    evidence = evidence_of(risk, budget.tail, budget.evidence) if evidence is None else evidence
    target = token_budget(evidence, len(risk), budget)
    block = block_ids(cells, grid, budget.block)
    order, kept = choose_blocks(risk, block, target)
    if budget.exact:
        cut_last_block(risk, block, order, kept, target)
    return DeepChoice(np.flatnonzero(kept), evidence, target)
