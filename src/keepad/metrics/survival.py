"""Survival: do the tokens on the defect physically survive pruning? DTR and CMR, from survivor indices."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv

from keepad.arrays import Array
from keepad.errors import KeepADError

SIZES = ("1-4", "5-16", ">16")
_LARGEST = (4, 16)  # tokens, in all sizes but the last


@dataclass(frozen=True)
class SurvivalRate:
    """DTR and CMR over some anomalous images; None where there is no image.

    Attributes:
        images: Anomalous images counted.
        missed: Those of them with no defect token left.
        dtr: Defect-token retention: the share of an image's defect tokens that survive, mean over images.
        cmr: Complete-miss rate: missed / images.
        cmr_low: Lower end of the two-sided 95 % Clopper-Pearson interval on CMR.
        cmr_high: Upper end of that interval.
    """

    images: int
    missed: int
    dtr: float | None
    cmr: float | None
    cmr_low: float | None
    cmr_high: float | None


@dataclass(frozen=True)
class SurvivalResult:
    """Survival over all anomalous images and by defect size in tokens (keys "1-4", "5-16", ">16").

    `uncounted` images had no defect token, for example because the defect vanished when its mask was resized; they
    enter no rate.
    """

    overall: SurvivalRate
    by_size: dict[str, SurvivalRate]
    uncounted: int


class Survival:
    """DTR and CMR over the anomalous images given to `update`, for one router of one variant."""

    def __init__(self) -> None:
        # One entry per defect size; sums are all that the rates need.
        self._images = np.zeros(len(SIZES), np.int64)
        self._missed = np.zeros(len(SIZES), np.int64)
        self._retained = np.zeros(len(SIZES), np.float64)
        self._uncounted = np.zeros((), np.int64)

    def update(self, survivors: NDArray[np.integer], defect_tokens: NDArray[np.bool_]) -> None:
        """Take in one anomalous image; one without any defect token only adds to `uncounted`.

        Args:
            survivors: (K,) row-major indices on the original grid, before recovery, in any order.
            defect_tokens: (rows, cols) bool, from `defect_tokens`.
        """
        defect = np.asarray(defect_tokens)
        index = np.asarray(survivors)
        if defect.ndim != 2 or defect.dtype != np.bool_:
            raise KeepADError(f"Defect tokens must be a (rows, cols) bool array, not {defect.shape} {defect.dtype}.")
        if index.ndim != 1 or (index.size and not np.issubdtype(index.dtype, np.integer)):
            raise KeepADError(f"Survivors must be a list of grid indices, not a {index.shape} array of {index.dtype}.")
        if index.size and not (index.min() >= 0 and index.max() < defect.size):
            raise KeepADError(
                f"Survivors run from {index.min()} to {index.max()}, outside the {defect.size} tokens of the grid."
            )
        tokens = int(defect.sum())
        if tokens == 0:
            self._uncounted += 1
            return
        alive = np.zeros(defect.size, dtype=bool)
        alive[index.astype(np.intp)] = True
        kept = int((alive & defect.reshape(-1)).sum())
        size = int(np.searchsorted(_LARGEST, tokens))
        self._images[size] += 1
        self._missed[size] += kept == 0
        self._retained[size] += kept / tokens

    def compute(self) -> SurvivalResult:
        """DTR and CMR over everything taken in so far."""
        return SurvivalResult(
            overall=_rate(self._images.sum(), self._missed.sum(), self._retained.sum()),
            by_size={
                size: _rate(images, missed, retained)
                for size, images, missed, retained in zip(
                    SIZES, self._images, self._missed, self._retained, strict=True
                )
            },
            uncounted=int(self._uncounted),
        )

    def merge(self, other: Survival) -> None:
        """Take in everything that `other` has taken in."""
        self._images += other._images
        self._missed += other._missed
        self._retained += other._retained
        self._uncounted += other._uncounted

    def state_dict(self) -> dict[str, Array]:
        """Arrays that restore this object with `load_state_dict`; they are copies and can be saved with `np.savez`."""
        return {
            "images": self._images.copy(),
            "missed": self._missed.copy(),
            "retained": self._retained.copy(),
            "uncounted": self._uncounted.copy(),
        }

    def load_state_dict(self, state: dict[str, Array]) -> None:
        """Continue from a state that `state_dict` gave; what was taken in before is dropped."""
        expected = self.state_dict()
        if {k: np.shape(v) for k, v in state.items()} != {k: v.shape for k, v in expected.items()}:
            raise KeepADError(
                f"This is not a saved state of survival: it holds {sorted(state)}, not {sorted(expected)}."
            )
        self._images = np.array(state["images"], np.int64)
        self._missed = np.array(state["missed"], np.int64)
        self._retained = np.array(state["retained"], np.float64)
        self._uncounted = np.array(state["uncounted"], np.int64)


def defect_tokens(mask: NDArray[np.bool_], grid: tuple[int, int]) -> NDArray[np.bool_]:
    """The tokens that the defect touches with at least one pixel, (rows, cols) bool.

    Args:
        mask: (H, W) bool, the size of the model's input.
        grid: (rows, cols) of patch tokens; H and W are multiples of them.
    """
    mask = np.asarray(mask)
    rows, cols = grid
    if mask.ndim != 2 or mask.dtype != np.bool_:
        raise KeepADError(f"A mask must be an (H, W) bool array, not {mask.shape} {mask.dtype}.")
    height, width = mask.shape
    if min(rows, cols, height, width) < 1 or height % rows or width % cols:
        raise KeepADError(f"A mask of {height}x{width} pixels cannot be divided evenly into {rows}x{cols} tokens.")
    return np.any(mask.reshape(rows, height // rows, cols, width // cols), axis=(1, 3))


def clopper_pearson(events: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """The exact two-sided interval (low, high) on a rate after `events` in `trials`.

    Args:
        events: 0 to `trials`.
        trials: At least 1.
        confidence: Share of intervals that hold the true rate, at least.
    """
    if not 0 <= events <= trials or trials < 1:
        raise KeepADError(f"{events} events in {trials} trials have no interval.")
    tail = (1 - confidence) / 2
    low = float(betaincinv(events, trials - events + 1, tail)) if events > 0 else 0.0
    high = float(betaincinv(events + 1, trials - events, 1 - tail)) if events < trials else 1.0
    return low, high


def _rate(images: np.int64, missed: np.int64, retained: np.float64) -> SurvivalRate:
    if images == 0:
        return SurvivalRate(0, 0, None, None, None, None)
    low, high = clopper_pearson(int(missed), int(images))
    return SurvivalRate(int(images), int(missed), float(retained / images), float(missed / images), low, high)
