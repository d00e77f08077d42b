"""PixelMetrics: P-AUROC, P-AP, P-F1-max and PRO of a class, image by image, in memory that does not grow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from keepad.arrays import Array
from keepad.errors import KeepADError
from keepad.metrics.binning import BINS, bin_codes
from keepad.metrics.pro import pro_of_counts, region_shares
from keepad.metrics.ranking import (
    Counts,
    Estimate,
    Floats,
    auroc_of_counts,
    average_precision_of_counts,
    f1_max_of_counts,
    rank_groups,
)

State = dict[str, Array]
Values = NDArray[np.float32]


@dataclass(frozen=True)
class PixelResult:
    """The pixel measures of a class; all four are None if it has no anomalous pixel or no normal one."""

    auroc: Estimate | None
    ap: Estimate | None
    f1_max: Estimate | None
    pro: Estimate | None
    images: int
    regions: int


class PixelMetrics:
    """P-AUROC, P-AP, P-F1-max and PRO over the maps given to `update`, each with certain bounds.

    PRO is MVTec's exact definition, integrated to 30 % false positives: 8-connected regions that weigh the same, false
    positives over all normal pixels. The variant with 200 thresholds and a false-positive rate stretched to [0, 1]
    gives other numbers; `keepad.metrics.pro` says why. Map values are compared in float32.

    Args:
        mode: "histogram" keeps counts in bins that are near-even in log-odds, 12 MB for any number of images;
            a result's lower and upper enclose the exact value. "exact" keeps every pixel, for small sets: lower, value
            and upper are the same.
    """

    def __init__(self, mode: Literal["histogram", "exact"] = "histogram") -> None:
        if mode not in ("histogram", "exact"):
            raise KeepADError(f"Pixel metrics have no mode {mode!r}; use 'histogram' or 'exact'.")
        self.mode = mode
        self._images = 0
        self._regions = 0
        self._pixels = _new_store(mode)

    def update(self, anomaly_map: NDArray[np.floating], mask: NDArray[np.bool_]) -> None:
        """Take in one image.

        Args:
            anomaly_map: (H, W), in [0, 1]; sizes may differ between images.
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
        """The four measures over everything taken in so far."""
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
        """Take in everything that `other`, of the same mode, has taken in."""
        if other.mode != self.mode:
            raise KeepADError(f"Pixel metrics in {other.mode} mode cannot be merged into {self.mode} mode.")
        self._pixels.merge(other._pixels.arrays())
        self._images += other._images
        self._regions += other._regions

    def state_dict(self) -> State:
        """Arrays that restore this object with `load_state_dict`; they are copies and can be saved with `np.savez`."""
        counters = {"images": np.array(self._images), "regions": np.array(self._regions)}
        return {**counters, **self._pixels.arrays()}

    def load_state_dict(self, state: State) -> None:
        """Continue from a state that `state_dict` gave in the same mode; what was taken in before is dropped."""
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
        """Bytes of the arrays held now."""
        return self._pixels.nbytes

    def _bounded(self, estimate: Estimate) -> Estimate:
        # In exact mode a group is one distinct value: no order is lost, so the value is its own bound.
        return Estimate(*[estimate.value] * 3) if self.mode == "exact" else estimate


