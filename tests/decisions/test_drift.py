"""Drift: the stated rate of false alarms, the delay of an alarm, and a state that survives a file."""

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from keepad.arrays import Array
from keepad.decisions import HORIZON, DriftMonitor, DriftState, bets
from keepad.errors import KeepADError


def run(monitor: DriftMonitor, scores: Array) -> DriftState:
    for score in scores:
        state = monitor.update(score)
        if state.drift:
            break
    return state


def test_bets_are_fair_bounded_and_lose_on_uniform_p_values() -> None:
    p = (np.arange(100_000) + 0.5) / 100_000
    values = bets(p)
    np.testing.assert_allclose(values.mean(0), 1, atol=1e-6)
    assert (values > 0.09).all()
    assert (values < 4).all()
    assert (np.log(values).mean(0) < -0.04).all()


def test_alarms_over_10000_uniform_p_values_stay_below_the_stated_rate() -> None:
    """What the class does with its p-values, for 500 streams at once and a rate of 10 %."""
    random = np.random.default_rng(0)
    sums, alarms = np.zeros((500, 8)), np.zeros(500, dtype=bool)
    for _ in range(HORIZON):
        sums = (1 + sums) * bets(random.random(500))
        alarms |= sums.mean(1) >= HORIZON / 0.1
    assert alarms.mean() < 0.1 + 3 * math.sqrt(0.1 * 0.9 / 500)
    assert alarms.any()  # the bound is not idle


@pytest.mark.parametrize("good", [50, 300])
def test_p_values_of_a_stream_without_drift_are_uniform_and_independent(good: int) -> None:
    random = np.random.default_rng(good)
    p = np.empty((60, 100))
    for i in range(len(p)):
        monitor = DriftMonitor(random.integers(0, 12, good), seed=i)  # many ties
        p[i] = [monitor.update(score).p_value for score in random.integers(0, 12, 100)]
    assert stats.kstest(p.ravel(), "uniform").pvalue > 0.001
    # Chance of one calibration set would show as streams with means apart; 1 / 1200 if independent.
    assert p.mean(1).var() < 1.7 / 1200


def test_silent_on_10000_normal_images() -> None:
    random = np.random.default_rng(1)
    pool = random.normal(size=300)
    state = run(DriftMonitor(random.choice(pool, 100)), random.choice(pool, 10_000))
    assert state.images == 10_000
    assert not state.drift
    assert state.statistic < state.limit == 10_000 / 0.01


@pytest.mark.parametrize("good", [50, 100, 300])
def test_false_alarms_with_few_good_images(good: int) -> None:
    random = np.random.default_rng(good)
    alarms = [run(DriftMonitor(random.normal(size=good)), random.normal(size=300)).drift for _ in range(40)]
    assert sum(alarms) <= 1  # against the good images alone, every other stream of 3,000 would alarm


@pytest.mark.parametrize("good", [50, 300])
@pytest.mark.parametrize("normal", [0, 300])
@pytest.mark.parametrize(("shift", "kind"), [(2.5, "higher"), (-2.5, "lower")])
def test_a_shift_is_found_within_50_images(good: int, normal: int, shift: float, kind: str) -> None:
    random = np.random.default_rng(5)
    errors = []
    for _ in range(5):
        monitor = DriftMonitor(random.normal(size=good))
        scores = random.normal(size=normal + 50)
        scores[normal:] += shift
        state = run(monitor, scores)
        assert state.alarm is not None
        assert state.since is not None
        assert normal < state.alarm <= normal + 50
        errors.append(abs(state.since - (normal + 1)))
        assert state.kind == kind
        assert state.chance < 0.01
    assert np.median(errors) <= 5  # a lucky run before the shift moves a single estimate further


@pytest.mark.parametrize(("factor", "kind"), [(6.0, "wider"), (0.1, "narrower")])
def test_another_spread_is_found(factor: float, kind: str) -> None:
    random = np.random.default_rng(6)
    monitor = DriftMonitor(random.normal(size=100))
    state = run(monitor, np.concatenate([random.normal(size=300), factor * random.normal(size=50)]))
    assert state.alarm is not None
    assert state.kind == kind


def test_two_percent_of_defective_images_are_no_drift() -> None:
    random = np.random.default_rng(7)
    scores = random.normal(size=3000)
    scores[random.random(3000) < 0.02] += 10
    assert not run(DriftMonitor(random.normal(size=100)), scores).drift


