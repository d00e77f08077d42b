"""PRO: the overlap with each ground-truth region, averaged over regions, as the false-positive rate grows.

The definition is that of the MVTec AD evaluation. Regions are the 8-connected components of the masks and every region
weighs the same, whatever its size. The false-positive rate is over all normal pixels of the class, those in anomalous
images included. The curve has a point for every distinct value and straight lines between them; it is integrated from 0
to 30 % false positives, interpolated linearly at that limit, and the area is divided by 0.3.

Another variant is common in zero-shot code: 200 evenly spaced thresholds between the lowest and the highest value, the
points with a false-positive rate under 0.3 kept, and that rate stretched min-max to [0, 1] before integrating. It
depends on the range of the map and ignores the curve outside its first and last kept points, so its numbers are not
comparable with these.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from keepad.metrics.ranking import Counts, Estimate, Floats

FPR_LIMIT = 0.3
_EIGHT_NEIGHBOURS = np.ones((3, 3), dtype=bool)


def region_shares(mask: NDArray[np.bool_]) -> tuple[Floats, int]:
    """For every positive pixel, in row-major order, 1 / size of its region; and how many regions there are.

    Args:
        mask: (H, W) with at least one positive.
    """
    rows = np.flatnonzero(mask.any(axis=1))
    cols = np.flatnonzero(mask.any(axis=0))
    # Labelling costs more than all the rest of an update, so only the box around the positives is labelled.
    box = mask[rows[0] : rows[-1] + 1, cols[0] : cols[-1] + 1]
    labelled, regions = ndimage.label(box, structure=_EIGHT_NEIGHBOURS)
    region = labelled[box] - 1
    return 1.0 / np.bincount(region, minlength=regions)[region], int(regions)


def pro_of_counts(shares: Floats, negatives: Counts, regions: int) -> Estimate:
    """PRO from each group's sum of region shares and count of normal pixels, (K,) each, highest group first."""
    overlap = np.minimum(np.concatenate(([0.0], np.cumsum(shares) / regions)), 1.0)
    fpr = np.concatenate(([0.0], np.cumsum(negatives) / float(negatives.sum())))
    step = np.diff(fpr)
    width = np.diff(np.minimum(fpr, FPR_LIMIT))
    rise = np.diff(overlap)
    # The end of a group is a point of the exact curve; between two such points it only rises, inside their rectangle.
    lower = width * overlap[:-1]
    upper = width * overlap[1:]
    inside = width > 0
    reached = np.zeros_like(rise)
    reached[inside] = rise[inside] * (width[inside] / step[inside])  # less than `rise` only where the limit cuts a step
    value = width * (overlap[:-1] + reached / 2)
    return Estimate(*(float(np.sum(area)) / FPR_LIMIT for area in (value, lower, upper)))
