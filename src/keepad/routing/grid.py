"""Cells, blocks and orders on the patch grid, in NumPy; a grid index is row * columns + column."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import numpy as np

from keepad.arrays import Array

if TYPE_CHECKING:
    from torch import Tensor

Grid = tuple[int, int]
Index = TypeVar("Index", "Tensor", Array)
Values = TypeVar("Values", "Tensor", Array)

_LANDMARK_STRIDE = 3  # where one cell in nine is a landmark
_EPS = 1e-6


def block_ids(index: Index, grid: Grid, size: int) -> Index:
    """Block of each token, (n,); blocks of size x size cells, smaller ones at the end of an uneven side."""
    columns = grid[1]
    across = -(-columns // size)
    blocks: Index = index // columns // size * across + index % columns // size
    return blocks


def cell_ids(index: Index, grid: Grid, cells: int) -> Index:
    """Coarse cell of each token, (n,), when the grid is cut into cells x cells nearly equal parts."""
    rows, columns = grid
    coarse: Index = index // columns * cells // rows * cells + index % columns * cells // columns
    return coarse


def is_landmark(index: Index, grid: Grid, one_in: int = 9) -> Index:
    """(n,) whether a cell is a landmark: every third of every third row, or every other cell like a chessboard.

    A regular texture can fall between the landmarks of every third row; a chessboard leaves it no gaps.

    Args:
        index: (n,) grid indices.
        grid: Rows and columns.
        one_in: One in how many cells is a landmark, 9 or 2.
    """
    if one_in == 2:
        chess: Index = (index // grid[1] + index % grid[1]) % 2 == 0
        return chess
    middle = _LANDMARK_STRIDE // 2
    row, column = index // grid[1] % _LANDMARK_STRIDE, index % grid[1] % _LANDMARK_STRIDE
    landmark: Index = (row == middle) & (column == middle)
    return landmark


def standardise(values: Values) -> Values:
    """Zero mean and unit population deviation over the cells of one image, (m,) -> (m,)."""
    if isinstance(values, np.ndarray):
        standard: Array = (values - values.mean()) / (values.std() + np.float32(_EPS))
        return standard
    return (values - values.mean()) / (values.std(correction=0) + _EPS)


def first_of_each(group: Array) -> Array:
    """Position of the first member of each non-empty group, in ascending group order; (n,) group ids."""
    first = np.full(group.max(initial=-1) + 1, -1)
    first[group[::-1]] = np.arange(len(group))[::-1]  # later writes win, so the first member stays
    return first[first >= 0]


def relabel(ids: Array) -> tuple[Array, Array]:
    """The distinct values of small non-negative ids, ascending, and the position of each id among them."""
    present = np.zeros(ids.max(initial=-1) + 1, dtype=bool)
    present[ids] = True
    return np.flatnonzero(present), (np.cumsum(present) - 1)[ids]
