"""PixelMetrics: exact mode against scikit-learn and a brute-force PRO, histogram mode against exact mode."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy import ndimage
from sklearn.metrics import (
    average_precision_score,
    precision_recall_curve,
    roc_auc_score,
)

from keepad.arrays import Array
from keepad.errors import KeepADError
from keepad.metrics import Estimate, PixelMetrics

Mode = Literal["histogram", "exact"]
Pair = tuple[Array, Array]  # anomaly map and mask
MODES = ("histogram", "exact")
MEASURES = ("auroc", "ap", "f1_max", "pro")


def drawn(drawing: str) -> Array:
    """An (H, W) bool mask from a drawing: # is defect."""
    return np.array([[cell == "#" for cell in line] for line in drawing.split()])


def measured(pairs: Iterable[Pair], mode: Mode) -> PixelMetrics:
    metrics = PixelMetrics(mode)
    for anomaly_map, mask in pairs:
        metrics.update(anomaly_map, mask)
    return metrics


def estimates(pairs: Iterable[Pair], mode: Mode) -> dict[str, Estimate]:
    result = measured(pairs, mode).compute()
    return {name: getattr(result, name) for name in MEASURES}


def regions_of(mask: Array) -> list[set[tuple[int, int]]]:
    """8-connected components by flood fill."""
    left = {(int(r), int(c)) for r, c in np.argwhere(mask)}
    regions = []
    while left:
        region, frontier = set(), [left.pop()]
        while frontier:
            r, c = frontier.pop()
            region.add((r, c))
            near = {(r + dr, c + dc) for dr in (-1, 0, 1) for dc in (-1, 0, 1)} & left
            left -= near
            frontier.extend(near)
        regions.append(region)
    return regions


def brute_force_pro(pairs: Sequence[Pair], limit: float = 0.3) -> float:
    """PRO by definition: a point per threshold, linear in between, area up to the limit."""
    points = [(0.0, 0.0)]
    for threshold in sorted({float(v) for m, _ in pairs for v in m.flat}, reverse=True):
        false = sum(int((m[~k] >= threshold).sum()) for m, k in pairs)
        normal = sum(int((~k).sum()) for _, k in pairs)
        overlaps = [np.mean([m[rc] >= threshold for rc in region]) for m, k in pairs for region in regions_of(k)]
        points.append((false / normal, float(np.mean(overlaps))))
    area = 0.0
    for (f0, o0), (f1, o1) in itertools.pairwise(points):
        if f0 >= limit or f1 == f0:
            continue
        if f1 > limit:
            f1, o1 = limit, o0 + (o1 - o0) * (limit - f0) / (f1 - f0)
        area += (f1 - f0) * (o0 + o1) / 2
    return area / limit


def realistic(sharpness: float, images: int = 12) -> Iterator[Pair]:
    """Maps like the network's: smooth logits per layer, sigmoid, mean over layers, bilinear upsampling.

    A high sharpness concentrates values at 0 and 1, a sharpness near 0 at 0.5.
    """
    side, grid, layers = 112, 28, 4
    rng = np.random.default_rng(0)
    for i in range(images):
        mask = np.zeros((side, side), dtype=bool)
        for _ in range(int(rng.integers(1, 4)) if i % 3 else 0):
            y, x = rng.integers(0, side - 20, size=2)
            h, w = rng.integers(2, 20, size=2)
            mask[y : y + h, x : x + w] = True
        defect = ndimage.gaussian_filter(mask[2::4, 2::4].astype(float), 0.7)
        noise = ndimage.gaussian_filter(rng.normal(size=(layers, grid, grid)), (0, 1.2, 1.2))
        response = (1 / (1 + np.exp(-sharpness * (3 * noise + 1.5 * defect - 0.6)))).mean(axis=0)
        yield np.clip(ndimage.zoom(response, side / grid, order=1), 0, 1).astype(np.float32), mask


# --- exact mode -------------------------------------------------------------------------------------------------------


def test_ranking_over_pixels_equals_scikit_learn() -> None:
    pairs = list(realistic(sharpness=4))
    scores = np.concatenate([m.ravel() for m, _ in pairs])
    labels = np.concatenate([k.ravel() for _, k in pairs])
    precision, recall, _ = precision_recall_curve(labels, scores)
    result = estimates(pairs, "exact")
    assert result["auroc"].value == pytest.approx(roc_auc_score(labels, scores), abs=1e-10)
    assert result["ap"].value == pytest.approx(average_precision_score(labels, scores), abs=1e-10)
    best = np.max(2 * precision * recall / np.maximum(precision + recall, 1e-300))
    assert result["f1_max"].value == pytest.approx(best, abs=1e-10)
    assert [estimate.error for estimate in result.values()] == [0, 0, 0, 0]


