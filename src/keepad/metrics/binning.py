"""Histogram bins over [0, 1], near-even in log-odds: narrow near 0 and 1, where map values concentrate.

min(x, 1 - x) is exact in float32 near both ends, and the leading bits of a float are a logarithmic bin: the exponent
and 8,192 even steps. Values closer than 2^-32 to an end share a bin.
"""

from __future__ import annotations

import numpy as np

from keepad.arrays import Array

_STEP_BITS = 13  # 8,192 bins per halving of the distance to 0 or 1
_FIRST = int(np.float32(2.0**-32).view(np.int32))
_SHIFT = 23 - _STEP_BITS  # float32 has a 23-bit mantissa
_HALF = ((int(np.float32(0.5).view(np.int32)) - _FIRST) >> _SHIFT) + 1  # the code of 0.5

BINS = 2 * _HALF + 1


def bin_codes(values: Array) -> Array:
    """The bin of every value, int32 from 0 for 0.0 to BINS - 1 for 1.0, non-decreasing in the value.

    Args:
        values: Any shape, float32 in [0, 1].
    """
    distance: Array = np.float32(1) - values
    np.minimum(distance, values, out=distance)
    code = distance.view(np.int32)
    np.maximum(code, _FIRST - 1, out=code)  # before subtracting: -0.0 is the lowest integer
    code -= _FIRST
    code >>= _SHIFT  # arithmetic shift: -1, below the first bin, stays -1
    code += 1
    return np.where(values > 0.5, np.int32(BINS - 1) - code, code)
