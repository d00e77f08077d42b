"""Condensing: which dropped tokens form a group that is one token of the context."""

from __future__ import annotations

import numpy as np

from keepad.arrays import Array

_EPS = 1e-12


def groups_of(rows: Array, count: int) -> tuple[Array, Array]:
    """Group of each of n > count tokens, (n, C) -> (n,), and positions of the tokens that the groups grew from.

    These are evenly spaced; every other token joins the one that it resembles most.
    """
    seeds = np.linspace(0, len(rows) - 1, count).round().astype(np.int64)
    unit = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), _EPS)
    group = (unit @ unit[seeds].T).argmax(1)
    group[seeds] = np.arange(count)
    return group, seeds
