"""Ranking metrics equal those of scikit-learn, and are None with a single class."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import (
    average_precision_score,
    precision_recall_curve,
    roc_auc_score,
)

from keepad.arrays import Array
from keepad.errors import KeepADError
from keepad.metrics import auroc, average_precision, f1_max
from keepad.metrics.ranking import auroc_of_counts, average_precision_of_counts, f1_max_of_counts

Metric = Callable[[object, object], float | None]
# Few distinct scores: many ties within and between the classes.
tied_scores = st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=2, max_size=60).filter(
    lambda pairs: len({label for _, label in pairs}) == 2
)
any_scores = st.lists(st.tuples(st.floats(-1e6, 1e6), st.booleans()), min_size=2, max_size=60).filter(
    lambda pairs: len({label for _, label in pairs}) == 2
)


def sklearn_f1_max(labels: Array, scores: Array) -> float:
    precision, recall, _ = precision_recall_curve(labels, scores)
    return float(np.max(2 * precision * recall / np.maximum(precision + recall, 1e-300)))


@given(st.one_of(tied_scores, any_scores))
@settings(deadline=None, max_examples=100)
def test_equal_to_scikit_learn(pairs: list[tuple[float, bool]]) -> None:
    scores, labels = (np.array(column) for column in zip(*pairs, strict=True))
    assert auroc(scores, labels) == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)
    assert average_precision(scores, labels) == pytest.approx(average_precision_score(labels, scores), abs=1e-12)
    assert f1_max(scores, labels) == pytest.approx(sklearn_f1_max(labels, scores), abs=1e-12)


def test_a_small_case_by_hand() -> None:
    scores = [0.9, 0.8, 0.8, 0.1]
    labels = [1, 1, 0, 0]
    assert auroc(scores, labels) == (2 + 1.5) / 4  # the tie at 0.8 counts half
    assert average_precision(scores, labels) == pytest.approx(0.5 * 1 + 0.5 * 2 / 3)
    assert f1_max(scores, labels) == pytest.approx(2 * 2 / (3 + 2))  # threshold 0.8: 3 called positive, 2 of them right


@pytest.mark.parametrize("metric", [auroc, average_precision, f1_max])
@pytest.mark.parametrize("labels", [[0, 0, 0], [1, 1, 1]])
def test_one_class_has_no_ranking(metric: Metric, labels: list[int]) -> None:
    assert metric([0.1, 0.2, 0.3], labels) is None


@pytest.mark.parametrize("metric", [auroc, average_precision, f1_max])
def test_empty_input_has_no_ranking(metric: Metric) -> None:
    assert metric([], []) is None


@pytest.mark.parametrize("metric", [auroc, average_precision, f1_max])
@pytest.mark.parametrize(
    ("scores", "labels", "sentence"),
    [
        ([0.1, np.nan], [0, 1], "NaN or infinity"),
        ([0.1, np.inf], [0, 1], "NaN or infinity"),
        ([0.1, 0.2], [0, 1, 1], "same length"),
        ([[0.1, 0.2]], [[0, 1]], "same length"),
        ([0.1, 0.2], [0, 255], "Labels must be 0"),
    ],
)
def test_bad_input_is_one_sentence(metric: Metric, scores: list[float], labels: list[int], sentence: str) -> None:
    with pytest.raises(KeepADError, match=sentence):
        metric(scores, labels)


@given(st.data())
@settings(deadline=None, max_examples=150)
def test_bounds_enclose_every_order_inside_the_groups(data: st.DataObject) -> None:
    """Scores are quantised into groups of ten; the metric of the original scores lies within the bounds."""
    pairs = data.draw(
        st.lists(st.tuples(st.integers(0, 39), st.booleans()), min_size=2, max_size=60).filter(
            lambda pairs: len({label for _, label in pairs}) == 2
        )
    )
    scores, labels = (np.array(column) for column in zip(*pairs, strict=True))
    group = 3 - scores // 10
    counts = np.bincount(group[labels], minlength=4), np.bincount(group[~labels], minlength=4)
    for of_counts, exact in (
        (auroc_of_counts, auroc),
        (average_precision_of_counts, average_precision),
        (f1_max_of_counts, f1_max),
    ):
        estimate = of_counts(*counts)
        value = exact(scores, labels)
        assert value is not None
        assert estimate.lower - 1e-12 <= value <= estimate.upper + 1e-12
        assert estimate.lower - 1e-12 <= estimate.value <= estimate.upper + 1e-12


def test_auroc_bounds_are_reached() -> None:
    """A group of 2 positives and 3 negatives: all positives below, or all above."""
    estimate = auroc_of_counts(np.array([2]), np.array([3]))
    assert (estimate.lower, estimate.value, estimate.upper) == (0.0, 0.5, 1.0)
    assert estimate.error == 0.5
