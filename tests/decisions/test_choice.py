"""The choice of an operating point: by hand, and over simulated data sets whose true rates are known."""

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mapie.risk_control.fwer_control import control_fwer
from scipy import stats

from keepad.decisions import Choice, choose, defects_needed
from keepad.errors import KeepADError


def results(choice: Choice) -> list[str]:
    return [row.result for row in choice.table]


def test_the_fastest_point_before_the_first_failure() -> None:
    # 400 defects at 2 %: P(<= 3 misses) = 0.040, P(<= 4) = 0.097.
    choice = choose({"dense": 0, "prune30": 3, "prune50": 4, "prune70": 0}, defects=400, max_miss=0.02)
    assert choice.point == "prune30"
    assert results(choice) == ["passed", "passed", "failed", "not tested"]
    row = choice.table[1]
    assert row.rate == 3 / 400
    assert row.p_value == pytest.approx(stats.binomtest(3, 400, 0.02, "less").pvalue)
    assert row.bound == pytest.approx(stats.binomtest(3, 400, alternative="less").proportion_ci(0.95).high)
    assert choice.sentence.startswith("prune30 is the fastest operating point")


def test_no_point_where_dense_fails() -> None:
    choice = choose({"dense": 9, "prune70": 0}, defects=200, max_miss=0.02)
    assert choice.point is None
    assert results(choice) == ["failed", "not tested"]
    assert "dense fails already (9 of 200 missed" in choice.sentence


@pytest.mark.parametrize(
    ("max_miss", "confidence", "needed"), [(0.02, 0.95, 149), (0.05, 0.95, 59), (0.01, 0.95, 299), (0.5, 0.5, 1)]
)
def test_too_few_defects_say_how_many(max_miss: float, confidence: float, needed: int) -> None:
    assert defects_needed(max_miss, confidence) == needed
    assert choose({"dense": 0}, defects=needed, max_miss=max_miss, confidence=confidence).point == "dense"
    with pytest.raises(KeepADError, match=f"even without a miss; {needed} are needed"):
        choose({"dense": 0}, defects=needed - 1, max_miss=max_miss, confidence=confidence)


@given(st.integers(1, 2000), st.data())
@settings(deadline=None, max_examples=100)
def test_a_point_passes_if_and_only_if_its_bound_does(defects: int, data: st.DataObject) -> None:
    max_miss = data.draw(st.floats(0.005, 0.5))
    missed = data.draw(st.integers(0, defects))
    if defects < defects_needed(max_miss):
        return
    row = choose({"dense": missed}, defects=defects, max_miss=max_miss).table[0]
    if not math.isclose(row.bound, max_miss, rel_tol=1e-9):
        assert (row.result == "passed") == (row.bound <= max_miss)


@pytest.mark.parametrize(
    "true",
    [
        (0.019, 0.0201, 0.021, 0.03),  # the first wrong one is nearly right
        (0.001, 0.005, 0.0201, 0.0201),
        (0.0201, 0.0201, 0.0201, 0.0201),
        (0.001, 0.021, 0.002, 0.05),  # a faster point may be better again
    ],
)
def test_the_bound_is_exceeded_in_at_most_5_percent_of_1000_data_sets(true: tuple[float, ...]) -> None:
    random = np.random.default_rng(0)
    wrong = 0
    for _ in range(1000):
        # Points miss the same hard images, as they do in practice.
        hardness = random.random(400)
        missed = {f"point{i}": int((hardness < rate).sum()) for i, rate in enumerate(true)}
        point = choose(missed, defects=400, max_miss=0.02).point
        wrong += point is not None and true[int(point[-1])] > 0.02
    assert wrong <= 50 + 3 * math.sqrt(1000 * 0.05 * 0.95)


def test_a_choice_survives_json() -> None:
    choice = choose({"dense": 0, "prune50": 1, "prune70": 9}, defects=400, max_miss=0.02)
    assert Choice.from_dict(json.loads(json.dumps(choice.to_dict()))) == choice


GOOD: dict[str, Any] = choose({"dense": 0, "prune70": 9}, defects=400, max_miss=0.02).to_dict()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"point": "prune70"}, "its point does not follow from its table"),
        ({"point": []}, "its point does not follow from its table"),
        ({"table": GOOD["table"][:1] * 2}, "its point does not follow from its table"),
        ({"table": []}, "no operating point"),
        ({"table": [1]}, "not a row of a saved choice"),
        ({"table": [{**GOOD["table"][0], "missed": 401}]}, "cannot have missed 401 of 400"),
        ({"table": [{**GOOD["table"][0], "missed": 0.0}]}, "'missed' must be a whole number"),
        ({"table": [{**GOOD["table"][0], "point": 1}]}, "'point' must be a string"),
        ({"defects": True}, "'defects' must be a whole number"),
        ({"max_miss": 0}, "0 cannot be a highest miss rate"),
        ({"confidence": math.nan}, "'confidence' must be a finite number"),
        ({"more": 1}, "missing or unknown"),
    ],
)
def test_a_hostile_file_is_one_sentence(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(KeepADError, match=sentence):
        Choice.from_dict({**GOOD, **change})


def test_an_independent_package_rejects_the_same_points() -> None:
    random = np.random.default_rng(0)
    for _ in range(200):
        counts = {f"point{i}": int(count) for i, count in enumerate(np.sort(random.integers(0, 9, 5)))}
        choice = choose(counts, defects=400, max_miss=0.02)
        p_values = np.array([stats.binom.cdf(count, 400, 0.02) for count in counts.values()])
        passed = control_fwer(p_values, delta=0.05, fwer_method="fixed_sequence").tolist()
        assert [number for number, row in enumerate(choice.table) if row.result == "passed"] == passed