def test_pro_by_hand() -> None:
    """Two regions of 1 and 4 pixels, 11 normal ones; the small region is found first, then 1 normal pixel, then half
    of the large region together with 2 normal pixels, then the rest."""
    mask = drawn("""
        #...
        ..##
        ..##
        ....
    """)
    anomaly_map = np.full((4, 4), 0.1, dtype=np.float32)
    anomaly_map[0, 0] = 0.9
    anomaly_map[3, 0] = 0.8
    anomaly_map[1, 2:] = 0.7
    anomaly_map[0, 2:] = 0.7
    # Curve: (0, 1/2), (1/11, 1/2), (3/11, 3/4), then straight to (1, 1); at 0.3 it has reached 3/4 + 1/4 * s.
    s = (0.3 - 3 / 11) / (8 / 11)
    area = 1 / 11 * 0.5 + 2 / 11 * (0.5 + 0.75) / 2 + (0.3 - 3 / 11) * (0.75 + 0.75 + 0.25 * s) / 2
    assert measured([(anomaly_map, mask)], "exact").compute().regions == 2
    assert estimates([(anomaly_map, mask)], "exact")["pro"].value == pytest.approx(area / 0.3)


@pytest.mark.parametrize("mode", MODES)
def test_diagonal_neighbours_are_one_region(mode: Mode) -> None:
    mask = drawn("""
        #..
        .#.
        ..#
    """)
    assert measured([(np.zeros((3, 3), np.float32), mask)], mode).compute().regions == 1


HAND_DRAWN = [
    drawn("""
        ##......
        ##....#.
        ......#.
        ...#....
        ..#.....
        .#....##
        ......##
        #.......
    """),
    drawn("""
        ........
        .######.
        .#....#.
        .#.##.#.
        .#.##.#.
        .#....#.
        .######.
        ........
    """),
    np.zeros((8, 8), dtype=bool),
]


