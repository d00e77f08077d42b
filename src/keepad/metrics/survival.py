"""Survival: defect-token retention (DTR) and complete-miss rate (CMR) of a router, from survivor indices."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import betaincinv

from keepad.arrays import Array
from keepad.errors import KeepADError

_SIZES = ("1-4", "5-16", ">16")
_TAIL = (1 - 0.95) / 2  # on each side of the confidence interval
_LARGEST = (4, 16)  # tokens; the last size has no limit


@dataclass(frozen=True)
class SurvivalRate:
    """DTR and CMR over a set of anomalous images; None if it is empty.

    Attributes:
        images: Number of anomalous images.
        missed: Number of them without a surviving defect token.
        dtr: Defect-token retention: surviving share of the defect tokens per image, mean over images.
        cmr: Complete-miss rate: missed / images.
        cmr_low: Lower limit of the two-sided 95 % Clopper-Pearson interval of CMR.
        cmr_high: Upper limit of that interval.
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

    `uncounted` is the number of images without a defect token, such as those whose defect vanished when the mask was
    resized; no rate includes them.
    """

    overall: SurvivalRate
    by_size: dict[str, SurvivalRate]
    uncounted: int


class Survival:
    """DTR and CMR over the anomalous images passed to `update`."""

    def __init__(self) -> None:
        # Sums per defect size.
        self._images = np.zeros(len(_SIZES), np.int64)
        self._missed = np.zeros(len(_SIZES), np.int64)
        self._retained = np.zeros(len(_SIZES), np.float64)
        self._uncounted = np.zeros((), np.int64)

    def update(self, survivors: Array, defect_tokens: Array) -> None:
        """Add an anomalous image; one without a defect token only adds to `uncounted`.

        Args:
            survivors: (K,) integer row-major indices on the original grid, in any order.
            defect_tokens: (rows, columns) bool, from `defect_tokens`.
        """
        defect = np.asarray(defect_tokens)
        index = np.asarray(survivors)
        if defect.ndim != 2 or defect.dtype != np.bool_:
            raise KeepADError(f"Defect tokens must be a (rows, columns) bool array, not {defect.shape} {defect.dtype}.")
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
        """DTR and CMR over all images so far."""
        return SurvivalResult(
            overall=_rate(self._images.sum(), self._missed.sum(), self._retained.sum()),
            by_size={
                size: _rate(images, missed, retained)
                for size, images, missed, retained in zip(
                    _SIZES, self._images, self._missed, self._retained, strict=True
                )
            },
            uncounted=int(self._uncounted),
        )

    def merge(self, other: Survival) -> None:
        """Add all images of `other`."""
        self._images += other._images
        self._missed += other._missed
        self._retained += other._retained
        self._uncounted += other._uncounted

    def state_dict(self) -> dict[str, Array]:
        """Copies of the arrays from which `load_state_dict` restores; `np.savez` can save them."""
        return {
            "images": self._images.copy(),
            "missed": self._missed.copy(),
            "retained": self._retained.copy(),
            "uncounted": self._uncounted.copy(),
        }

    def load_state_dict(self, state: dict[str, Array]) -> None:
        """Replace the state by one from `state_dict`."""
        expected = self.state_dict()
        if {k: np.shape(v) for k, v in state.items()} != {k: v.shape for k, v in expected.items()}:
            raise KeepADError(
                f"This is not a saved state of survival: it holds {sorted(state)}, not {sorted(expected)}."
            )
        self._images = np.array(state["images"], np.int64)
        self._missed = np.array(state["missed"], np.int64)
        self._retained = np.array(state["retained"], np.float64)
        self._uncounted = np.array(state["uncounted"], np.int64)


def defect_tokens(mask: Array, grid: tuple[int, int]) -> Array:
    """Tokens with at least one defective pixel, (rows, columns) bool.

    Args:
        mask: (H, W) bool, at the size of the network's input.
        grid: (rows, columns) of patch tokens; H and W are multiples of them.
    """
    mask = np.asarray(mask)
    rows, columns = grid
    if mask.ndim != 2 or mask.dtype != np.bool_:
        raise KeepADError(f"A mask must be an (H, W) bool array, not {mask.shape} {mask.dtype}.")
    height, width = mask.shape
    if min(rows, columns, height, width) < 1 or height % rows or width % columns:
        raise KeepADError(f"A mask of {height}x{width} pixels cannot be divided evenly into {rows}x{columns} tokens.")
    return np.asarray(mask.reshape(rows, height // rows, columns, width // columns).any(axis=(1, 3)))


def clopper_pearson(events: int, trials: int, *, tail: float = _TAIL) -> tuple[float, float]:
    """The exact confidence interval (low, high) of a rate, from `events` in `trials`; two-sided 95 % by default.

    Args:
        events: Number of events.
        trials: Number of trials.
        tail: Probability that is left out on each side; either limit alone is a bound at confidence 1 - `tail`.
    """
    if not 0 <= events <= trials or trials < 1:
        raise KeepADError(f"{events} events in {trials} trials have no interval.")
    low = float(betaincinv(events, trials - events + 1, tail)) if events > 0 else 0.0
    high = float(betaincinv(events + 1, trials - events, 1 - tail)) if events < trials else 1.0
    return low, high


def _rate(images: np.int64, missed: np.int64, retained: np.float64) -> SurvivalRate:
    if images == 0:
        return SurvivalRate(0, 0, None, None, None, None)
    low, high = clopper_pearson(int(missed), int(images))
    return SurvivalRate(int(images), int(missed), float(retained / images), float(missed / images), low, high)
