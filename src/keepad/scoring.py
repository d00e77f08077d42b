"""Image score: from the physical survivors and the CLS token of one image, never from other images of a test set."""

from __future__ import annotations

import math

import numpy as np

from keepad.arrays import Array
from keepad.errors import KeepADError
from keepad.presets import Calibration, Placement

SCORES = ("gated", "base", "mid", "half", "recovered_topk")


def top_count(survivors: int, cells: int, calibration: Calibration) -> int:
    """Number of highest responses that form the patch score; at least one."""
    tokens = survivors if calibration.top_of == "survivors" else cells
    return min(survivors, max(1, math.ceil(calibration.top_fraction * tokens)))


def top_mean(responses: Array, count: int) -> float:
    """Mean of the `count` highest responses."""
    return float(np.sort(responses, axis=None)[-count:].mean())


def gate(base: Array, calibration: Calibration) -> Array:
    """q(I), weight of the mid score, for base scores of any shape."""
    z = (base - calibration.base_mean) / calibration.base_std
    weight: Array = 1 / (1 + np.exp(-(z - calibration.gate_centre) / calibration.gate_temperature))
    return weight


def image_score(
    responses: dict[int, Array],
    cls: dict[int, float],
    patch_map: Array,
    *,
    kind: str,
    placement: Placement,
    calibration: Calibration,
) -> float:
    """The score of one image in [0, 1].

    Args:
        responses: Survivor responses by layer, each (n,).
        cls: CLS anomaly probability by layer.
        patch_map: (rows, columns) recovered map; only the control "recovered_topk" uses its values.
        kind: One of SCORES: base and mid mixed by the gate, either alone, or the control.
        placement: Layers of the base and of the mid score.
        calibration: Lambda, gate and token fraction.
    """
    cells = patch_map.size

    def blend(layers: tuple[int, ...]) -> float:
        """(1 - lambda) * CLS + lambda * patches over a set of layers."""
        patch = np.mean([responses[layer] for layer in layers], axis=0)
        top = top_mean(patch, top_count(len(patch), cells, calibration))
        mean = float(np.mean([cls[layer] for layer in layers]))
        return mean + calibration.patch_weight * (top - mean)

    if kind == "base":
        return blend(placement.base_layers)
    if kind == "mid":
        return blend(placement.mid_layers)
    if kind == "half":
        return (blend(placement.base_layers) + blend(placement.mid_layers)) / 2
    if kind == "recovered_topk":
        return top_mean(patch_map, top_count(cells, cells, calibration))
    if kind == "gated":
        base = blend(placement.base_layers)
        return base + float(gate(np.array(base), calibration)) * (blend(placement.mid_layers) - base)
    raise KeepADError(f"there is no image score called {kind!r}; choose one of {', '.join(SCORES)}.")