@pytest.mark.parametrize("levels", [3, 10, 1000])
@pytest.mark.parametrize("seed", range(4))
def test_pro_is_the_brute_force_over_all_thresholds(levels: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    pairs = [(np.float32((rng.integers(0, levels, m.shape) / levels + m) / 2), m) for m in HAND_DRAWN]
    pairs = [(np.float32(rng.permuted(a) * 0.5 + a * 0.5), m) for a, m in pairs]
    expected = brute_force_pro(pairs)
    assert 0.05 < expected < 0.99  # a case that can tell definitions apart
    assert estimates(pairs, "exact")["pro"].value == pytest.approx(expected, abs=1e-12)
    histogram = estimates(pairs, "histogram")["pro"]
    assert histogram.lower - 1e-12 <= expected <= histogram.upper + 1e-12


@pytest.mark.parametrize("mode", MODES)
def test_a_perfect_map_scores_one_everywhere(mode: Mode) -> None:
    mask = HAND_DRAWN[0]
    result = estimates([(mask.astype(np.float32), mask)], mode)
    assert [estimate.value for estimate in result.values()] == pytest.approx([1, 1, 1, 1])


# --- histogram against exact ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sharpness", [0.2, 1, 4, 14, 60])
def test_histogram_agrees_with_exact_within_its_stated_bound_and_a_thousandth(sharpness: float) -> None:
    pairs = list(realistic(sharpness))
    exact, histogram = estimates(pairs, "exact"), estimates(pairs, "histogram")
    for name, estimate in histogram.items():
        truth = exact[name].value
        assert estimate.lower - 1e-10 <= truth <= estimate.upper + 1e-10, name
        assert abs(estimate.value - truth) <= estimate.error + 1e-10, name
        assert abs(estimate.value - truth) < 1e-3, name
    assert histogram["auroc"].error < 1e-3
    assert histogram["pro"].error < 1e-3
    # Looser: where saturated layers disagree, many values near 1/4, 1/2 and 3/4 share a bin.
    assert histogram["ap"].error < 5e-3
    assert histogram["f1_max"].error < 5e-3


# Values so close that many distinct ones share a bin.
close = st.integers(0, 40).map(lambda steps: float(np.float32(0.3 + steps * 2.0**-23)))


@given(
    arrays.arrays(np.float32, (6, 6), elements=close),
    arrays.arrays(np.bool_, (6, 6)).filter(lambda mask: mask.any() and not mask.all()),
)
@settings(deadline=None, max_examples=80)
def test_bounds_hold_when_all_values_fall_into_a_few_bins(anomaly_map: Array, mask: Array) -> None:
    exact = estimates([(anomaly_map, mask)], "exact")
    for name, estimate in estimates([(anomaly_map, mask)], "histogram").items():
        assert estimate.lower - 1e-12 <= exact[name].value <= estimate.upper + 1e-12, name


def test_a_value_that_the_bins_cannot_separate_shows_in_the_bound() -> None:
    mask = drawn("#.")
    anomaly_map = np.array([[0.3 + 2.0**-24, 0.3]], dtype=np.float32)
    auroc = estimates([(anomaly_map, mask)], "histogram")["auroc"]
    assert (auroc.lower, auroc.value, auroc.upper) == (0.0, 0.5, 1.0)


def test_the_size_of_a_histogram_does_not_depend_on_the_number_of_images() -> None:
    pairs = list(realistic(sharpness=4, images=6))
    few, many = measured(pairs[:1], "histogram"), measured(pairs * 3, "histogram")
    assert few.nbytes == many.nbytes < 16e6
    # The state holds used bins only, so the same images again add nothing.
    once = measured(pairs, "histogram")
    assert {k: v.shape for k, v in once.state_dict().items()} == {k: v.shape for k, v in many.state_dict().items()}
    assert measured(pairs * 3, "exact").nbytes > 10 * measured(pairs[:1], "exact").nbytes


# --- resuming and merging ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("cut", [0, 1, 5])
def test_merging_parts_gives_what_all_at_once_gives(mode: Mode, cut: int) -> None:
    pairs = list(realistic(sharpness=4, images=6))
    whole, part = measured(pairs, mode), measured(pairs[:cut], mode)
    part.merge(measured(pairs[cut:], mode))
    expected, result = whole.compute(), part.compute()
    assert (result.images, result.regions) == (expected.images, expected.regions)
    for name in MEASURES:
        for end in ("value", "lower", "upper"):
            a, b = getattr(getattr(result, name), end), getattr(getattr(expected, name), end)
            assert a == pytest.approx(b, abs=1e-12)


@pytest.mark.parametrize("mode", MODES)
def test_a_saved_state_continues_as_if_nothing_had_happened(mode: Mode, tmp_path: Path) -> None:
    pairs = list(realistic(sharpness=4, images=6))
    state: dict[str, Any] = measured(pairs[:3], mode).state_dict()
    np.savez(tmp_path / "state.npz", **state)
    resumed = measured(pairs[4:], mode)  # dropped by the load
    with np.load(tmp_path / "state.npz") as saved:
        resumed.load_state_dict(dict(saved))
    for anomaly_map, mask in pairs[3:]:
        resumed.update(anomaly_map, mask)
    assert resumed.compute() == measured(pairs, mode).compute()  # to the last bit


@pytest.mark.parametrize("mode", MODES)
def test_state_and_metrics_do_not_share_memory_with_the_caller(mode: Mode) -> None:
    anomaly_map, mask = next(iter(realistic(sharpness=4, images=1)))
    pairs = list(realistic(sharpness=4, images=3))
    metrics = measured([*pairs, (anomaly_map, mask)], mode)
    before = metrics.compute()
    anomaly_map[:] = 1
    for array in metrics.state_dict().values():
        array[...] = 0
    assert metrics.compute() == before


def test_modes_do_not_mix() -> None:
    with pytest.raises(KeepADError, match="cannot be merged"):
        PixelMetrics("exact").merge(PixelMetrics("histogram"))
    with pytest.raises(KeepADError, match="not a saved state of pixel metrics in exact mode"):
        PixelMetrics("exact").load_state_dict(PixelMetrics("histogram").state_dict())


def test_a_state_of_other_bins_is_refused_and_nothing_is_lost() -> None:
    metrics = measured(realistic(sharpness=4, images=3), "histogram")
    before = metrics.compute()
    with pytest.raises(KeepADError, match="The saved pixel metrics have 7 bins"):
        metrics.load_state_dict({**metrics.state_dict(), "bins": np.array(7)})
    assert metrics.compute() == before


# --- what does not exist, and what is wrong ---------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("mask", [np.zeros((4, 4), dtype=bool), np.ones((4, 4), dtype=bool)])
def test_one_class_only_has_no_measure(mode: Mode, mask: Array) -> None:
    result = measured([(np.eye(4, dtype=np.float32), mask)], mode).compute()
    assert [getattr(result, name) for name in MEASURES] == [None] * 4
    assert result.images == 1


@pytest.mark.parametrize("mode", MODES)
def test_nothing_taken_in_has_no_measure(mode: Mode) -> None:
    result = PixelMetrics(mode).compute()
    assert [getattr(result, name) for name in MEASURES] == [None] * 4
    assert result.images == result.regions == 0


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -0.01, 1.01])
def test_values_outside_the_unit_interval_are_refused_and_not_counted(mode: Mode, bad: float) -> None:
    anomaly_map, mask = np.full((4, 4), 0.5, dtype=np.float32), np.eye(4, dtype=bool)
    anomaly_map[1, 2] = bad
    metrics = PixelMetrics(mode)
    with pytest.raises(KeepADError, match=r"must lie in \[0, 1\] without NaN"):
        metrics.update(anomaly_map, mask)
    assert metrics.compute().images == 0


@pytest.mark.parametrize(
    ("shape", "mask", "sentence"),
    [
        ((4, 4), np.zeros((4, 5), dtype=bool), "the same size"),
        ((4,), np.zeros(4, dtype=bool), "the same size"),
        ((0, 4), np.zeros((0, 4), dtype=bool), "the same size"),
        ((4, 4), np.zeros((4, 4), dtype=np.uint8), "must be a bool array"),
    ],
)
def test_bad_input_is_one_sentence(shape: tuple[int, ...], mask: Array, sentence: str) -> None:
    with pytest.raises(KeepADError, match=sentence):
        PixelMetrics().update(np.zeros(shape, dtype=np.float32), mask)


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(KeepADError, match="no mode 'fast'"):
        PixelMetrics("fast")  # type: ignore[arg-type]
