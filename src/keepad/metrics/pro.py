"""PRO: per-region overlap, averaged over regions, against the false-positive rate.

This is the definition of the MVTec AD evaluation. Regions are the 8-connected components of the masks, equally
weighted. The false-positive rate is over all normal pixels of the class, including those of anomalous images. The curve
has a point per distinct value, is piecewise linear, and is integrated up to a false-positive rate of 0.3; the area is
divided by 0.3.

Zero-shot code often uses another variant: 200 evenly spaced thresholds between the lowest and the highest value, of
which those with a false-positive rate below 0.3 are kept and that rate is rescaled to [0, 1]. It depends on the range
of the map and ignores the curve outside the kept points, so its numbers are not comparable with these.
"""

from __future__ import annotations

import numpy as np
from scipy import ndimage

from keepad.arrays import Array
from keepad.metrics.ranking import Estimate

_FPR_LIMIT = 0.3
_EIGHT_NEIGHBOURS = np.ones((3, 3), dtype=bool)


def region_shares(mask: Array) -> tuple[Array, int]:
    """1 / region size for every positive pixel, (P,) float64 in row-major order, and the number of regions.

    Args:
        mask: (H, W) bool with at least one positive.
    """
    rows = np.flatnonzero(mask.any(axis=1))
    columns = np.flatnonzero(mask.any(axis=0))
    # Labelling dominates the cost of an update, so only the bounding box of the positives is labelled.
    box = mask[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    labelled, regions = ndimage.label(box, structure=_EIGHT_NEIGHBOURS)
    region = labelled[box] - 1
    return 1.0 / np.bincount(region, minlength=regions)[region], int(regions)


def pro_of_counts(shares: Array, negatives: Array, regions: int) -> Estimate:
    """PRO from the sum of region shares and the number of normal pixels per group, (K,) each, highest score first."""
    overlap = np.minimum(np.concatenate(([0.0], np.cumsum(shares) / regions)), 1.0)
    fpr = np.concatenate(([0.0], np.cumsum(negatives) / float(negatives.sum())))
    step = np.diff(fpr)
    width = np.diff(np.minimum(fpr, _FPR_LIMIT))
    rise = np.diff(overlap)
    # Group ends are points of the exact curve, which is non-decreasing between them.
    lower = width * overlap[:-1]
    upper = width * overlap[1:]
    inside = width > 0
    reached = np.zeros_like(rise)
    # Equals `rise` except in the step that the limit cuts.
    reached[inside] = rise[inside] * (width[inside] / step[inside])
    value = width * (overlap[:-1] + reached / 2)
    return Estimate(*(float(np.sum(area)) / _FPR_LIMIT for area in (value, lower, upper)))
