"""Calibration on held-out logits, and its agreement with the scores of the detector."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from keepad.logit_scale import LogitScale
from keepad.presets import Calibration, Placement
from keepad.scoring import image_score
from keepad.training.calibration import HeldOutLogits, calibrate, fit_scales, score_held_out
from keepad.training.dataset import Annotations
from keepad.training.results import Validation

LAYERS = (6, 8, 9)
PLACEMENT = Placement(LAYERS, 4, 6, 9, (6, 9), LAYERS)
GRID = (4, 5)


def logits(*, patch: float = 1.0, cls: float = 1.0, dissimilar: float = 0.0, images: int = 40) -> HeldOutLogits:
    """Two classes of noise; defects of odd images stand out by so many deviations in each kind of logit."""
    rng = torch.Generator().manual_seed(0)
    labels = torch.arange(images) % 2
    defect = torch.zeros(images, 20, dtype=torch.bool)
    defect[labels == 1, 7:9] = True
    gaps = 0.1 * torch.randn(images, 3, 20, generator=rng) + 0.1 * patch * defect[:, None] - 0.3
    dissimilarity = 0.02 * torch.randn(images, 3, 20, generator=rng) + 0.02 * dissimilar * defect[:, None] + 0.2
    tokens = 0.1 * torch.randn(images, 3, generator=rng) + 0.1 * cls * labels[:, None]
    classes = [("suite", "a" if image < images // 2 else "b") for image in range(images)]
    return HeldOutLogits(
        patch=gaps,
        cls=tokens,
        dissimilarity=dissimilarity,
        entry={},
        truth=Annotations(labels.numpy(), list(defect.numpy()), classes),
        layers=LAYERS,
        grid=GRID,
    )


def fitted(held: HeldOutLogits, scales: Sequence[LogitScale]) -> tuple[Calibration, Validation]:
    scored = score_held_out(held, scales, PLACEMENT, Calibration())
    calibration = calibrate([scored], Calibration())
    return calibration, scored.validation(calibration)


def test_scales_give_every_layer_the_same_spread_around_zero() -> None:
    held = logits()
    held.patch[:, 1] *= 5  # a loud layer
    held.cls[:, 2] += 3
    for i, scale in enumerate(fit_scales(held, 0.0)):
        patches = scale.patch_scale * held.patch[:, i] + scale.patch_bias
        cls = scale.cls_scale * held.cls[:, i] + scale.cls_bias
        for values in (patches, cls):
            assert float(values.mean()) == pytest.approx(0, abs=1e-5)
            assert float(values.std(correction=0)) == pytest.approx(0.5, rel=1e-4)
        assert scale.dissimilarity == 0


def test_a_centre_above_the_mean_quiets_the_background_and_leaves_cls_alone() -> None:
    held = logits()
    for plain, moved in zip(fit_scales(held, 1.0), fit_scales(held, 1.0, centre=4.0), strict=True):
        assert moved.patch_bias == pytest.approx(plain.patch_bias - 2)
        assert replace(moved, patch_bias=plain.patch_bias) == plain


def test_dissimilarity_weighs_in_units_of_its_own_spread() -> None:
    held = logits()
    (scale, *_) = fit_scales(held, 2.0)
    assert held.dissimilarity is not None
    assert scale.dissimilarity * float(held.dissimilarity[:, 0].std(correction=0)) == pytest.approx(1, rel=1e-4)
    both = scale.patch_scale * held.patch[:, 0] + scale.dissimilarity * held.dissimilarity[:, 0] + scale.patch_bias
    assert float(both.mean()) == pytest.approx(0, abs=1e-4)


@pytest.mark.parametrize(("patch", "cls", "weights"), [(8.0, 0.0, (0.5, 0.75, 1.0)), (0.0, 3.0, (0.0, 0.25))])
def test_lambda_favours_the_score_that_ranks_images(patch: float, cls: float, weights: tuple[float, ...]) -> None:
    held = logits(patch=patch, cls=cls)
    calibration, validation = fitted(held, fit_scales(held, 0.0))
    assert calibration.patch_weight in weights
    assert validation.image_auroc is not None
    assert validation.image_auroc > 0.95


def test_dissimilarity_localises_what_prototypes_cannot() -> None:
    held = logits(patch=0.0, cls=0.0, dissimilar=8.0)
    without = fitted(held, fit_scales(held, 0.0))[1]
    with_it = fitted(held, fit_scales(held, 1.0))[1]
    assert without.patch_auroc is not None
    assert with_it.patch_auroc is not None
    assert without.patch_auroc < 0.65 < 0.95 < with_it.patch_auroc


def test_thresholds_separate_separable_images_and_patches() -> None:
    held = logits(patch=20.0, cls=20.0)
    scored = score_held_out(held, fit_scales(held, 0.0), PLACEMENT, Calibration())
    calibration = calibrate([scored], Calibration())
    assert calibration.image_threshold is not None
    assert calibration.pixel_threshold is not None
    labels, defects = held.truth.labels, held.truth.masked()[1]
    np.testing.assert_array_equal(scored.scores(calibration) >= calibration.image_threshold, labels == 1)
    np.testing.assert_array_equal(scored.maps >= calibration.pixel_threshold, defects)


def test_scores_are_those_of_the_detector() -> None:
    held = logits()
    scales = fit_scales(held, 1.0)
    calibration = replace(fitted(held, scales)[0], patch_weight=0.4)
    scores = score_held_out(held, scales, PLACEMENT, calibration).scores(calibration)
    assert held.dissimilarity is not None
    for i in range(5):
        responses, cls = {}, {}
        for k, (layer, scale) in enumerate(zip(LAYERS, scales, strict=True)):
            patch = scale.patch_scale * held.patch[i, k] + scale.dissimilarity * held.dissimilarity[i, k]
            responses[layer] = torch.sigmoid(patch + scale.patch_bias).numpy()
            cls[layer] = float(torch.sigmoid(scale.cls_scale * held.cls[i, k] + scale.cls_bias))
        empty = np.zeros(GRID)
        score = image_score(responses, cls, empty, kind="gated", placement=PLACEMENT, calibration=calibration)
        assert score == pytest.approx(float(scores[i]), abs=1e-6)


def test_validation_is_the_mean_over_classes_then_suites() -> None:
    held = logits(patch=0.0, cls=0.0)
    # Class a is ranked perfectly, class b in reverse; b is a suite of its own.
    held = replace(held, truth=replace(held.truth, classes=[("one", "a")] * 20 + [("two", "b")] * 20))
    sign = torch.tensor([1.0] * 20 + [-1.0] * 20)
    held.cls.copy_((sign * (2 * torch.from_numpy(held.truth.labels) - 1))[:, None].expand(-1, 3))
    scored = score_held_out(held, (LogitScale(),) * 3, PLACEMENT, Calibration())
    assert scored.validation(Calibration(patch_weight=0.0)).image_auroc == pytest.approx(0.5)
