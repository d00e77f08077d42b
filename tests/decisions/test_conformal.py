"""Conformal p-values and promises: by hand, by simulation, and with values that no file should hold."""

import json
import math
import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mapie.classification import SplitConformalClassifier
from scipy import stats
from sklearn.base import BaseEstimator, ClassifierMixin

from keepad.decisions import (
    Calibrated,
    calibrate,
    fdr_verdicts,
    images_needed,
    lowest_level,
    p_values,
    suspicious_images,
)
from keepad.errors import KeepADError

finite = st.floats(-10, 10)


def test_p_values_by_hand() -> None:
    # At or above 0.05: all 4; 0.2: 3 (a tie counts); 0.25: 1; 0.4: 0.
    np.testing.assert_allclose(p_values([0.1, 0.3, 0.2, 0.2], [0.05, 0.2, 0.25, 0.4]), [5 / 5, 4 / 5, 2 / 5, 1 / 5])


@given(st.lists(finite, min_size=1, max_size=40), st.lists(finite, min_size=2, max_size=10))
@settings(deadline=None, max_examples=100)
def test_a_higher_score_never_has_a_higher_p_value(calibration: list[float], scores: list[float]) -> None:
    p = p_values(calibration, sorted(scores))
    assert (np.diff(p) <= 0).all()
    assert (p >= 1 / (len(calibration) + 1)).all()
    assert (p <= 1).all()


@given(st.lists(finite, min_size=19, max_size=60), finite, st.sampled_from([0.05, 0.07, 0.29, 0.5]))
@settings(deadline=None, max_examples=200)
def test_a_verdict_is_what_the_p_value_says(scores: list[float], score: float, level: float) -> None:
    calibrated = calibrate(scores, level=level)
    p = calibrated.p_value(score)
    expected = "defect" if p <= level + 1e-12 else "review" if p <= calibrated.review_level + 1e-12 else "ok"
    assert calibrated.verdict(score) == expected
    assert (score >= calibrated.threshold) == (expected == "defect")


@pytest.mark.parametrize(
    ("level", "confidence", "needed"),
    [(0.01, None, 99), (0.05, None, 19), (0.01, 0.95, 299), (0.05, 0.95, 59), (0.5, None, 1), (0.001, None, 999)],
)
def test_images_needed_and_refused_below(level: float, confidence: float | None, needed: int) -> None:
    assert images_needed(level, confidence) == needed
    calibrate(np.arange(needed), level=level, confidence=confidence)
    assert lowest_level(needed, confidence) <= level * (1 + 1e-12)
    if needed > 1:
        assert lowest_level(needed - 1, confidence) > level
        with pytest.raises(KeepADError, match=f"needs {needed};"):
            calibrate(np.arange(needed - 1), level=level, confidence=confidence)


def test_a_promise_of_1_percent_is_above_all_99_scores() -> None:
    calibrated = calibrate(np.arange(99.0), level=0.01)
    assert calibrated.verdict(98.0) == "review"
    assert calibrated.verdict(98.1) == "defect"
    assert calibrated.review_level == 0.05
    assert calibrated.verdict(94.1) == "review"  # four scores above it: p = 5 / 100
    assert calibrated.verdict(93.9) == "ok"


def test_the_review_level_is_capped_and_never_below_the_level() -> None:
    scores = np.arange(19.0)
    assert calibrate(scores, level=0.2).review_level == 0.5
    assert calibrate(scores, level=0.7).review_level == 0.7
    with pytest.raises(KeepADError, match="review level 2 % is below the false-alarm level 5 %"):
        calibrate(scores, level=0.05, review_level=0.02)


def test_the_pixel_threshold_is_above_the_highest_float32_map() -> None:
    maxima = np.linspace(0.1, 0.7, 19, dtype=np.float32)
    threshold = calibrate(np.arange(19), level=0.05, map_maxima=maxima).pixel_threshold
    assert threshold is not None
    assert not (maxima >= threshold).any()  # NumPy rounds the threshold to float32 here
    assert np.nextafter(maxima.max(), np.float32(1)) >= threshold
    looser = calibrate(np.arange(19), level=0.1, map_maxima=maxima).pixel_threshold
    assert looser is not None
    assert (maxima >= looser).sum() == 1


