"""Gaussian smoothing on the patch grid: of maps, and of the scores of the shallow router."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from keepad.arrays import Array


def smooth(maps: Array, sigma: float) -> Array:
    """Separable Gaussian on (..., rows, columns), cut at four sigma, edges repeated; sigma 0 returns the maps."""
    if sigma <= 0:
        return maps
    down, across = (_gaussian(cells, sigma) for cells in maps.shape[-2:])
    smoothed: Array = np.einsum("...ic,jc->...ij", np.einsum("ir,...rc->...ic", down, maps), across)
    return smoothed


@lru_cache(maxsize=32)
def _gaussian(cells: int, sigma: float) -> Array:
    """(cells, cells) weights of a Gaussian cut at four sigma, edges repeated."""
    radius = max(1, int(4 * sigma + 0.5))
    offset = np.arange(-radius, radius + 1)
    kernel = np.exp(-0.5 * (offset / sigma) ** 2)
    weights = np.zeros((cells, cells), dtype=np.float32)
    for step, weight in zip(offset, kernel / kernel.sum(), strict=True):
        np.add.at(weights, (np.arange(cells), np.clip(np.arange(cells) + step, 0, cells - 1)), weight)
    return weights
