"""Random grids with some of their tokens alive, for property tests of the routers."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from keepad.arrays import Array


@st.composite
def live_tokens(draw: st.DrawFn) -> tuple[Array, Array, tuple[int, int]]:
    """Scores (with many ties) and ascending grid indices of a random subset of a random grid."""
    grid = draw(st.tuples(st.integers(1, 19), st.integers(1, 19)))
    cells = grid[0] * grid[1]
    random = np.random.default_rng(draw(st.integers(0, 2**31)))
    index = np.sort(random.choice(cells, draw(st.integers(1, cells)), replace=False))
    levels = draw(st.sampled_from([2, 5, 10_000]))
    return (random.integers(levels, size=len(index)) / levels).astype(np.float32), index, grid


def block_of(cell: int, grid: tuple[int, int], size: int = 2) -> tuple[int, int]:
    """Row and column of the block of a cell."""
    return cell // grid[1] // size, cell % grid[1] // size
