"""Calibration and metrics of pruned passes over the source."""

from __future__ import annotations

import numpy as np
import pytest

from keepad.presets import Calibration
from keepad.training.calibration import calibrate
from keepad.training.dataset import Annotations
from keepad.training.validation import ValidationRun

IMAGES = 40


def scored(cls: float, patch: float, *, retained: float = 0.5, seed: int = 0) -> ValidationRun:
    """Images whose CLS and patch scores separate the labels by so many deviations."""
    rng = np.random.default_rng(seed)
    label = np.arange(IMAGES) % 2
    parts = 0.5 + 0.1 * rng.normal(size=(IMAGES, 2)) + 0.1 * label[:, None] * np.array([cls, patch])
    maps = rng.random((IMAGES, 6)).astype(np.float32)
    defect = np.isin(np.arange(6), (2, 3))
    truth = Annotations(label, [defect & bool(value) for value in label], [("suite", "class")] * IMAGES)
    return ValidationRun(parts, parts, maps, truth, np.where(label == 1, retained, np.nan), np.full(IMAGES, 0.2))


def test_lambda_is_the_one_that_ranks_best() -> None:
    calibration = calibrate([scored(3.0, 0.0)], Calibration(patch_weight=1.0))
    assert calibration.patch_weight < 0.5
    assert calibration.image_threshold is not None
    assert calibration.pixel_threshold is not None


def test_lambda_can_be_given() -> None:
    assert calibrate([scored(3.0, 0.0)], Calibration(), weight=0.75).patch_weight == 0.75


def test_the_gate_is_not_fitted_where_base_and_mid_are_the_same() -> None:
    assert calibrate([scored(3.0, 0.0)], Calibration()).gate_centre == 0.0


def test_validation_counts_images_whose_defects_are_lost() -> None:
    run = scored(1.0, 1.0)
    run.retained[1], run.retained[3] = 0.0, 1.0
    validation = run.validation(Calibration())
    assert (validation.missed, validation.anomalous) == (1, IMAGES // 2)
    assert validation.dtr == pytest.approx(0.5)
    assert validation.keep == pytest.approx(0.2)
