"""A killed evaluation goes on, and gives exactly what an uninterrupted one gives."""

from __future__ import annotations

import copy
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from evaluate_trees import POINTS, numbers_in
from keepad.data import read_dataset
from keepad.errors import KeepADError
from keepad.evaluate import Options, evaluate, evaluation

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def _save_often(monkeypatch):
    """The state of so few images would otherwise be saved only at the end of a class."""
    monkeypatch.setattr(evaluation, "SAVE_EVERY", 2)


class Killed(BaseException):
    """Nothing in the library catches it, as nothing catches a kill."""


def kill_after(monkeypatch, model, calls):
    """Let the detector die at its n-th pass; a pass is one image at one operating point."""
    left = [calls]

    def infer(pixels, points, stages=None, references=None):
        left[0] -= len(pixels) * len(points)
        if left[0] < 0:
            raise Killed
        return type(model).infer(model, pixels, points, stages, references)

    monkeypatch.setattr(model, "infer", infer)


def lines_in(out: Path) -> list[int]:
    return [len(file.read_text().splitlines()) for file in sorted((out / "state").glob("*.jsonl"))]


@pytest.fixture(scope="module")
def finished(detector, dataset, one_thread, tmp_path_factory):
    """The folder of an uninterrupted run."""
    out = tmp_path_factory.mktemp("finished")
    evaluate(detector, dataset, POINTS, out)
    return out


@pytest.fixture(scope="module")
def whole(finished):
    """The numbers of an uninterrupted run."""
    return numbers_in(finished)


# At the very first pass, between the points of an image, inside of a class, between classes, and at the last one.
@pytest.mark.parametrize("calls", [0, 1, 7, 8, 27])
def test_a_killed_run_goes_on_where_it_stopped(detector, dataset, tmp_path, monkeypatch, whole, calls):
    out = tmp_path / "out"
    with monkeypatch.context() as patched:
        kill_after(patched, detector, calls)
        with pytest.raises(Killed):
            evaluate(detector, dataset, POINTS, out)
    assert not (out / "results.json").exists()

    results = evaluate(detector, dataset, POINTS, out)
    assert numbers_in(out) == whole
    assert results.computed <= 14 - calls // 2 + 2  # no more than the images since the last save are computed again


def test_a_run_may_be_killed_many_times(detector, dataset, tmp_path, monkeypatch, whole):
    out = tmp_path / "out"
    for _ in range(4):
        with monkeypatch.context() as patched:
            kill_after(patched, detector, 7)
            with pytest.raises(Killed):
                evaluate(detector, dataset, POINTS, out)
    evaluate(detector, dataset, POINTS, out)
    assert numbers_in(out) == whole


def test_batches_resume_at_the_same_borders(detector, dataset, tmp_path, monkeypatch):
    evaluate(detector, dataset, POINTS, tmp_path / "whole", Options(batch_size=2))
    out = tmp_path / "out"
    with monkeypatch.context() as patched:
        kill_after(patched, detector, 7)
        with pytest.raises(Killed):
            evaluate(detector, dataset, POINTS, out, Options(batch_size=2))
    evaluate(detector, dataset, POINTS, out, Options(batch_size=2))
    assert numbers_in(out) == numbers_in(tmp_path / "whole")


