"""Calibration: what held-out evidence decides, and that it reads evidence exactly as the detector will."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from keepad.presets import Calibration, Placement, Reading
from keepad.scoring import image_score
from keepad.training.calibration import HeldOut, Said, calibrate, level_readings, validate

LAYERS = (6, 8, 9)
PLACEMENT = Placement(LAYERS, 4, 6, 9, (6, 9), LAYERS)
GRID = (4, 5)


def evidence(*, patch: float = 1.0, cls: float = 1.0, unlike: float = 0.0, images: int = 40, seed: int = 0) -> HeldOut:
    """Two classes of noise; defects of odd images stand out by so many deviations in each kind of evidence."""
    rng = torch.Generator().manual_seed(seed)
    labels = torch.arange(images) % 2
    defect = torch.zeros(images, 20, dtype=torch.bool)
    defect[labels == 1, 7:9] = True
    gaps = 0.1 * torch.randn(images, 3, 20, generator=rng) + 0.1 * patch * defect[:, None] - 0.3
    dissimilarity = 0.02 * torch.randn(images, 3, 20, generator=rng) + 0.02 * unlike * defect[:, None] + 0.2
    tokens = 0.1 * torch.randn(images, 3, generator=rng) + 0.1 * cls * labels[:, None]
    return HeldOut(
        patch=gaps,
        cls=tokens,
        unlike=dissimilarity,
        entry=None,
        labels=labels.numpy(),
        defects=list(defect.numpy()),
        classes=[("suite", "a" if place < images // 2 else "b") for place in range(images)],
        layers=LAYERS,
        grid=GRID,
    )


def test_level_readings_give_every_layer_the_same_spread_around_zero() -> None:
    held = evidence()
    held.patch[:, 1] *= 5  # a loud layer
    held.cls[:, 2] += 3
    for place, reading in enumerate(level_readings(held, 0.0)):
        patches = reading.patch_scale * held.patch[:, place] + reading.patch_bias
        cls = reading.cls_scale * held.cls[:, place] + reading.cls_bias
        for values in (patches, cls):
            assert float(values.mean()) == pytest.approx(0, abs=1e-5)
            assert float(values.std(correction=0)) == pytest.approx(0.5, rel=1e-4)
        assert reading.unlike == 0


def test_a_centre_above_the_mean_quiets_the_background_and_leaves_cls_alone() -> None:
    held = evidence()
    for plain, moved in zip(level_readings(held, 1.0), level_readings(held, 1.0, centre=4.0), strict=True):
        assert moved.patch_bias == pytest.approx(plain.patch_bias - 2)
        assert replace(moved, patch_bias=plain.patch_bias) == plain


def test_unlikeness_weighs_in_units_of_its_own_spread() -> None:
    held = evidence()
    (reading, *_) = level_readings(held, 2.0)
    assert held.unlike is not None
    assert reading.unlike * float(held.unlike[:, 0].std(correction=0)) == pytest.approx(2 * 0.5, rel=1e-4)
    both = reading.patch_scale * held.patch[:, 0] + reading.unlike * held.unlike[:, 0] + reading.patch_bias
    assert float(both.mean()) == pytest.approx(0, abs=1e-4)


@pytest.mark.parametrize(("patch", "cls", "weights"), [(8.0, 0.0, (0.5, 0.75, 1.0)), (0.0, 3.0, (0.0, 0.25))])
def test_lambda_listens_to_what_ranks_images(patch: float, cls: float, weights: tuple[float, ...]) -> None:
    held = evidence(patch=patch, cls=cls)
    calibration, validation = calibrate(held, level_readings(held, 0.0), PLACEMENT, Calibration())
    assert calibration.patch_weight in weights
    assert validation.image_auroc is not None
    assert validation.image_auroc > 0.95


def test_unlikeness_finds_what_prototypes_cannot() -> None:
    held = evidence(patch=0.0, cls=0.0, unlike=8.0)
    blind = calibrate(held, level_readings(held, 0.0), PLACEMENT, Calibration())[1]
    seeing = calibrate(held, level_readings(held, 1.0), PLACEMENT, Calibration())[1]
    assert blind.patch_auroc is not None
    assert seeing.patch_auroc is not None
    assert blind.patch_auroc < 0.65 < 0.95 < seeing.patch_auroc


def test_thresholds_part_what_can_be_parted() -> None:
    held = evidence(patch=20.0, cls=20.0)
    readings = level_readings(held, 0.0)
    calibration, _ = calibrate(held, readings, PLACEMENT, Calibration())
    said = Said(held, readings, calibration)
    assert calibration.image_threshold is not None
    assert calibration.pixel_threshold is not None
    np.testing.assert_array_equal(said.scores(PLACEMENT, calibration) >= calibration.image_threshold, held.labels == 1)
    np.testing.assert_array_equal(said.maps() >= calibration.pixel_threshold, np.stack(held.defects))  # type: ignore[arg-type]


def test_scores_are_those_of_the_detector() -> None:
    held = evidence()
    readings = level_readings(held, 1.0)
    calibration = replace(calibrate(held, readings, PLACEMENT, Calibration())[0], patch_weight=0.4)
    scores = Said(held, readings, calibration).scores(PLACEMENT, calibration)
    assert held.unlike is not None
    for place in range(5):
        responses = {
            layer: torch.sigmoid(
                reading.patch_scale * held.patch[place, k] + reading.unlike * held.unlike[place, k] + reading.patch_bias
            )
            for k, (layer, reading) in enumerate(zip(LAYERS, readings, strict=True))
        }
        cls = {
            layer: torch.sigmoid(reading.cls_scale * held.cls[place, k] + reading.cls_bias)
            for k, (layer, reading) in enumerate(zip(LAYERS, readings, strict=True))
        }
        score = image_score(
            responses,
            cls,
            torch.zeros(GRID),
            kind="gated",
            base_layers=PLACEMENT.base_layers,
            mid_layers=PLACEMENT.mid_layers,
            calibration=calibration,
        )
        assert float(score) == pytest.approx(float(scores[place]), abs=1e-6)


def test_validation_is_the_mean_over_classes_then_suites() -> None:
    held = evidence(patch=0.0, cls=0.0)
    # Class a is ranked perfectly, class b the wrong way round; b is a suite of its own.
    held = replace(held, classes=[("one", "a")] * 20 + [("two", "b")] * 20)
    sign = torch.tensor([1.0] * 20 + [-1.0] * 20)
    held.cls.copy_((sign * (2 * torch.from_numpy(held.labels) - 1))[:, None].expand(-1, 3))
    found = validate(held, (Reading(),) * 3, PLACEMENT, Calibration(patch_weight=0.0))
    assert found.image_auroc == pytest.approx(0.5)
