"""Counts and cells that follow from the presets alone, for torch and for engines alike; nothing here needs torch."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeVar

from keepad.presets import Calibration, DeepBudget

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

Index = TypeVar("Index", "Tensor", "np.ndarray")

_STRIDE = 3  # landmarks stand in every third row and column, so that one patch in nine is one


def shallow_target(rho: float, grid: tuple[int, int]) -> int:
    """Tokens that a share rho of the whole grid means; a half goes to the even number, so 37x37 gives 958, 684, 411."""
    return round(rho * grid[0] * grid[1])


def token_budget(evidence: float, live: int, budget: DeepBudget) -> int:
    """Tokens that an image with this evidence deserves, of `live`."""
    mass = 1 / (1 + math.exp(-(evidence - budget.centre) / budget.temperature))
    rho = budget.rho_min + (budget.rho_max - budget.rho_min) * mass
    return max(1, round(live * rho**budget.kappa))


def top_count(survivors: int, cells: int, calibration: Calibration) -> int:
    """How many of the survivors make the patch evidence; at least one."""
    tokens = survivors if calibration.top_of == "survivors" else cells
    return min(survivors, max(1, math.ceil(calibration.top_fraction * tokens)))


def block_ids(index: Index, grid: tuple[int, int], size: int) -> Index:
    """Block of each token, (n,); blocks of size x size cells, smaller ones at the end of an uneven side."""
    columns = grid[1]
    across = -(-columns // size)
    return index // columns // size * across + index % columns // size


def cell_ids(index: Index, grid: tuple[int, int], cells: int) -> Index:
    """Cell of each token, (n,), when the grid is cut into cells x cells nearly equal parts."""
    rows, columns = grid
    return index // columns * cells // rows * cells + index % columns * cells // columns


def on_lattice(index: Index, grid: tuple[int, int]) -> Index:
    """(n,) whether a patch is a landmark."""
    middle = _STRIDE // 2
    return (index // grid[1] % _STRIDE == middle) & (index % grid[1] % _STRIDE == middle)