@pytest.mark.parametrize(
    "damage", ["torn line", "lines without pixels", "lost lines", "half an array file", "no array file"]
)
def test_what_the_files_do_not_agree_on_is_computed_again(detector, dataset, tmp_path, finished, whole, damage):
    out = shutil.copytree(finished, tmp_path / "out")
    lines, arrays = out / "state" / "001-parts-bolt.jsonl", out / "state" / "001-parts-bolt.npz"
    if damage == "torn line":
        with lines.open("ab") as file:
            file.write(b'{"key": "parts/bolt/test/spot/00')
    elif damage == "lines without pixels":
        with lines.open("ab") as file:
            file.write(lines.read_bytes().splitlines(keepends=True)[0])
    elif damage == "lost lines":
        lines.write_bytes(lines.read_bytes()[:-20])
    elif damage == "half an array file":
        arrays.write_bytes(arrays.read_bytes()[: arrays.stat().st_size // 2])
    else:
        arrays.unlink()

    results = evaluate(detector, dataset, POINTS, out)
    assert numbers_in(out) == whole
    assert lines_in(out) == [4, 6, 4]
    assert results.computed == (0 if damage in ("torn line", "lines without pixels") else 6)


def test_a_finished_run_only_makes_its_tables_again(detector, dataset, tmp_path, monkeypatch, finished, whole):
    out = shutil.copytree(finished, tmp_path / "out")
    (out / "results.json").unlink()
    kill_after(monkeypatch, detector, 0)
    assert evaluate(detector, dataset, POINTS, out).computed == 0
    assert numbers_in(out) == whole


def test_another_model_is_refused(detector, dataset, tmp_path):
    evaluate(detector, dataset, ["dense"], tmp_path / "out", Options(limit=1))
    sentence = "with other {}; choose another folder, or start over with --fresh"

    other = copy.deepcopy(detector)
    other.network.head.patch.data[0, 0, 0] += 1e-3
    with pytest.raises(KeepADError, match=sentence.format("checkpoint")):
        evaluate(other, dataset, ["dense"], tmp_path / "out", Options(limit=1))

    other = copy.deepcopy(detector)
    other.network.calibration = replace(detector.calibration, patch_weight=0.4)
    with pytest.raises(KeepADError, match=sentence.format("checkpoint")):
        evaluate(other, dataset, ["dense"], tmp_path / "out", Options(limit=1))

    other = copy.deepcopy(detector)
    other.network.backbone.vit.cls_token.data[0, 0, 0] += 1e-3
    with pytest.raises(KeepADError, match=sentence.format("backbone")):
        evaluate(other, dataset, ["dense"], tmp_path / "out", Options(limit=1))


def test_other_points_and_other_images_are_refused(detector, dataset, tmp_path):
    evaluate(detector, dataset, ["dense"], tmp_path / "out", Options(limit=1))
    with pytest.raises(KeepADError, match="with other operating points; "):
        evaluate(detector, dataset, ["prune70"], tmp_path / "out", Options(limit=1))
    with pytest.raises(KeepADError, match="with other images; "):
        evaluate(detector, dataset, ["dense"], tmp_path / "out", Options(limit=2))


def test_fresh_starts_over(detector, dataset, tmp_path):
    out = tmp_path / "out"
    evaluate(detector, dataset, ["dense"], out, Options(limit=1))
    results = evaluate(detector, dataset, ["prune70"], out, Options(limit=2, fresh=True))
    assert results.computed == 6
    assert lines_in(out) == [2, 2, 2]


def test_progress_counts_every_image_once(detector, dataset, tmp_path, monkeypatch):
    counts = []

    class Bar:
        def __init__(self, title, total):
            counts.append(total)

        def __enter__(self):
            return counts.append

        def __exit__(self, *_):
            pass

    with monkeypatch.context() as patched:
        kill_after(patched, detector, 9)
        with pytest.raises(Killed):
            evaluate(detector, dataset, ["dense"], tmp_path / "out")
    evaluate(detector, dataset, ["dense"], tmp_path / "out", Options(progress=Bar))
    assert counts[:2] == [14, 8]  # of the nine images done, eight are saved
    assert sum(counts[1:]) == 14


# -- images that cannot be used --------------------------------------------------------------------------------------


def test_a_broken_image_and_a_broken_mask_are_left_out_and_listed(detector, folder, tmp_path):
    dataset = read_dataset(folder)
    (folder / "parts" / "bolt" / "test" / "good" / "001.png").write_bytes(b"no image")
    (folder / "parts" / "cap" / "ground_truth" / "spot" / "000_mask.png").write_bytes(b"no mask")
    results = evaluate(detector, dataset, POINTS, tmp_path / "out")
    assert [error["path"] for error in results.errors] == [
        "parts/bolt/test/good/001.png",
        "parts/cap/test/spot/000.png",
    ]
    assert "'parts/cap/ground_truth/spot/000_mask.png'" in results.errors[1]["error"]
    counts = {r["class"]: (r["n_good"], r["n_defect"]) for r in results.records}
    assert counts == {"brain": (2, 2), "bolt": (2, 3), "cap": (2, 1)}


def test_an_image_that_was_put_right_is_taken_in(detector, folder, tmp_path, whole):
    dataset = read_dataset(folder)
    broken = folder / "parts" / "bolt" / "test" / "good" / "001.png"
    content = broken.read_bytes()
    broken.write_bytes(b"")
    assert evaluate(detector, dataset, POINTS, tmp_path / "out").errors

    broken.write_bytes(content)
    results = evaluate(detector, dataset, POINTS, tmp_path / "out")
    assert (results.computed, results.errors) == (1, [])
    again = json.loads((tmp_path / "out" / "results.json").read_text())
    for record, expected in zip(again["records"], whole["records"], strict=True):
        assert record == pytest.approx(expected)
