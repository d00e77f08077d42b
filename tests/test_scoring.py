"""The image score on numbers small enough to check by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from keepad.errors import KeepADError
from keepad.presets import Calibration, Placement
from keepad.scoring import image_score, top_count, top_mean

RESPONSES = {6: np.array([0.2, 0.4, 0.0]), 8: np.array([0.9, 0.1, 0.0]), 11: np.array([0.6, 0.8, 0.2])}
CLS = {6: 0.1, 8: 0.7, 11: 0.3}
PLACEMENT = Placement((6, 8, 11), shallow=4, deep=6, exit=11, base_layers=(6, 11), mid_layers=(6, 8, 11))
CALIBRATION = Calibration(patch_weight=0.25, base_mean=0.2, base_std=0.1, gate_centre=0.5)


def score(kind: str, calibration: Calibration = CALIBRATION) -> float:
    recovered = np.array([[0.6, 0.6], [0.1, 0.4]])
    return image_score(RESPONSES, CLS, recovered, kind=kind, placement=PLACEMENT, calibration=calibration)


def test_the_top_is_at_least_one_token_and_at_most_all() -> None:
    survivors, grid = Calibration(top_fraction=0.05), Calibration(top_fraction=0.05, top_of="grid")
    assert [top_count(count, 1369, survivors) for count in (3, 100, 1369)] == [1, 5, 69]
    assert [top_count(count, 1369, grid) for count in (3, 100, 1369)] == [3, 69, 69]
    assert (top_mean(np.array([0.1, 0.9, 0.5]), 1)) == pytest.approx(0.9)
    assert (top_mean(np.arange(100.0), 5)) == pytest.approx(97.0)


def test_base_mid_gate_and_control() -> None:
    base = 0.75 * 0.2 + 0.25 * 0.6  # CLS of 6 and 11: 0.2; best token of their mean: (0.4 + 0.8) / 2
    mid = 0.75 * (1.1 / 3) + 0.25 * (0.2 + 0.9 + 0.6) / 3
    assert score("base") == pytest.approx(base)
    assert score("mid") == pytest.approx(mid)
    q = 1 / (1 + math.exp(-((base - 0.2) / 0.1 - 0.5) / 0.5))
    assert score("gated") == pytest.approx((1 - q) * base + q * mid, abs=1e-6)
    assert score("recovered_topk") == pytest.approx(0.6)


def test_lambda_decides_between_cls_and_patches() -> None:
    assert score("base", Calibration(patch_weight=0.0)) == pytest.approx(0.2)
    assert score("base", Calibration(patch_weight=1.0)) == pytest.approx(0.6)


def test_an_unknown_score_is_refused() -> None:
    with pytest.raises(KeepADError, match="gated, base, mid"):
        score("best")
