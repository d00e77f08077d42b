"""AUROC, average precision and F1-max: of score arrays, and of counts per score group with bounds.

The functions of counts see scores only as groups ordered from the highest to the lowest. When a group is one distinct
score, their value is exact. When a group is a histogram bin, the order inside it is lost: the value treats the bin as a
tie, and lower and upper enclose what any order inside the bins could have given (up to float64 rounding).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from keepad.errors import KeepADError

Counts = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """A fraction in [0, 1] with bounds that are certain to enclose the exact value."""

    value: float
    lower: float
    upper: float

    @property
    def error(self) -> float:
        """The most that `value` can be away from the exact value."""
        return max(self.upper - self.value, self.value - self.lower)


def auroc(scores: ArrayLike, labels: ArrayLike) -> float | None:
    """The chance that a positive scores above a negative, a tie counting half; None if there is only one class.

    Args:
        scores: (N,) finite, higher is more anomalous.
        labels: (N,) bool or 0/1, 1 is anomalous.
    """
    groups = _group(scores, labels)
    return None if groups is None else auroc_of_counts(*groups).value


def average_precision(scores: ArrayLike, labels: ArrayLike) -> float | None:
    """Precision averaged over the steps of recall, without interpolation; None if there is only one class.

    Args:
        scores: (N,) finite, higher is more anomalous.
        labels: (N,) bool or 0/1, 1 is anomalous.
    """
    groups = _group(scores, labels)
    return None if groups is None else average_precision_of_counts(*groups).value


def f1_max(scores: ArrayLike, labels: ArrayLike) -> float | None:
    """The best F1 that any threshold reaches; None if there is only one class.

    Args:
        scores: (N,) finite, higher is more anomalous.
        labels: (N,) bool or 0/1, 1 is anomalous.
    """
    groups = _group(scores, labels)
    return None if groups is None else f1_max_of_counts(*groups).value


def rank_groups(scores: NDArray) -> tuple[NDArray[np.intp], int]:
    """For every score the number of its group, 0 for the highest distinct score, and how many groups there are."""
    distinct, group = np.unique(scores, return_inverse=True)
    return len(distinct) - 1 - group.reshape(-1), len(distinct)


def auroc_of_counts(positives: Counts, negatives: Counts) -> Estimate:
    """AUROC from the counts of each group, (K,) each, highest group first, both classes present."""
    pairs = float(positives.sum()) * float(negatives.sum())
    above = np.cumsum(positives) - positives
    won = float(np.sum(negatives * above.astype(np.float64))) / pairs
    tied = float(np.sum(negatives * positives.astype(np.float64))) / pairs
    # Inside a group the positives may all be above the negatives, or all below.
    return Estimate(won + tied / 2, won, won + tied)


def average_precision_of_counts(positives: Counts, negatives: Counts) -> Estimate:
    """Average precision from the counts of each group, (K,) each, highest group first, both classes present."""
    occupied = positives > 0  # recall does not move elsewhere
    p = positives[occupied].astype(np.float64)
    n = negatives[occupied].astype(np.float64)
    tp = np.cumsum(positives)[occupied].astype(np.float64)
    fp = np.cumsum(negatives)[occupied].astype(np.float64)
    weight = p / p.sum()
    last = tp / (tp + fp)
    # Worst order: the group's negatives first, then its positives one by one. Precision is concave in the number of
    # positives taken, so its mean over them is at least the mean of the first and the last.
    first = (tp - p + 1) / (tp - p + 1 + fp)
    # Best order: the group's positives first, all with one score, so that each counts at the precision of the last.
    best = tp / (tp + fp - n)
    return Estimate(
        value=float(np.sum(weight * last)),
        lower=float(np.sum(weight * (first + last) / 2)),
        upper=float(np.sum(weight * best)),
    )


def f1_max_of_counts(positives: Counts, negatives: Counts) -> Estimate:
    """F1-max from the counts of each group, (K,) each, highest group first, both classes present."""
    tp = np.cumsum(positives).astype(np.float64)
    fp = np.cumsum(negatives).astype(np.float64)
    # F1 = 2 TP / (predicted + actual positives).
    reached = float(np.max(2 * tp / (tp + fp + tp[-1])))
    # A threshold inside a group can at best take all its positives and none of its negatives.
    best = float(np.max(2 * tp / (tp + fp - negatives + tp[-1])))
    return Estimate(value=reached, lower=reached, upper=best)


def _group(scores: ArrayLike, labels: ArrayLike) -> tuple[Counts, Counts] | None:
    """Positives and negatives per distinct score, highest first; None if there is only one class."""
    values = np.asarray(scores)
    truth = np.asarray(labels)
    if values.ndim != 1 or values.shape != truth.shape:
        raise KeepADError(f"Scores {values.shape} and labels {truth.shape} must be two arrays of the same length.")
    if not np.isfinite(values).all():
        raise KeepADError("Scores hold NaN or infinity; a ranking needs finite scores.")
    if not np.isin(truth, (0, 1)).all():
        raise KeepADError("Labels must be 0 (normal) or 1 (anomalous).")
    truth = truth.astype(bool)
    if truth.all() or not truth.any():
        return None
    group, size = rank_groups(values)
    return np.bincount(group[truth], minlength=size), np.bincount(group[~truth], minlength=size)
