"""What the routers decide on beside their own scores: references, and the other tiles of the same photograph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from keepad.arrays import Array
from keepad.presets import REFERENCE_BUDGET, DeepBudget
from keepad.recovery import owners_of
from keepad.references.bank import Bank, fuse, nearest, unit
from keepad.routing import Grid, PixelRouting, far_from_others, keep_deep, pooled, share_deep, standardise
from keepad.steps import LiveTokens, Scope


@dataclass(frozen=True)
class Early:
    """A batch where it enters the shallow router, shared by operating points.

    Attributes:
        tokens: Live tokens.
        scores: (m,) scores of the shallow router per image, or None where no point needs them.
        entry: (m, C) tokens of all cells that count per image, or None where nothing needs them.
        routings: Decisions of the pixel router, or None where every patch stays.
        grid: Rows and columns.
        scope: Which cells count, and whether the images share their budgets.
        matched: Whether references are matched, or tokens recorded as such.
    """

    tokens: LiveTokens
    scores: list[Array] | None
    entry: list[Array] | None
    routings: Sequence[PixelRouting] | None
    grid: Grid
    scope: Scope
    matched: bool

    def cells(self) -> list[Array]:
        """Grid indices of the cells of each image that count."""
        return [self.scope.cells(image, self.grid[0] * self.grid[1]) for image in range(len(self.tokens.indices()))]


@dataclass(frozen=True)
class Choice:
    """Decision of the deep router for one image.

    Attributes:
        keep: Positions that stay.
        evidence: E(I).
        risk: (m,) standardised risks.
        distance: (m,) distances to the references; empty without them.
    """

    keep: Array
    evidence: float
    risk: Array
    distance: Array = field(default_factory=lambda: np.zeros(0))


def deep_choices(
    risks: list[Array],
    live: Sequence[Array],
    budget: DeepBudget,
    bank: Bank | None,
    entry: Sequence[Array],
    early: Early,
) -> list[Choice]:
    """What the deep router decides for each image, from risks and, with references, from the match of its tokens."""
    grid, corners = early.grid, early.scope.corners
    if corners is not None:
        return _shared_choices(risks, live, budget, bank, entry, early)
    if bank is None:
        choices = [keep_deep(risk, cells, grid, budget) for risk, cells in zip(risks, live, strict=True)]
        return [Choice(each.keep, each.evidence, standardise(risk)) for each, risk in zip(choices, risks, strict=True)]
    budget = replace(REFERENCE_BUDGET, block=budget.block)
    results = []
    for risk, cells, own, every in zip(risks, live, entry, early.cells(), strict=True):
        distance, _ = nearest(own, bank.deep)
        fused, evidence = fuse(risk, distance), bank.evidence(distance, len(every))
        choice = keep_deep(fused, cells, grid, budget, evidence)
        results.append(Choice(choice.keep, evidence, standardise(fused), distance))
    return results


def _shared_choices(
    risks: list[Array],
    live: Sequence[Array],
    budget: DeepBudget,
    bank: Bank | None,
    entry: Sequence[Array],
    early: Early,
) -> list[Choice]:
    """What the deep router decides for the tiles of one photograph, which share a budget."""
    grid, corners = early.grid, early.scope.corners
    assert corners is not None
    evidence: float | None = None
    if bank is None:
        distances = far_from_others(entry, live, grid, corners)
    else:
        budget = replace(REFERENCE_BUDGET, block=budget.block)
        distances = [nearest(own, bank.deep)[0] for own in entry]
        evidence = bank.evidence(np.concatenate(distances), sum(len(cells) for cells in early.cells()))
    fused = pooled(risks, distances, corners)
    choices = share_deep(fused, live, grid, budget, corners, evidence)
    known = distances if bank is not None else [np.zeros(0)] * len(risks)
    rows = zip(choices, fused, known, strict=True)
    return [Choice(each.keep, each.evidence, standardise(risk), far) for each, risk, far in rows]


def fused_scores(early: Early, live: Sequence[Array], bank: Bank | None) -> list[Array]:
    """(m,) scores of the shallow router per image, with what else is known: references, or the image's other tiles."""
    scores, entry, corners = early.scores, early.entry, early.scope.corners
    assert scores is not None
    if entry is None or (bank is None and corners is None):
        return scores
    if corners is None:
        assert bank is not None
        return [fuse(own, nearest(unit(x), bank.shallow)[0]) for own, x in zip(scores, entry, strict=True)]
    units = [unit(own) for own in entry]
    if bank is not None:
        distances = [nearest(own, bank.shallow)[0] for own in units]
    else:
        distances = far_from_others(units, live, early.grid, corners)
    return pooled(scores, distances, corners)


def on_grid(scores: Array, cells: Array, live: Array, grid: Grid) -> Array:
    """(N,) scores on the whole grid, from those of the cells that count; the others have that of their owner."""
    if len(cells) == grid[0] * grid[1]:
        return scores
    spread = np.zeros(grid[0] * grid[1], dtype=scores.dtype)
    spread[cells] = scores
    outside = np.ones(len(spread), dtype=bool)
    outside[cells] = False
    spread[outside] = spread[live][owners_of(live, grid, block=None)][outside]
    return spread
