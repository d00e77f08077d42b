"""DTR and CMR from survivor indices, against counts by hand."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from keepad.arrays import Array
from keepad.errors import KeepADError
from keepad.metrics import Survival, clopper_pearson, defect_tokens


def grid(drawing: str) -> Array:
    """A (rows, columns) bool array from a drawing: # is on."""
    return np.array([[cell == "#" for cell in line] for line in drawing.split()])


def test_a_token_is_a_defect_token_if_one_pixel_touches_it() -> None:
    mask = grid("""
        ......
        ......
        ..##..
        ..###.
        ......
        .....#
    """)
    expected = grid("""
        ...
        .##
        ..#
    """)
    np.testing.assert_array_equal(defect_tokens(mask, (3, 3)), expected)


def test_tokens_need_not_be_square() -> None:
    mask = np.zeros((4, 12), dtype=bool)
    mask[3, 5] = True
    assert np.argwhere(defect_tokens(mask, (2, 3))).tolist() == [[1, 1]]


@pytest.mark.parametrize("shape", [(7, 6), (6, 7), (0, 6)])
def test_a_mask_must_divide_into_the_grid(shape: tuple[int, int]) -> None:
    with pytest.raises(KeepADError, match="cannot be divided evenly into 3x3 tokens"):
        defect_tokens(np.zeros(shape, dtype=bool), (3, 3))


def test_a_mask_must_be_bool() -> None:
    with pytest.raises(KeepADError, match="bool"):
        defect_tokens(np.zeros((6, 6), dtype=np.uint8), (3, 3))


def test_two_images_by_hand() -> None:
    survival = Survival()
    defect = grid("""
        ..##
        ..##
        ....
    """)
    survival.update(np.array([2, 7, 8, 0]), defect)  # tokens 2 and 7 of 2, 3, 6, 7
    survival.update(np.array([0, 1, 11]), defect)  # none
    overall = survival.compute().overall
    assert (overall.images, overall.missed) == (2, 1)
    assert overall.dtr == (0.5 + 0.0) / 2
    assert overall.cmr == 0.5


def test_the_order_and_repetition_of_survivors_do_not_matter() -> None:
    first, second = Survival(), Survival()
    defect = grid("##..")
    first.update(np.array([0, 3]), defect)
    second.update(np.array([3, 0, 0]), defect)
    assert first.compute() == second.compute()


@pytest.mark.parametrize(
    ("tokens", "size"), [(1, "1-4"), (4, "1-4"), (5, "5-16"), (16, "5-16"), (17, ">16"), (64, ">16")]
)
def test_size_is_the_number_of_defect_tokens(tokens: int, size: str) -> None:
    survival = Survival()
    survival.update(np.array([0]), (np.arange(64) < tokens).reshape(8, 8))
    by_size = survival.compute().by_size
    assert list(by_size) == ["1-4", "5-16", ">16"]
    assert {name: rate.images for name, rate in by_size.items() if rate.images} == {size: 1}


def test_an_image_without_defect_token_is_in_no_rate() -> None:
    survival = Survival()
    survival.update(np.array([1]), grid(".."))
    result = survival.compute()
    assert result.uncounted == 1
    assert result.overall.images == 0
    assert result.overall.dtr is None
    assert result.overall.cmr is None
    assert result.overall.cmr_high is None


def test_nothing_survives() -> None:
    survival = Survival()
    survival.update(np.array([], dtype=np.int64), grid("#."))
    assert survival.compute().overall.cmr == 1.0


image = st.tuples(st.sets(st.integers(0, 24)), st.sets(st.integers(0, 24)))


@given(st.lists(image, max_size=12), st.integers(0, 12))
@settings(deadline=None, max_examples=100)
def test_equal_to_counting_sets_and_to_merged_halves(images: list[tuple[set[int], set[int]]], cut: int) -> None:
    whole, first, second = Survival(), Survival(), Survival()
    shares = []
    for i, (survivors, defect) in enumerate(images):
        tokens = np.isin(np.arange(25), list(defect)).reshape(5, 5)
        for survival in (whole, first if i < cut else second):
            survival.update(np.array(sorted(survivors), dtype=np.int64), tokens)
        if defect:
            shares.append(len(survivors & defect) / len(defect))
    first.merge(second)
    overall = whole.compute().overall
    assert overall.images == first.compute().overall.images == len(shares)
    if shares:
        assert overall.dtr == pytest.approx(sum(shares) / len(shares))
        assert overall.cmr == pytest.approx(shares.count(0) / len(shares))
        assert first.compute().overall.dtr == pytest.approx(overall.dtr)
        assert first.compute().overall.cmr == overall.cmr
    assert whole.compute().uncounted == first.compute().uncounted == len(images) - len(shares)


