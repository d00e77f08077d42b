"""Predictions made by hand, for tests of what is drawn and written of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from keepad.arrays import Array
from keepad.prediction import Prediction

FIELDS = {  # of Prediction.to_dict()
    *("path", "pred_score", "pred_label", "point", "evidence", "seconds"),
    *("verdict", "p_value", "threshold", "brightness", "sharpness"),
    *("keep_pixels", "keep_shallow", "keep_final"),
}
GREY = 120
PATCH = 14


def make_prediction(
    anomaly: float | Array = 0.0,
    *,
    grid: tuple[int, int] = (4, 4),
    shallow: Sequence[int] | None = None,
    final: Sequence[int] | None = None,
    **more: Any,
) -> Prediction:
    """A prediction on a grey image of `grid` patches; all tokens survive unless `shallow` or `final` name them."""
    size = (grid[0] * PATCH, grid[1] * PATCH)
    shallow = range(grid[0] * grid[1]) if shallow is None else shallow
    fields = {
        "pred_score": 0.5,
        "anomaly_map": np.broadcast_to(np.float32(anomaly), size),
        "grid": grid,
        "survivors_shallow": np.array(shallow, int),
        "survivors": np.array(shallow if final is None else final, int),
        "evidence": 0.6,
        "point": "prune70",
        "image": np.full((*size, 3), GREY, np.uint8),
        "image_size": size,
    }
    return Prediction(**{**fields, **more})
