"""choose on small data: the bound and its table, references at every point, resuming, and what is refused."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from evaluate_trees import draw_part
from keepad.data import read_dataset
from keepad.detector import Detector
from keepad.engines.network import open_network
from keepad.errors import KeepADError
from keepad.evaluate import Options
from keepad.evaluate.choosing import Bounds, Labelled, Outcome, Question, choose_point, labelled
from keepad.presets import POINTS
from keepad.references.calibrating import Promise
from keepad.references.profile import Profile, read_profile

NAMES = ("dense", "prune30", "prune70")
BOUNDS = Bounds(max_miss=0.4, confidence=0.95)
PROMISE = Promise(false_alarms=0.1)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return draw_part(tmp_path / "data")


@pytest.fixture
def said() -> list[str]:
    return []


def question(detector: Detector, profile: Profile | None, bounds: Bounds = BOUNDS) -> Question:
    return Question({"torch": detector}, [POINTS[name] for name in NAMES], bounds, PROMISE, profile)


def images_of(root: Path, said: list[str], profile: Profile | None = None) -> Labelled:
    return labelled(read_dataset(root), [], profile, said.append)


def chosen(
    detector: Detector, root: Path, out: Path, said: list[str], *, profile: Profile | None, bounds: Bounds = BOUNDS
) -> Outcome:
    images = images_of(root, said, profile)
    return choose_point(question(detector, profile, bounds), images, out, options=Options(), say=said.append)


def test_the_chosen_profile_holds_what_was_measured(
    detector: Detector, root: Path, tmp_path: Path, said: list[str]
) -> None:
    good = sorted((root / "part" / "test" / "good").iterdir())
    taught = Detector(detector.network, "prune50").teach(good[:3], rotate="off", say=said.append)
    # Three references are left out, so that eleven good images remain: 10 % needs nine.
    outcome = chosen(detector, root, tmp_path / "out", said, profile=taught)
    assert any("3 good images are references of the profile and are left out" in line for line in said)
    assert outcome.choice.table[0].point == "dense"
    assert outcome.choice.defects == 10
    assert outcome.profile is not None
    assert outcome.profile.choice == outcome.choice
    assert outcome.profile.owner.point == outcome.choice.point
    assert [image.digest for image in outcome.profile.images] == [image.digest for image in taught.images]
    outcome.profile.save(tmp_path / "p.keepad")
    again = read_profile(tmp_path / "p.keepad")
    assert again.choice == outcome.choice
    # The profile in use misses what the table says.
    user = Detector(detector.network, again.owner.point).with_profile(again)
    defects = sorted((root / "part" / "test" / "spot").iterdir())
    missed = sum(prediction.verdict != "defect" for prediction in user.predict(defects))
    assert missed == next(row.missed for row in outcome.choice.table if row.point == again.owner.point)
    page = (tmp_path / "out" / "choice.md").read_text()
    assert outcome.choice.sentence in page
    with pytest.raises(KeepADError, match="references of the profile"):
        user.calibrate(good[:3], false_alarms=0.3, say=said.append)


def test_a_second_run_computes_nothing_and_keeps_the_order(
    detector: Detector, root: Path, tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = chosen(detector, root, tmp_path / "out", said, profile=None)

    def infer(*_: object, **__: object) -> None:
        raise AssertionError("an image was inferred again")

    monkeypatch.setattr(Detector, "infer", infer)
    second = chosen(detector, root, tmp_path / "out", said, profile=None)
    assert second.choice == first.choice
    assert second.page == first.page


def test_the_engine_is_chosen_too(
    detector: Detector, root: Path, tmp_path: Path, said: list[str], folders: dict[str, Path]
) -> None:
    engines = {"torch": detector, "onnx": Detector(open_network(folders["onnx"]))}
    points = [POINTS[name] for name in ("dense", "prune70")]
    # A bound that random weights keep: what counts is which candidate is named, and that the profile knows its engine.
    asked = Question(engines, points, Bounds(max_miss=0.999, confidence=0.5), Promise(false_alarms=0.3))
    outcome = choose_point(asked, images_of(root, said), tmp_path / "out", options=Options(), say=said.append)
    names = {row.point for row in outcome.choice.table}
    assert names == {"dense, torch", "prune70, torch", "dense, onnx", "prune70, onnx"}
    assert outcome.choice.table[0].point == "dense, torch"
    missed = {row.point: row.missed for row in outcome.choice.table}
    assert missed["dense, torch"] == missed["dense, onnx"]
    assert outcome.profile is not None
    assert f"{outcome.profile.owner.point}, {outcome.profile.settings['engine']}" == outcome.choice.point


def test_lost_defects_are_bounded_as_well(detector: Detector, root: Path, tmp_path: Path, said: list[str]) -> None:
    bounds = replace(BOUNDS, max_miss=0.9, max_lost=0.4)
    outcome = chosen(detector, root, tmp_path / "out", said, profile=None, bounds=bounds)
    assert outcome.lost is not None
    assert outcome.lost.table[0].missed == 0  # dense keeps every token
    assert outcome.lost.defects == 10
    if outcome.profile is not None:
        assert outcome.profile.lost == outcome.lost
        assert outcome.lost.point == outcome.choice.point


def test_too_few_images_are_refused_before_anything_runs(
    detector: Detector, root: Path, tmp_path: Path, said: list[str]
) -> None:
    with pytest.raises(KeepADError, match=r"10 defects cannot bound those missed or lost by 2 % .* 149 are needed"):
        chosen(detector, root, tmp_path / "out", said, profile=None, bounds=Bounds(0.02))
    images = images_of(root, said)
    few = replace(images, good=dict(list(images.good.items())[:3]))
    with pytest.raises(KeepADError, match="3 good images cannot promise 10 %"):
        choose_point(question(detector, None), few, tmp_path / "out", options=Options(), say=said.append)
    assert not (tmp_path / "out").exists()


def test_copies_count_once(root: Path, said: list[str]) -> None:
    folder = root / "part" / "test"
    shutil.copy(folder / "good" / "0.png", folder / "good" / "copy.png")
    shutil.copy(folder / "spot" / "20.png", folder / "spot" / "copy.png")
    shutil.copy(
        folder.parent / "ground_truth" / "spot" / "20_mask.png",
        folder.parent / "ground_truth" / "spot" / "copy_mask.png",
    )
    images = images_of(root, said)
    assert (len(images.good), len(images.defective)) == (14, 10)
    assert any("2 of the 26 images are copies" in line for line in said)