class _Histogram:
    """Counts per bin: normal pixels, defect pixels, and the sum over regions of the region's share in the bin."""

    def __init__(self) -> None:
        self._negatives: Counts = np.zeros(BINS, np.int64)
        self._positives: Counts = np.zeros(BINS, np.int64)
        self._shares: Floats = np.zeros(BINS, np.float64)

    def add(self, negatives: Values, positives: Values, shares: Floats) -> None:
        _count_into(self._negatives, bin_codes(negatives))
        if len(positives):
            codes = bin_codes(positives)
            _count_into(self._positives, codes)
            _count_into(self._shares, codes, shares)

    def groups(self) -> tuple[Counts, Counts, Floats]:
        # Empty bins move no curve.
        used = np.flatnonzero(self._negatives + self._positives)[::-1]
        return self._negatives[used], self._positives[used], self._shares[used]

    def arrays(self) -> State:
        used = np.flatnonzero(self._negatives + self._positives)
        return {
            "bins": np.array(BINS),
            "codes": used.astype(np.int32),
            "negatives": self._negatives[used],
            "positives": self._positives[used],
            "shares": self._shares[used],
        }

    def merge(self, arrays: State) -> None:
        if int(arrays["bins"]) != BINS:
            raise KeepADError(f"The saved pixel metrics have {int(arrays['bins'])} bins, this version has {BINS}.")
        codes = arrays["codes"]
        self._negatives[codes] += arrays["negatives"]
        self._positives[codes] += arrays["positives"]
        self._shares[codes] += arrays["shares"]

    @property
    def nbytes(self) -> int:
        return self._negatives.nbytes + self._positives.nbytes + self._shares.nbytes


class _EveryPixel:
    """Every value, split into normal pixels and defect pixels, with each defect pixel's share of its region."""

    def __init__(self) -> None:
        self._negatives: list[Values] = [np.empty(0, np.float32)]
        self._positives: list[Values] = [np.empty(0, np.float32)]
        self._shares: list[Floats] = [np.empty(0, np.float64)]

    def add(self, negatives: Values, positives: Values, shares: Floats) -> None:
        self._negatives.append(negatives.copy())  # a view of the caller's map may change after the call
        self._positives.append(positives)
        self._shares.append(shares)

    def groups(self) -> tuple[Counts, Counts, Floats]:
        negatives, positives = np.concatenate(self._negatives), np.concatenate(self._positives)
        group, size = rank_groups(np.concatenate([negatives, positives]))
        of_negatives, of_positives = group[: len(negatives)], group[len(negatives) :]
        return (
            np.bincount(of_negatives, minlength=size),
            np.bincount(of_positives, minlength=size),
            np.bincount(of_positives, np.concatenate(self._shares), minlength=size).astype(np.float64, copy=False),
        )

    def arrays(self) -> State:
        return {
            "negative_values": np.concatenate(self._negatives),
            "positive_values": np.concatenate(self._positives),
            "positive_shares": np.concatenate(self._shares),
        }

    def merge(self, arrays: State) -> None:
        self.add(arrays["negative_values"], arrays["positive_values"].copy(), arrays["positive_shares"].copy())

    @property
    def nbytes(self) -> int:
        return sum(a.nbytes for arrays in (self._negatives, self._positives, self._shares) for a in arrays)


def _new_store(mode: str) -> _Histogram | _EveryPixel:
    return _Histogram() if mode == "histogram" else _EveryPixel()


def _count_into(total: Array, codes: NDArray[np.int32], weights: Floats | None = None) -> None:
    """Add to `total` (BINS,) the number of times each code occurs, or the sum of its weights."""
    if not len(codes):
        return
    # Only the range that occurs is counted, so memory pages of bins that no map reaches are never touched.
    first = int(codes.min())
    counts = np.bincount(codes - np.intp(first), weights)  # intp, or bincount would make one more copy
    total[first : first + len(counts)] += counts


def _checked(anomaly_map: NDArray[np.floating], mask: NDArray[np.bool_]) -> tuple[Values, NDArray[np.bool_]]:
    values = np.asarray(anomaly_map, dtype=np.float32)
    mask = np.asarray(mask)
    if mask.dtype != np.bool_:
        raise KeepADError(f"A mask must be a bool array, not {mask.dtype}; binarise it first.")
    if values.ndim != 2 or values.shape != mask.shape or not values.size:
        raise KeepADError(
            f"An anomaly map {values.shape} and its mask {mask.shape} must both be (H, W), the same size."
        )
    low, high = values.min(), values.max()
    if not (low >= 0 and high <= 1):  # written so that NaN fails too
        raise KeepADError(f"An anomaly map must lie in [0, 1] without NaN, but this one goes from {low:g} to {high:g}.")
    return values, mask