def test_false_alarms_hold_on_average_over_2000_calibrations() -> None:
    random = np.random.default_rng(0)
    for n, level in ((19, 0.05), (50, 0.05), (99, 0.01), (150, 0.01)):
        thresholds = [calibrate(scores, level=level).threshold for scores in random.normal(size=(2000, n))]
        rates = stats.norm.sf(thresholds)  # the true rate of each calibration
        assert rates.mean() < level + 3 * rates.std() / math.sqrt(2000)
        if math.isclose(level * (n + 1), round(level * (n + 1))):
            assert rates.mean() > level - 3 * rates.std() / math.sqrt(2000)  # no better than promised, either


@pytest.mark.parametrize(("n", "level"), [(59, 0.05), (150, 0.05), (299, 0.01)])
def test_false_alarms_hold_for_95_percent_of_2000_calibrations(n: int, level: float) -> None:
    random = np.random.default_rng(1)
    scores = random.normal(size=(2000, n))
    rates = stats.norm.sf([calibrate(row, level=level, confidence=0.95).threshold for row in scores])
    assert (rates > level).mean() < 0.05 + 3 * math.sqrt(0.05 * 0.95 / 2000)
    on_average = stats.norm.sf([calibrate(row, level=level).threshold for row in scores])
    assert (on_average > level).mean() > 0.2  # what confidence is for


def test_false_alarms_hold_with_many_ties() -> None:
    random = np.random.default_rng(2)
    calibration = random.integers(0, 6, (2000, 39))
    fresh = random.integers(0, 6, 2000)
    alarms = [
        calibrate(row, level=0.05).verdict(score) == "defect" for row, score in zip(calibration, fresh, strict=True)
    ]
    assert np.mean(alarms) < 0.05 + 3 * math.sqrt(0.05 * 0.95 / 2000)


def test_false_discoveries_hold_over_2000_folders() -> None:
    random = np.random.default_rng(3)
    shares, found = [], 0
    for _ in range(2000):
        calibrated = calibrate(random.normal(size=199), level=0.05)
        scores = np.concatenate([random.normal(size=40), random.normal(4, 1, size=10)])
        defect = np.array(fdr_verdicts(calibrated, scores, 0.1)) == "defect"
        shares.append(defect[:40].sum() / max(defect.sum(), 1))
        found += int(defect[40:].sum())
    assert np.mean(shares) < 0.1 + 3 * np.std(shares) / math.sqrt(2000)
    assert found > 0.5 * 2000 * 10  # it does find defects


def test_fdr_by_hand() -> None:
    calibrated = calibrate(np.arange(99.0), level=0.01)
    # p = 0.01, 0.01, 0.03, 0.04, 1: adjusted by 5 / rank 0.025, 0.025, 0.05, 0.05, 1.
    scores = [200.0, 100.0, 96.5, 95.5, -1.0]
    assert fdr_verdicts(calibrated, scores, 0.05) == ["defect"] * 4 + ["ok"]
    assert fdr_verdicts(calibrated, scores, 0.03) == ["defect"] * 2 + ["review"] * 2 + ["ok"]
    assert fdr_verdicts(calibrated, [], 0.05) == []
    with pytest.raises(KeepADError, match=r"too few for a false discovery rate of 0\.5 %; use at least 199"):
        fdr_verdicts(calibrated, scores, 0.005)


def test_a_defective_image_among_the_good_ones_is_named() -> None:
    random = np.random.default_rng(4)
    scores = random.normal(0.2, 0.02, 50)
    names = [f"{i}.png" for i in range(50)]
    assert suspicious_images(names, scores) == []
    scores[[7, 30]] = [0.6, 0.9]
    assert suspicious_images(names, scores) == ["30.png", "7.png"]
    assert suspicious_images(names, np.append(np.full(49, 0.5), 0.5001)) == []
    assert suspicious_images(names, np.append(np.full(49, 0.5), 0.6)) == ["49.png"]


def test_a_calibration_survives_json() -> None:
    calibrated = calibrate(
        np.linspace(0, 1, 59),
        level=0.05,
        confidence=0.95,
        map_maxima=np.linspace(0, 1, 59),
        images={f"{i}.png": f"{i:064x}" for i in range(59)},
    )
    again = Calibrated.from_dict(json.loads(json.dumps(calibrated.to_dict())))
    assert again == calibrated
    assert again.threshold == calibrated.threshold


