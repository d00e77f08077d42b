"""Scores and risks fused with what else is known of an image: references, or the other tiles of its photograph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from keepad.arrays import Array
from keepad.references.bank import Bank, fuse, nearest, unit
from keepad.routing import Grid, absolute_evidence, far_from_others, pooled
from keepad.routing.shared import Corners


@dataclass(frozen=True)
class FusedRisks:
    """Risks of a batch for the deep router.

    Attributes:
        risks: (m,) risks per image.
        evidence: E(I) per image where references tell it, else None; tiles of one photograph share theirs.
        distances: (m,) distances to the references per image, or None without references.
    """

    risks: list[Array]
    evidence: list[float | None]
    distances: list[Array] | None


def fused_risks(
    risks: list[Array],
    live: Sequence[Array],
    entry: Sequence[Array],
    counted: Sequence[int],
    grid: Grid,
    bank: Bank | None,
    corners: Corners | None,
) -> FusedRisks:
    """Risks with references, with the image's other tiles, or with both.

    Args:
        risks: (m,) risks per image.
        live: (m,) grid indices of the tokens per image.
        entry: (m, C) their unit vectors per image.
        counted: Cells of each image that count.
        grid: Rows and columns.
        bank: References, or None.
        corners: Where each tile lies, or None where the images are not tiles.
    """
    if bank is None:
        assert corners is not None
        distances = far_from_others(entry, live, grid, corners)
        return FusedRisks(pooled(risks, distances, corners), [None] * len(risks), None)
    distances = [nearest(own, bank.deep)[0] for own in entry]
    if corners is None:
        evidence = [bank.evidence(far, cells) for far, cells in zip(distances, counted, strict=True)]
        return FusedRisks([fuse(*pair) for pair in zip(risks, distances, strict=True)], list(evidence), distances)
    shared = bank.evidence(np.concatenate(distances), sum(counted))
    return FusedRisks(pooled(risks, distances, corners), [shared] * len(risks), distances)


def fused_scores(
    scores: list[Array],
    live: Sequence[Array],
    entry: Sequence[Array],
    grid: Grid,
    bank: Bank | None,
    corners: Corners | None,
) -> list[Array]:
    """(m,) scores of the shallow router per image with references, with the image's other tiles, or with both.

    Args:
        scores: (m,) scores per image.
        live: (m,) grid indices of the cells per image.
        entry: (m, C) tokens of these cells per image.
        grid: Rows and columns.
        bank: References, or None.
        corners: Where each tile lies, or None where the images are not tiles.
    """
    units = [unit(own) for own in entry]
    if bank is None:
        assert corners is not None
        return pooled(scores, far_from_others(units, live, grid, corners), corners)
    distances = [nearest(own, bank.shallow)[0] for own in units]
    if corners is None:
        return [fuse(*pair) for pair in zip(scores, distances, strict=True)]
    return pooled(scores, distances, corners)


def unusual_evidence(
    dissimilarity: Sequence[Array], counted: Sequence[int], tail: float, corners: Corners | None
) -> list[float | None]:
    """Absolute evidence of each image; tiles of one photograph share theirs.

    Args:
        dissimilarity: (m,) per image, where its tokens enter the deep router.
        counted: Cells of each image that count.
        tail: Share of these that forms the evidence.
        corners: Where each tile lies, or None where the images are not tiles.
    """
    if corners is not None:
        return [absolute_evidence(np.concatenate(dissimilarity), sum(counted), tail)] * len(dissimilarity)
    return [absolute_evidence(own, cells, tail) for own, cells in zip(dissimilarity, counted, strict=True)]