def test_a_saved_state_continues_as_if_nothing_had_happened(tmp_path: Path) -> None:
    defect = grid("###..")
    survival = Survival()
    survival.update(np.array([0, 4]), defect)
    survival.update(np.array([0]), grid("....."))
    state: dict[str, Any] = survival.state_dict()
    np.savez(tmp_path / "state.npz", **state)
    resumed = Survival()
    with np.load(tmp_path / "state.npz") as saved:
        resumed.load_state_dict(dict(saved))
    for s in (survival, resumed):
        s.update(np.array([3]), defect)
    assert resumed.compute() == survival.compute()
    assert resumed.compute().overall.images == 2


def test_a_state_is_a_copy() -> None:
    survival = Survival()
    state = survival.state_dict()
    survival.update(np.array([0]), grid("#"))
    assert state["images"].sum() == 0


@pytest.mark.parametrize("n", [1, 10, 467])
def test_clopper_pearson_with_no_event_has_a_closed_form(n: int) -> None:
    low, high = clopper_pearson(0, n)
    assert low == 0
    assert high == pytest.approx(1 - 0.025 ** (1 / n))
    assert clopper_pearson(n, n) == pytest.approx((0.025 ** (1 / n), 1.0))


def test_clopper_pearson_known_value() -> None:
    assert clopper_pearson(8, 10) == pytest.approx((0.4439, 0.9748), abs=5e-5)  # as printed in tables


@given(st.integers(1, 2000), st.data())
@settings(deadline=None, max_examples=50)
def test_clopper_pearson_ends_leave_2_5_percent_in_each_tail(trials: int, data: st.DataObject) -> None:
    events = data.draw(st.integers(0, trials))
    low, high = clopper_pearson(events, trials)
    assert low <= events / trials <= high
    if events > 0:
        assert stats.binom.sf(events - 1, trials, low) == pytest.approx(0.025, rel=1e-6)
    if events < trials:
        assert stats.binom.cdf(events, trials, high) == pytest.approx(0.025, rel=1e-6)


def test_the_interval_is_on_the_missed_images() -> None:
    survival = Survival()
    for survivors in ([0], [0], [1]):
        survival.update(np.array(survivors), grid("#."))
    overall = survival.compute().overall
    assert (overall.cmr_low, overall.cmr_high) == clopper_pearson(1, 3)


@pytest.mark.parametrize(("events", "trials"), [(0, 0), (3, 2), (-1, 2)])
def test_impossible_counts_have_no_interval(events: int, trials: int) -> None:
    with pytest.raises(KeepADError, match="no interval"):
        clopper_pearson(events, trials)


@pytest.mark.parametrize(
    ("survivors", "defect", "sentence"),
    [
        (np.array([4]), np.ones((2, 2), dtype=bool), "outside the 4 tokens"),
        (np.array([-1]), np.ones((2, 2), dtype=bool), "outside the 4 tokens"),
        (np.array([0.5]), np.ones((2, 2), dtype=bool), "grid indices"),
        (np.array([[0]]), np.ones((2, 2), dtype=bool), "grid indices"),
        (np.array([0]), np.ones(4, dtype=bool), "bool array"),
        (np.array([0]), np.ones((2, 2)), "bool array"),
    ],
)
def test_bad_input_is_one_sentence(survivors: Array, defect: Array, sentence: str) -> None:
    with pytest.raises(KeepADError, match=sentence):
        Survival().update(survivors, defect)


def test_a_foreign_state_is_refused() -> None:
    with pytest.raises(KeepADError, match="not a saved state of survival"):
        Survival().load_state_dict({"images": np.zeros(3)})
