"""What pruned passes over the source decide."""

from __future__ import annotations

import numpy as np
import pytest

from keepad.presets import Calibration
from keepad.training.dataset import Entry, Source
from keepad.training.validation import Trial, calibrate_pruned, survived

IMAGES = 40


@pytest.fixture
def source() -> Source:
    defect = np.zeros(6, dtype=bool)
    defect[2:4] = True
    entries = [Entry(str(n), n % 2, defect if n % 2 else np.zeros(6, dtype=bool), None) for n in range(IMAGES)]
    return Source(tuple(_Sample() for _ in entries), tuple(entries), ((),) * IMAGES, (28, 42), (2, 3))  # type: ignore[arg-type]


class _Sample:
    suite, cls = "suite", "class"


def trial(cls: float, patch: float, *, retained: float = 0.5, seed: int = 0) -> Trial:
    """Evidence of which CLS and patches part the labels by so many deviations."""
    rng = np.random.default_rng(seed)
    label = np.arange(IMAGES) % 2
    parts = 0.5 + 0.1 * rng.normal(size=(IMAGES, 2)) + 0.1 * label[:, None] * np.array([cls, patch])
    maps = rng.random((IMAGES, 6)).astype(np.float32)
    left = np.where(label == 1, retained, np.nan)
    return Trial(parts, parts, maps, left, np.full(IMAGES, 0.2), np.full(IMAGES, 0.3))


def test_lambda_stays_where_another_is_hardly_better(source: Source) -> None:
    start = Calibration(patch_weight=0.75)
    found = calibrate_pruned([trial(8.0, 8.0)], source, range(IMAGES), start, usual=0)
    assert found.patch_weight == 0.75


def test_lambda_moves_where_another_is_clearly_better(source: Source) -> None:
    start = Calibration(patch_weight=1.0)
    found = calibrate_pruned([trial(3.0, 0.0)], source, range(IMAGES), start, usual=0)
    assert found.patch_weight < 0.5
    assert found.image_threshold is not None
    assert found.pixel_threshold is not None


def test_survival_counts_images_of_which_nothing_is_left(source: Source) -> None:
    one = trial(1.0, 1.0)
    one.retained[1], one.retained[3] = 0.0, 1.0
    found = survived(one, source, range(IMAGES), Calibration())
    assert (found.missed, found.anomalous) == (1, IMAGES // 2)
    assert found.dtr == pytest.approx(0.5)
    assert found.keep == pytest.approx(0.2)