def test_what_changed_names_the_largest_shift_first() -> None:
    random = np.random.default_rng(8)
    monitor = DriftMonitor(random.normal(0.2, 0.02, 60), extras={"keep": random.normal(0.3, 0.05, 60).tolist()})
    for _ in range(100):
        monitor.update(random.normal(0.2, 0.02), keep=random.normal(0.3, 0.05), brightness=random.normal(120, 2))
    assert monitor.what_changed() == []
    state = None
    for _ in range(60):
        keep = random.normal(0.3, 0.05)
        state = monitor.update(random.normal(0.28, 0.02), keep=keep, brightness=random.normal(100, 2), dust=math.nan)
    assert state is not None
    assert state.since is not None
    assert abs(state.since - 101) <= 5
    brightness, score, keep_change = monitor.what_changed()  # dust was never known
    assert brightness.name == "brightness"
    assert brightness.before == pytest.approx(120, abs=1)
    assert brightness.after == pytest.approx(100, abs=1)
    assert brightness.shift == pytest.approx(-10, abs=3)
    assert keep_change.name == "keep"
    assert abs(keep_change.shift) < 1
    assert score.name == "score"
    assert score.after - score.before == pytest.approx(0.08, abs=0.02)


def test_a_stream_that_drifts_from_its_first_image_is_compared_with_the_good_ones() -> None:
    random = np.random.default_rng(9)
    monitor = DriftMonitor(random.normal(size=100))
    assert run(monitor, random.normal(4, 1, 50)).since == 1
    (score,) = monitor.what_changed()
    assert score.before == pytest.approx(0, abs=0.4)
    assert score.after == pytest.approx(4, abs=0.7)


@given(st.integers(0, 120), st.integers(0, 3))
@settings(deadline=None, max_examples=15)
def test_a_saved_monitor_goes_on_as_if_nothing_had_happened(cut: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    good = random.integers(0, 9, 30)
    scores = np.concatenate([random.integers(0, 9, 70), random.integers(8, 14, 50)]).astype(float)
    whole, first = DriftMonitor(good, seed=seed), DriftMonitor(good, seed=seed)
    for score in scores[:cut]:
        first.update(score, keep=score / 20)
    second = DriftMonitor.from_dict(json.loads(json.dumps(first.to_dict())))
    for i, score in enumerate(scores):
        state = whole.update(score, keep=score / 20)
        if i >= cut:
            assert second.update(score, keep=score / 20) == state
    assert second.to_dict() == whole.to_dict()
    assert second.what_changed() == whole.what_changed()


def saved() -> dict[str, Any]:
    monitor = DriftMonitor(np.arange(20))
    for score in (3.0, 4.0):
        monitor.update(score)
    return monitor.to_dict()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"reference": [1.0]}, "1 good images are too few"),
        ({"reference": [math.nan] * 20}, "'reference' must be a finite number"),
        ({"false_alarms": 0}, "cannot be a rate"),
        ({"seed": -1}, "'seed' must be a whole number"),
        ({"images": 2.0}, "'images' must be a whole number"),
        ({"images": 3}, "'first' has 2 images"),
        ({"sums": [0.0] * 7}, "another version"),
        ({"sums": [-1.0] * 8}, "'sums' must be a finite number"),
        ({"starts": [9] * 8}, "'starts' must be a whole number"),
        ({"alarm": [1, 2, 0]}, "another version"),
        ({"alarm": [1, 1]}, "another version"),
        ({"alarm": "x"}, "'alarm' must be a list"),
        ({"last": [{"score": "1"}] * 2}, "'score' must be a finite number"),
        ({"last": [1, 2]}, "it is a int"),
        ({"good": []}, "it is a list"),
        ({"more": 1}, "missing or unknown"),
    ],
)
def test_a_hostile_state_is_one_sentence(change: dict[str, Any], sentence: str) -> None:
    DriftMonitor.from_dict(saved())
    with pytest.raises(KeepADError, match=sentence):
        DriftMonitor.from_dict({**saved(), **change})


def test_bad_input_is_one_sentence() -> None:
    with pytest.raises(KeepADError, match="3 good images are too few to see drift; use at least 20"):
        DriftMonitor([0.1, 0.2, 0.3])
    with pytest.raises(KeepADError, match="score of nan"):
        DriftMonitor([0.1] * 19 + [math.nan])
    monitor = DriftMonitor(np.arange(20))
    with pytest.raises(KeepADError, match="score of nan"):
        monitor.update(math.nan)
    assert monitor.update(1.0).images == 1  # the bad image did not count
