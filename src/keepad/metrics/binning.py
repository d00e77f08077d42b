"""Bins that are fine where the values of a map crowd: a code for every value in [0, 1], near-even in log-odds.

The distance to the nearer end, min(x, 1 - x), is exact in float32, and the leading bits of a float are already a
logarithmic bin: its power of two, and 8,192 even steps inside it. Nearer than 2^-32 to an end all values share one bin.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_STEP_BITS = 13  # 8,192 bins for each halving of the distance to 0 or 1
_FIRST = int(np.float32(2.0**-32).view(np.int32))
_SHIFT = 23 - _STEP_BITS  # float32 has 23 bits after the leading one
_HALF = ((int(np.float32(0.5).view(np.int32)) - _FIRST) >> _SHIFT) + 1  # the code of 0.5

BINS = 2 * _HALF + 1


def bin_codes(values: NDArray[np.float32]) -> NDArray[np.int32]:
    """The bin of every value, 0 for 0.0 up to BINS - 1 for 1.0; a higher value never has a lower code.

    Args:
        values: any shape, in [0, 1].
    """
    distance = np.float32(1) - values
    np.minimum(distance, values, out=distance)
    code = distance.view(np.int32)
    np.maximum(code, _FIRST - 1, out=code)  # before subtracting: the bits of -0.0 are the lowest integer
    code -= _FIRST
    code >>= _SHIFT  # an arithmetic shift: -1, nearer to the end than the first bin, stays -1
    code += 1
    return np.where(values > 0.5, np.int32(BINS - 1) - code, code)
