"""Banks of normal tokens: distances, thinning, evidence."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from keepad.arrays import Array
from keepad.references.bank import (
    Bank,
    ImageTokens,
    blend,
    fuse,
    joint,
    make_bank,
    matched,
    nearest,
    thin,
    top_distance,
    unit,
)

CELLS = 100


def vectors(count: int, seed: int, channels: int = 16) -> Array:
    return unit(np.random.default_rng(seed).standard_normal((count, channels)).astype(np.float32))


def image(seed: int, survivors: int = 20) -> ImageTokens:
    kept = np.arange(survivors)
    layers = np.stack([vectors(survivors, seed + layer) for layer in (10, 20, 30)])
    return ImageTokens(vectors(CELLS, seed), vectors(40, seed + 1), layers, kept, kept, np.full(survivors, 0.5), 0.5)


def bank_of(count: int, size: int = 1000) -> Bank:
    return make_bank([image(100 * number) for number in range(count)], range(count), CELLS, size)[0]


def test_nearest_finds_itself_and_its_opposite_is_clipped() -> None:
    rows = vectors(7, 0)
    distance, position = nearest(rows, rows)
    assert position.tolist() == list(range(7))
    assert distance == pytest.approx(np.zeros(7), abs=1e-6)
    assert nearest(-rows[:1], rows[:1])[0][0] == 1.0  # cosine -1 would be a distance of 2


def test_a_reference_matches_itself_in_every_layer_and_knows_where_from() -> None:
    bank, own = bank_of(3), image(100)
    match = bank.match(own.layers, nearest(own.deep[own.away], bank.deep)[0], own.cells)
    assert match.distance == pytest.approx(np.zeros(20), abs=1e-6)
    assert bank.image[match.nearest].tolist() == [1] * 20
    assert bank.cell[match.nearest].tolist() == own.cells.tolist()


def test_the_distance_of_a_survivor_is_the_mean_over_layers_and_the_deep_router() -> None:
    assert matched([np.array([0.1]), np.array([0.2])], np.array([0.6]))[0] == pytest.approx(0.3)


def test_thinning_keeps_outliers_and_states_what_it_loses() -> None:
    crowd = unit(vectors(1, 0) + 0.01 * vectors(200, 1))
    outlier = -crowd[:1]
    kept, loss = thin(np.concatenate([crowd, outlier]), 5)
    assert len(kept) == 5
    assert 200 in kept  # the only token of its kind
    assert 0 < loss < 0.01
    assert thin(crowd, 500)[1] == 0.0


def test_thinning_is_the_same_each_time() -> None:
    rows = vectors(300, 3, channels=400)  # wide enough for the projection
    assert thin(rows, 40)[0].tolist() == thin(rows, 40)[0].tolist()


def test_joint_vectors_have_the_mean_cosine_of_the_layers() -> None:
    layers = image(0).layers
    cosine = joint(layers) @ joint(layers).T
    assert cosine == pytest.approx(np.mean([own @ own.T for own in layers], axis=0), abs=1e-5)


def test_evidence_rises_with_every_distance_and_is_measured_from_normal_images() -> None:
    bank = bank_of(4)
    distance = np.full(40, bank.level)
    assert bank.evidence(distance, CELLS) == pytest.approx(0, abs=1e-5)
    for position in range(40):
        raised = distance.copy()
        raised[position] += 0.3
        assert bank.evidence(raised, CELLS) > bank.evidence(distance, CELLS)
        # Unlike evidence within an image, more of the same does not lower it.
        assert bank.evidence(distance + 0.3, CELLS) >= bank.evidence(raised, CELLS)


def test_the_bank_is_bounded_and_one_image_is_enough() -> None:
    bank, loss = make_bank([image(0)], [0], CELLS, 8)
    assert bank.layers.shape == (3, 8, 16)
    assert len(bank.shallow) == len(bank.deep) == 2
    assert loss > 0
    assert bank.level > 0
    assert bank.spread > 0


def test_top_distance_is_one_percent_of_the_grid_but_at_least_one_cell() -> None:
    distance = np.arange(10.0)
    assert top_distance(distance, 200) == 8.5
    assert top_distance(distance, 5) == 9.0


def test_routers_weigh_their_own_scores_and_the_match_alike() -> None:
    scores, distance = np.array([0.0, 2.0, 4.0]), np.array([0.3, 0.2, 0.1])
    assert fuse(scores, distance) == pytest.approx(np.zeros(3), abs=1e-4)
    assert fuse(10 * scores, distance) == pytest.approx(fuse(scores, distance), abs=1e-4)


def test_the_reading_trusts_the_match_more_than_the_prototypes() -> None:
    assert float(blend(1.0, 0.0)) == pytest.approx(0.8)
    assert float(blend(0.0, 1.0)) == pytest.approx(0.2)


def test_the_level_of_one_reference_comes_from_its_rotated_copies() -> None:
    own = image(0)
    near, far = (replace(own, deep=unit(own.deep + noise * vectors(40, 9))) for noise in (0.1, 1.0))
    levels = [make_bank([own, copy], [0, 0], CELLS, 1000)[0].level for copy in (near, far)]
    assert 0 < levels[0] < levels[1]
    assert levels[1] == pytest.approx(1.05 * top_distance(nearest(own.deep, far.deep)[0], CELLS))
    assert make_bank([own], [0], CELLS, 1000)[0].level > levels[0]  # halves of one image lie further apart
