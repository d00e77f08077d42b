"""The numbers of an evaluation, against scikit-learn and against counting by hand."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, roc_auc_score

from evaluate_trees import POINTS
from keepad.data import load_mask, read_dataset
from keepad.errors import KeepADError
from keepad.evaluate import Options, evaluate
from keepad.evaluate.results import METRICS, ClassOutcome, make_averages, make_records, make_survival
from keepad.metrics import PixelMetrics, defect_tokens
from keepad.presets import POINTS as PRESETS

KEYS = {"suite", "class", "point", "n_good", "n_defect", *METRICS, "seen_in_training"}


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def results(detector, dataset, one_thread, tmp_path_factory):
    return evaluate(detector, dataset, POINTS, tmp_path_factory.mktemp("results"))


def record_of(results, suite, cls, point):
    (record,) = [r for r in results.records if (r["suite"], r["class"], r["point"]) == (suite, cls, point)]
    return record


def test_there_is_one_record_for_each_suite_class_and_point(results):
    assert [(r["suite"], r["class"], r["point"], r["n_good"], r["n_defect"]) for r in results.records] == [
        ("brainmri", "brain", "dense", 2, 2),
        ("brainmri", "brain", "prune70", 2, 2),
        ("parts", "bolt", "dense", 3, 3),
        ("parts", "bolt", "prune70", 3, 3),
        ("parts", "cap", "dense", 2, 2),
        ("parts", "cap", "prune70", 2, 2),
    ]
    assert all(set(record) == KEYS for record in results.records)
    assert json.loads((results.out / "results.json").read_text()) == results.content


@pytest.mark.parametrize("point", POINTS)
def test_metrics_are_those_of_scikit_learn_on_the_same_predictions(detector, dataset, results, point):
    samples = [sample for sample in dataset.by_class()["parts", "bolt"] if sample.split == "test"]
    predictions = [detector(sample.image, point=PRESETS[point]) for sample in samples]
    labels = [sample.label for sample in samples]
    scores = [prediction.pred_score for prediction in predictions]
    masks = [load_mask(sample, detector.image_size) for sample in samples]
    pixels, truth = np.concatenate([p.anomaly_map.ravel() for p in predictions]), np.concatenate(masks, axis=None)
    record = record_of(results, "parts", "bolt", point)

    assert record["i_auroc"] == pytest.approx(100 * roc_auc_score(labels, scores))
    assert record["i_ap"] == pytest.approx(100 * average_precision_score(labels, scores))
    stated = results.content["pixel_error"]
    assert record["p_auroc"] == pytest.approx(100 * roc_auc_score(truth, pixels), abs=stated["p_auroc"] + 1e-9)
    assert record["p_ap"] == pytest.approx(100 * average_precision_score(truth, pixels), abs=stated["p_ap"] + 1e-9)
    assert stated["p_auroc"] < 0.5

    grid = predictions[0].grid
    shares = [
        [defect_tokens(mask, grid).ravel()[survivors].sum() / defect_tokens(mask, grid).sum() for survivors in of_image]
        for mask, of_image in zip(masks, ((p.survivors_shallow, p.survivors) for p in predictions), strict=True)
        if mask.any()
    ]
    shallow, final = np.mean(shares, axis=0)
    assert (record["dtr_shallow"], record["dtr"]) == pytest.approx((100 * shallow, 100 * final))
    assert record["cmr"] == pytest.approx(100 * np.mean([share[1] == 0 for share in shares]))
    assert record["keep_shallow"] == pytest.approx(100 * np.mean([p.keep_shallow for p in predictions]))
    assert record["keep"] == pytest.approx(100 * np.mean([p.keep_final for p in predictions]))


@pytest.mark.parametrize("point", POINTS)
def test_points_that_share_early_blocks_get_what_each_gets_alone(detector, dataset, results, tmp_path, point):
    alone = evaluate(detector, dataset, [point], tmp_path / "out")
    assert alone.records == [record for record in results.records if record["point"] == point]


def test_early_blocks_run_once_for_all_points_with_the_same_patches(detector, dataset, tmp_path, monkeypatch):
    calls, network = [], detector.network

    def early(tokens):
        calls.append(tokens)
        return type(network).early(network, tokens)

    monkeypatch.setattr(network, "early", early)
    points = ["dense", "paper50", "paper70", "prune50", "prune70"]
    evaluate(detector, dataset.select(classes="cap"), points, tmp_path / "out")
    assert len(calls) == 4 * 2  # images, with and without the pixel router


def test_batches_give_the_same_ranking(detector, dataset, results, tmp_path):
    batched = evaluate(detector, dataset, POINTS, tmp_path / "out", Options(batch_size=4))
    for alone, together in zip(results.records, batched.records, strict=True):
        assert alone["keep"] == together["keep"]
        assert alone["i_auroc"] == together["i_auroc"]


def test_without_masks_there_are_image_metrics_only(results):
    record = record_of(results, "brainmri", "brain", "prune70")
    absent = {name for name, value in record.items() if value is None}
    assert absent == {"p_auroc", "p_ap", "p_f1", "pro", "dtr_shallow", "dtr", "cmr_shallow", "cmr"}
    # The overall mean of a pixel metric is over the suites that have it.
    averages = results.averages
    assert averages["overall"]["dense"]["p_auroc"] == averages["suites"]["parts"]["dense"]["p_auroc"]
    assert averages["overall"]["dense"]["i_auroc"] != averages["suites"]["parts"]["dense"]["i_auroc"]


def test_without_normal_images_there_is_no_ranking_of_images(detector, folder, tmp_path):
    for image in (folder / "parts" / "cap" / "test" / "good").iterdir():
        image.unlink()
    results = evaluate(detector, read_dataset(folder).select(classes="cap"), ["dense"], tmp_path / "out")
    (record,) = results.records
    assert (record["n_good"], record["i_auroc"], record["i_f1"]) == (0, None, None)
    assert record["p_auroc"] is not None


def test_a_limit_takes_both_labels_and_always_the_same_images(detector, dataset, tmp_path):
    first = evaluate(detector, dataset.select(suites="parts"), ["dense"], tmp_path / "first", Options(limit=3))
    again = evaluate(detector, dataset.select(suites="parts"), ["dense"], tmp_path / "again", Options(limit=3))
    assert [(r["class"], r["n_good"], r["n_defect"]) for r in first.records] == [("bolt", 1, 2), ("cap", 1, 2)]
    assert [row["key"] for row in first.images] == [row["key"] for row in again.images]


def test_suites_named_in_the_checkpoint_count_as_seen(detector, dataset, tmp_path, monkeypatch):
    monkeypatch.setattr(detector.network, "provenance", {"data": [{"suite": "parts"}]})
    results = evaluate(detector, dataset, ["dense"], tmp_path / "out", Options(limit=2))
    assert {r["suite"]: r["seen_in_training"] for r in results.records} == {"brainmri": False, "parts": True}
    assert results.averages["unseen"]["dense"]["i_auroc"] == results.averages["suites"]["brainmri"]["dense"]["i_auroc"]


@pytest.mark.parametrize(
    ("points", "sentence"), [([], "at least one"), (["dense", "dense"], "distinct"), (["x"], "called 'x'")]
)
def test_points_must_make_sense(detector, dataset, tmp_path, points, sentence):
    with pytest.raises(KeepADError, match=sentence):
        evaluate(detector, dataset, points, tmp_path / "out")
    assert not (tmp_path / "out").exists()


# -- averages, from made-up classes ----------------------------------------------------------------------------------


def made_up(suite, cls, scores, *, seen=False, defects=(4, 8)):
    """A class of two normal and two anomalous images with these scores at dense; prune70 turns their order around."""
    everything = {"keep_pixels": 1.0, "keep_shallow": 1.0, "keep": 1.0}
    rows = [
        {
            "key": f"{cls}/{number}",
            "label": int(number >= 2),
            "defect_tokens": tokens,
            "points": {
                "dense": {**everything, "score": score, "defect_shallow": tokens, "defect": tokens},
                "prune70": {
                    "score": -score,
                    "keep_pixels": 0.9,
                    "keep_shallow": 0.3,
                    "keep": 0.2,
                    "defect_shallow": min(2, tokens or 0),
                    "defect": 0,
                },
            },
        }
        for number, (score, tokens) in enumerate(zip(scores, (None, None, *defects), strict=True))
    ]
    nothing = PixelMetrics().compute()
    return ClassOutcome(suite, cls, rows, {"dense": nothing, "prune70": nothing}, seen)


PERFECT, HALF, WRONG = (0, 1, 2, 3), (0, 3, 1, 2), (2, 3, 0, 1)


def test_averages_are_over_classes_and_then_over_suites():
    outcomes = [
        made_up("a", "one", PERFECT),
        made_up("a", "two", PERFECT),
        made_up("a", "three", WRONG),
        made_up("b", "x", HALF),
    ]
    averages = make_averages(make_records(outcomes, POINTS), POINTS)
    assert averages["suites"]["a"]["dense"]["i_auroc"] == pytest.approx(200 / 3)
    assert averages["suites"]["b"]["dense"]["i_auroc"] == pytest.approx(50)
    assert averages["overall"]["dense"]["i_auroc"] == pytest.approx(
        (200 / 3 + 50) / 2
    )  # over all classes it would be 62.5
    assert averages["overall"]["dense"]["p_auroc"] is None
    assert "unseen" not in averages


def test_deltas_are_against_dense():
    records = make_records([made_up("a", "one", PERFECT)], POINTS)
    of_points = make_averages(records, POINTS)["suites"]["a"]
    assert of_points["dense"]["delta"]["i_auroc"] == 0
    assert of_points["prune70"]["delta"]["i_auroc"] == pytest.approx(-100)
    assert of_points["prune70"]["delta"]["keep"] == pytest.approx(-80)
    assert of_points["prune70"]["delta"]["p_auroc"] is None


def test_deltas_are_against_another_reference_where_it_is_named():
    records = make_records([made_up("a", "one", PERFECT)], POINTS)
    averages = make_averages(records, POINTS, reference="prune70")["overall"]
    assert averages["prune70"]["delta"]["i_auroc"] == 0
    assert averages["dense"]["delta"]["i_auroc"] == pytest.approx(100)


def test_without_dense_there_is_no_delta():
    records = make_records([made_up("a", "one", PERFECT)], ["prune70"])
    assert make_averages(records, ["prune70"])["overall"]["prune70"]["delta"] is None


def test_survival_is_pooled_over_images_by_size_and_router():
    survival = make_survival([made_up("a", "x", PERFECT), made_up("b", "y", PERFECT, defects=(0, 20))], POINTS)
    pruned = survival["overall"]["prune70"]
    assert {size: rate["images"] for size, rate in pruned["final"].items()} == {"all": 3, "1-4": 1, "5-16": 1, ">16": 1}
    assert pruned["uncounted"] == 1
    assert (pruned["shallow"]["all"]["missed"], pruned["final"]["all"]["missed"]) == (0, 3)
    assert pruned["shallow"]["all"]["dtr"] == pytest.approx(100 * (2 / 4 + 2 / 8 + 2 / 20) / 3)
    assert (pruned["final"]["all"]["cmr_low"], pruned["final"]["all"]["cmr_high"]) == pytest.approx(
        (29.24, 100), abs=0.01
    )
    assert survival["suites"]["a"]["prune70"]["final"][">16"]["cmr"] is None


def test_gradients_are_not_tracked(detector, dataset, tmp_path, monkeypatch):
    modes, network = [], detector.network

    def respond(*arguments, **named):
        modes.append(torch.is_inference_mode_enabled())
        return type(network).respond(network, *arguments, **named)

    monkeypatch.setattr(network, "respond", respond)
    evaluate(detector, dataset.select(classes="cap"), ["dense"], tmp_path / "out")
    assert modes == [True] * 4
