"""PixelMetrics: P-AUROC, P-AP, P-F1-max and PRO of a class, updated per image in constant memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from keepad.arrays import Array
from keepad.errors import KeepADError
from keepad.metrics.binning import BINS, bin_codes
from keepad.metrics.pro import pro_of_counts, region_shares
from keepad.metrics.ranking import (
    Estimate,
    auroc_of_counts,
    average_precision_of_counts,
    f1_max_of_counts,
    rank_groups,
)

_State = dict[str, Array]


@dataclass(frozen=True)
class PixelResult:
    """Pixel metrics of a class; all four are None without anomalous or without normal pixels."""

    auroc: Estimate | None
    ap: Estimate | None
    f1_max: Estimate | None
    pro: Estimate | None
    images: int
    regions: int


class PixelMetrics:
    """P-AUROC, P-AP, P-F1-max and PRO over the maps passed to `update`, each with guaranteed bounds.

    PRO is MVTec's definition up to a false-positive rate of 0.3; see `keepad.metrics.pro` for the variants. Map values
    are compared in float32.

    Args:
        mode: "histogram" counts in bins that are near-even in log-odds, 12 MB for any number of images; lower and upper
            enclose the exact value. "exact" keeps every pixel, for small sets; lower and upper equal the value.
    """

    def __init__(self, mode: Literal["histogram", "exact"] = "histogram") -> None:
        if mode not in ("histogram", "exact"):
            raise KeepADError(f"Pixel metrics have no mode {mode!r}; use 'histogram' or 'exact'.")
        self.mode = mode
        self._images = 0
        self._regions = 0
        self._pixels = _new_store(mode)

    def update(self, anomaly_map: Array, mask: Array) -> None:
        """Add an image.

        Args:
            anomaly_map: (H, W) float in [0, 1]; sizes may differ between images.
            mask: (H, W) bool, True on the defect; all False for a normal image.
        """
        values, mask = _checked(anomaly_map, mask)
        if mask.any():
            shares, regions = region_shares(mask)
            self._pixels.add(values[~mask], values[mask], shares)
            self._regions += regions
        else:
            self._pixels.add(values.reshape(-1), np.empty(0, np.float32), np.empty(0))
        self._images += 1

    def compute(self) -> PixelResult:
        """The metrics over all images so far."""
        negatives, positives, shares = self._pixels.groups()
        if not negatives.any() or not positives.any():
            return PixelResult(None, None, None, None, images=self._images, regions=self._regions)
        return PixelResult(
            auroc=self._bounded(auroc_of_counts(positives, negatives)),
            ap=self._bounded(average_precision_of_counts(positives, negatives)),
            f1_max=self._bounded(f1_max_of_counts(positives, negatives)),
            pro=self._bounded(pro_of_counts(shares, negatives, self._regions)),
            images=self._images,
            regions=self._regions,
        )

    def merge(self, other: PixelMetrics) -> None:
        """Add all images of `other`, which has the same mode."""
        if other.mode != self.mode:
            raise KeepADError(f"Pixel metrics in {other.mode} mode cannot be merged into {self.mode} mode.")
        self._pixels.merge(other._pixels.arrays())
        self._images += other._images
        self._regions += other._regions

    def state_dict(self) -> _State:
        """Copies of the arrays from which `load_state_dict` restores; `np.savez` can save them."""
        counters = {"images": np.array(self._images), "regions": np.array(self._regions)}
        return {**counters, **self._pixels.arrays()}

    def load_state_dict(self, state: _State) -> None:
        """Replace the state by one from `state_dict` in the same mode."""
        pixels = _new_store(self.mode)
        expected = {"images", "regions", *pixels.arrays()}
        if set(state) != expected:
            raise KeepADError(
                f"This is not a saved state of pixel metrics in {self.mode} mode: it holds {sorted(state)}, "
                f"not {sorted(expected)}."
            )
        pixels.merge(state)
        self._pixels = pixels
        self._images = int(state["images"])
        self._regions = int(state["regions"])

    @property
    def nbytes(self) -> int:
        """Size of the arrays in bytes."""
        return self._pixels.nbytes

    def _bounded(self, estimate: Estimate) -> Estimate:
        # In exact mode a group is a distinct value, so the value is exact.
        return Estimate(*[estimate.value] * 3) if self.mode == "exact" else estimate


class _Histogram:
    """Per bin, (BINS,) each: number of normal pixels, number of defect pixels, sum of region shares."""

    def __init__(self) -> None:
        self._negatives = np.zeros(BINS, np.int64)
        self._positives = np.zeros(BINS, np.int64)
        self._shares = np.zeros(BINS, np.float64)

    def add(self, negatives: Array, positives: Array, shares: Array) -> None:
        _count_into(self._negatives, bin_codes(negatives))
        if len(positives):
            codes = bin_codes(positives)
            _count_into(self._positives, codes)
            _count_into(self._shares, codes, shares)

    def groups(self) -> tuple[Array, Array, Array]:
        used = self._used()[::-1]
        return self._negatives[used], self._positives[used], self._shares[used]

    def arrays(self) -> _State:
        used = self._used()
        return {
            "bins": np.array(BINS),
            "codes": used.astype(np.int32),
            "negatives": self._negatives[used],
            "positives": self._positives[used],
            "shares": self._shares[used],
        }

    def merge(self, arrays: _State) -> None:
        if int(arrays["bins"]) != BINS:
            raise KeepADError(f"The saved pixel metrics have {int(arrays['bins'])} bins, this version has {BINS}.")
        codes = arrays["codes"]
        self._negatives[codes] += arrays["negatives"]
        self._positives[codes] += arrays["positives"]
        self._shares[codes] += arrays["shares"]

    @property
    def nbytes(self) -> int:
        return self._negatives.nbytes + self._positives.nbytes + self._shares.nbytes

    def _used(self) -> Array:
        return np.flatnonzero(self._negatives + self._positives)


class _EveryPixel:
    """Values of all normal pixels and all defect pixels, and the region share of each defect pixel."""

    def __init__(self) -> None:
        self._negatives: list[Array] = [np.empty(0, np.float32)]
        self._positives: list[Array] = [np.empty(0, np.float32)]
        self._shares: list[Array] = [np.empty(0, np.float64)]

    def add(self, negatives: Array, positives: Array, shares: Array) -> None:
        self._negatives.append(negatives.copy())  # may be a view of the caller's map
        self._positives.append(positives)
        self._shares.append(shares)

    def groups(self) -> tuple[Array, Array, Array]:
        negatives, positives = np.concatenate(self._negatives), np.concatenate(self._positives)
        group, size = rank_groups(np.concatenate([negatives, positives]))
        of_negatives, of_positives = group[: len(negatives)], group[len(negatives) :]
        return (
            np.bincount(of_negatives, minlength=size),
            np.bincount(of_positives, minlength=size),
            np.bincount(of_positives, np.concatenate(self._shares), minlength=size).astype(np.float64, copy=False),
        )

    def arrays(self) -> _State:
        return {
            "negative_values": np.concatenate(self._negatives),
            "positive_values": np.concatenate(self._positives),
            "positive_shares": np.concatenate(self._shares),
        }

    def merge(self, arrays: _State) -> None:
        self.add(arrays["negative_values"], arrays["positive_values"].copy(), arrays["positive_shares"].copy())

    @property
    def nbytes(self) -> int:
        return sum(a.nbytes for arrays in (self._negatives, self._positives, self._shares) for a in arrays)


def _new_store(mode: str) -> _Histogram | _EveryPixel:
    return _Histogram() if mode == "histogram" else _EveryPixel()


def _count_into(total: Array, codes: Array, weights: Array | None = None) -> None:
    """Add to `total` (BINS,) the number of occurrences of each code (P,), or the sum of its weights (P,)."""
    if not len(codes):
        return
    # Counting only the range that occurs leaves the memory pages of unused bins untouched.
    first = int(codes.min())
    counts = np.bincount(codes - np.intp(first), weights)  # intp saves a copy in bincount
    total[first : first + len(counts)] += counts


def _checked(anomaly_map: Array, mask: Array) -> tuple[Array, Array]:
    """The map as float32 and the mask, both (H, W)."""
    values = np.asarray(anomaly_map, dtype=np.float32)
    mask = np.asarray(mask)
    if mask.dtype != np.bool_:
        raise KeepADError(f"A mask must be a bool array, not {mask.dtype}; binarise it first.")
    if values.ndim != 2 or values.shape != mask.shape or not values.size:
        raise KeepADError(
            f"An anomaly map {values.shape} and its mask {mask.shape} must both be (H, W), the same size."
        )
    low, high = values.min(), values.max()
    if not (low >= 0 and high <= 1):  # also false for NaN
        raise KeepADError(f"An anomaly map must lie in [0, 1] without NaN, but this one goes from {low:g} to {high:g}.")
    return values, mask
