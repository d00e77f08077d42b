"""Variants of an evaluation: detectors and views of their own, and one pass for those that share both."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest

from evaluate_trees import POINTS
from keepad.errors import KeepADError
from keepad.evaluate import Options, Variant, View, evaluate
from keepad.presets import POINTS as PRESETS

pytestmark = pytest.mark.usefixtures("one_thread")

DENSE, PRUNED = PRESETS["dense"], PRESETS["prune70"]
MIRRORED, NOISY = View("mirrored", flip=(1,)), View("one grey level off", noise=1)


@pytest.fixture
def parts(dataset):
    return dataset.select(suites="parts")


def without_names(records, name):
    return [{**record, "point": None} for record in records if record["point"] == name]


def test_a_view_flips_image_and_mask_alike():
    pixels = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    mask = np.array([[True, False, False, False], [False, False, False, True]])
    assert (MIRRORED.of_image(pixels) == pixels[:, ::-1]).all()
    assert MIRRORED.of_mask(mask).tolist() == [[False, False, False, True], [True, False, False, False]]
    assert (View("turned around", flip=(0, 1)).of_image(pixels) == pixels[::-1, ::-1]).all()


def test_noise_moves_every_value_by_at_most_its_size_and_always_alike():
    pixels = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    moved = NOISY.of_image(pixels)
    assert set(np.unique(moved.astype(int) - pixels)) == {-1, 0, 1}
    assert moved.dtype == np.uint8
    assert (NOISY.of_image(pixels.copy()) == moved).all()
    assert NOISY.of_image(np.full((9, 9, 3), 255, np.uint8)).min() >= 254  # no overflow


def test_points_and_names_are_variants_of_their_own_name(detector, parts, tmp_path):
    plain = evaluate(detector, parts, POINTS, tmp_path / "plain")
    named = evaluate(detector, parts, [DENSE, Variant("mine", PRUNED)], tmp_path / "named")
    assert without_names(named.records, "mine") == without_names(plain.records, "prune70")
    assert named.averages["overall"]["mine"]["delta"] == plain.averages["overall"]["prune70"]["delta"]


def test_variants_of_one_detector_and_view_share_one_inference(detector, parts, tmp_path, monkeypatch):
    other, calls = copy.deepcopy(detector), []

    def counting(detector, name):
        def infer(pixels, points, stages=None, references=None):
            calls.append((name, len(pixels), [point.name for point in points]))
            return type(detector).infer(detector, pixels, points, stages, references)

        monkeypatch.setattr(detector, "infer", infer)

    counting(detector, "own")
    counting(other, "other")
    variants = [
        *("dense", "prune70"),
        Variant("mirrored", PRUNED, view=MIRRORED),
        Variant("dense mirrored", DENSE, view=MIRRORED),
        Variant("other", PRUNED, detector=other),
    ]
    evaluate(detector, parts.select(classes="cap"), variants, tmp_path / "out", Options(batch_size=4))
    assert calls == [
        ("own", 4, ["dense", "prune70"]),
        ("own", 4, ["mirrored", "dense mirrored"]),
        ("other", 4, ["other"]),
    ]


def test_a_variants_detector_gives_its_own_numbers(detector, parts, tmp_path):
    other = copy.deepcopy(detector)
    other.network.calibration = replace(detector.calibration, patch_weight=0.1)
    both = evaluate(detector, parts, ["dense", Variant("other", DENSE, detector=other)], tmp_path / "both")
    alone = evaluate(other, parts, ["dense"], tmp_path / "alone")
    assert without_names(both.records, "other") == without_names(alone.records, "dense")
    scores = [[row["points"][name]["score"] for row in both.images] for name in ("dense", "other")]
    assert scores[0] != scores[1]


def test_a_mirrored_image_is_compared_with_its_mirrored_mask(detector, parts, tmp_path, monkeypatch):
    def infer(pixels, points, stages=None, references=None):
        """Maps of brightness, which mirror with the image."""
        results = type(detector).infer(detector, pixels, points, stages, references)
        maps = [image.mean(-1).astype(np.float32) / 255 for image in pixels]
        return {
            name: [replace(result, anomaly_map=map_) for result, map_ in zip(of_point, maps, strict=True)]
            for name, of_point in results.items()
        }

    monkeypatch.setattr(detector, "infer", infer)
    results = evaluate(detector, parts, ["dense", Variant("mirrored", DENSE, view=MIRRORED)], tmp_path / "out")
    plain, mirrored = (results.averages["overall"][name]["p_auroc"] for name in ("dense", "mirrored"))
    assert mirrored == pytest.approx(plain)
    assert plain > 80


def test_a_named_reference_takes_the_place_of_dense(detector, parts, tmp_path):
    results = evaluate(detector, parts, POINTS, tmp_path / "out", Options(reference="prune70"))
    overall = results.averages["overall"]
    assert overall["prune70"]["delta"]["keep"] == 0
    assert overall["dense"]["delta"]["keep"] > 50
    assert "Δ is against prune70" in (results.out / "results.md").read_text()
    with pytest.raises(KeepADError, match="'prune50' is none of the variants"):
        evaluate(detector, parts, POINTS, tmp_path / "other", Options(reference="prune50"))


def test_other_variants_are_refused(detector, parts, tmp_path):
    def run(*variants):
        return evaluate(detector, parts, [*variants], tmp_path / "out", Options(limit=1))

    assert run(Variant("a", DENSE, view=MIRRORED)).computed == 2
    assert run(Variant("a", DENSE, view=MIRRORED)).computed == 0
    other = copy.deepcopy(detector)
    for variant in (
        Variant("a", DENSE),
        Variant("a", DENSE, view=NOISY),
        Variant("a", DENSE, view=MIRRORED, detector=other),
        Variant("a", PRUNED, view=MIRRORED),
    ):
        with pytest.raises(KeepADError, match="with other operating points; "):
            run(variant)


def test_a_detector_of_another_input_size_is_refused(detector, parts, tmp_path):
    other = copy.deepcopy(detector)
    other.network.image_size = (8 * 16, 8 * 16)
    with pytest.raises(KeepADError, match="variant 'small' has another input size"):
        evaluate(detector, parts, ["dense", Variant("small", DENSE, detector=other)], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_variant_may_give_every_image_a_share_of_its_own(detector, parts, tmp_path):
    first = evaluate(detector, parts, [PRUNED], tmp_path / "first")
    rows = {row["key"]: row["points"]["prune70"] for row in first.images}
    shares = {key: 0.2 if number % 2 else 0.9 for number, key in enumerate(rows)}
    variant = Variant("own shares", PRUNED, shares=shares)
    second = evaluate(detector, parts, [PRUNED, variant], tmp_path / "second", Options(reference="prune70"))
    for row in second.images:
        own = row["points"]["own shares"]
        live = own["keep_shallow"] * 99
        assert own["keep"] * 99 == pytest.approx(shares[row["key"]] * live, abs=4)  # whole blocks overshoot
        assert row["points"]["prune70"]["score"] == rows[row["key"]]["score"]
    assert "shares" in second.content["settings"]["points"]["own shares"]
