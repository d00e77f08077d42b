"""AUROC, average precision and F1-max: of score arrays, and with bounds of counts per group of scores.

Groups are ordered from the highest to the lowest score. If a group is a distinct score, the value is exact. If it is a
histogram bin, the value treats the bin as a tie; lower and upper enclose every order inside the bins (up to float64
rounding).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from keepad.arrays import Array
from keepad.errors import KeepADError


@dataclass(frozen=True)
class Estimate:
    """A fraction in [0, 1] with guaranteed bounds on the exact value."""

    value: float
    lower: float
    upper: float

    @property
    def error(self) -> float:
        """Largest possible distance of `value` from the exact value."""
        return max(self.upper - self.value, self.value - self.lower)


def auroc(scores: ArrayLike, labels: ArrayLike) -> float | None:
    """Area under the ROC curve, ties counted half; None if there is only one class.

    Args:
        scores: (N,) finite, higher is more anomalous.
        labels: (N,) bool or 0/1, 1 is anomalous.
    """
    groups = _group(scores, labels)
    return None if groups is None else auroc_of_counts(*groups).value


def average_precision(scores: ArrayLike, labels: ArrayLike) -> float | None:
    """Average precision without interpolation; None if there is only one class.

    Args:
        scores: (N,) finite, higher is more anomalous.
        labels: (N,) bool or 0/1, 1 is anomalous.
    """
    groups = _group(scores, labels)
    return None if groups is None else average_precision_of_counts(*groups).value


def f1_max(scores: ArrayLike, labels: ArrayLike) -> float | None:
    """Largest F1 over all thresholds; None if there is only one class.

    Args:
        scores: (N,) finite, higher is more anomalous.
        labels: (N,) bool or 0/1, 1 is anomalous.
    """
    groups = _group(scores, labels)
    return None if groups is None else f1_max_of_counts(*groups).value


def rank_groups(scores: Array) -> tuple[Array, int]:
    """(N,) rank of every score among the distinct scores, 0 for the highest, and the number of distinct scores."""
    distinct, group = np.unique(scores, return_inverse=True)
    return len(distinct) - 1 - group.reshape(-1), len(distinct)


def auroc_of_counts(positives: Array, negatives: Array) -> Estimate:
    """AUROC from the counts per group, (K,) each, highest score first, both classes present."""
    pairs = float(positives.sum()) * float(negatives.sum())
    above = np.cumsum(positives) - positives
    won = float(np.sum(negatives * above.astype(np.float64))) / pairs
    tied = float(np.sum(negatives * positives.astype(np.float64))) / pairs
    # Within a group all positives may rank above all negatives, or below.
    return Estimate(won + tied / 2, won, won + tied)


def average_precision_of_counts(positives: Array, negatives: Array) -> Estimate:
    """Average precision from the counts per group, (K,) each, highest score first, both classes present."""
    occupied = positives > 0  # recall is constant elsewhere
    p = positives[occupied].astype(np.float64)
    n = negatives[occupied].astype(np.float64)
    tp = np.cumsum(positives)[occupied].astype(np.float64)
    fp = np.cumsum(negatives)[occupied].astype(np.float64)
    weight = p / p.sum()
    last = tp / (tp + fp)
    # Worst order: the group's negatives first. Precision is then concave in the number of positives taken, so its mean
    # is at least that of its first and last value.
    first = (tp - p + 1) / (tp - p + 1 + fp)
    # Best order: the group's positives first, tied, each at the precision of the last.
    best = tp / (tp + fp - n)
    return Estimate(
        value=float(np.sum(weight * last)),
        lower=float(np.sum(weight * (first + last) / 2)),
        upper=float(np.sum(weight * best)),
    )


def f1_max_of_counts(positives: Array, negatives: Array) -> Estimate:
    """F1-max from the counts per group, (K,) each, highest score first, both classes present."""
    tp = np.cumsum(positives).astype(np.float64)
    fp = np.cumsum(negatives).astype(np.float64)
    # F1 = 2 TP / (predicted + actual positives).
    reached = float(np.max(2 * tp / (tp + fp + tp[-1])))
    # Best case within a group: all of its positives and none of its negatives.
    best = float(np.max(2 * tp / (tp + fp - negatives + tp[-1])))
    return Estimate(value=reached, lower=reached, upper=best)


def _group(scores: ArrayLike, labels: ArrayLike) -> tuple[Array, Array] | None:
    """Positives and negatives per distinct score, (K,) each, highest first; None if there is only one class."""
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