GOOD: dict[str, Any] = calibrate(np.arange(19), level=0.05).to_dict()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"scores": "0.1"}, "'scores' must be a list"),
        ({"scores": []}, "no calibration scores"),
        ({"scores": [0.1] * 3}, "3 good images cannot promise 5 % false alarms: that needs 19; they can promise 25 %"),
        ({"scores": [0.1] * 18 + [math.nan]}, "'scores' must be a finite number"),
        ({"scores": [0.1] * 18 + [True]}, "'scores' must be a finite number"),
        ({"scores": [0.1] * 18 + [None]}, "'scores' must be a finite number"),
        ({"scores": [0.1] * 18 + [10**400]}, "'scores' must be a finite number"),
        ({"scores": [0.1] * 18 + [[0.1]]}, "'scores' must be a finite number"),
        ({"level": 0}, "0 cannot be a false-alarm level"),
        ({"level": "0.05"}, "'level' must be a finite number"),
        ({"level": math.inf}, "'level' must be a finite number"),
        ({"review_level": 1.5}, "1.5 cannot be a review level"),
        ({"review_level": None}, "'review_level' must be a finite number"),
        ({"confidence": 1}, "1 cannot be a confidence"),
        ({"confidence": 0.95}, "needs 59; they can promise 14.6 %"),
        ({"pixel_threshold": {}}, "'pixel_threshold' must be a finite number"),
        ({"names": ["a"]}, "1 names for 19 calibration scores"),
        ({"names": [1] * 19}, "'names' must be a list of strings"),
        ({"hashes": ["a"] * 19}, "18 of the 19 calibration images are copies"),
        ({"more": 1}, "the keys more are missing or unknown"),
    ],
)
def test_a_hostile_file_is_one_sentence(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(KeepADError, match=sentence) as caught:
        Calibrated.from_dict({**GOOD, **change})
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize("values", [None, [], "x", 3, {}])
def test_what_is_no_calibration_is_refused(values: object) -> None:
    with pytest.raises(KeepADError, match="not a saved calibration"):
        Calibrated.from_dict(values)


def test_scores_that_are_not_finite_are_named() -> None:
    scores = [0.1, math.nan, math.inf, *np.arange(17)]
    with pytest.raises(KeepADError, match=r"2 of 20 calibration scores are not finite, the first of 1\.png"):
        calibrate(scores, level=0.05, images={f"{i}.png": str(i) for i in range(20)})
    calibrated = calibrate(np.arange(19), level=0.05)
    for call in (calibrated.p_value, calibrated.verdict):
        with pytest.raises(KeepADError, match="not finite"):
            call(math.nan)
    with pytest.raises(KeepADError, match="1 of 19 map maxima are not finite, the first number 1"):
        calibrate(np.arange(19), level=0.05, map_maxima=[math.nan] * 1 + [0.1] * 18)
    with pytest.raises(KeepADError, match="2 map maxima for 19"):
        calibrate(np.arange(19), level=0.05, map_maxima=[0.1, 0.2])
    with pytest.raises(KeepADError, match="0 good images can promise nothing"):
        lowest_level(0)


@pytest.mark.parametrize(("images", "level"), [(21, 0.05), (60, 0.05), (101, 0.01), (150, 0.02), (37, 0.3)])
def test_an_independent_package_calls_the_same_images_defective(images: int, level: float) -> None:
    class OneClass(ClassifierMixin, BaseEstimator):
        """A classifier whose probability of the class "defective" is the score."""

        def fit(self, x: np.ndarray, y: np.ndarray) -> "OneClass":
            self.classes_ = np.array([0, 1])
            return self

        def predict_proba(self, x: np.ndarray) -> np.ndarray:
            return np.stack([1 - x[:, 0], x[:, 0]], axis=1)

        def predict(self, x: np.ndarray) -> np.ndarray:
            return (x[:, 0] > 0.5).astype(int)

    random = np.random.default_rng(images)
    good, scores = random.random(images), random.random(400)
    none = np.zeros(0)
    mapie = SplitConformalClassifier(
        OneClass().fit(none, none), confidence_level=1 - level, conformity_score="lac", prefit=True
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # there are good images only
        mapie.conformalize(good[:, None], np.zeros(images, int))
        _, sets = mapie.predict_set(scores[:, None])
    calibrated = calibrate(good, level=level)
    assert [calibrated.verdict(score) == "defect" for score in scores] == (~sets[:, 0, 0]).tolist()
