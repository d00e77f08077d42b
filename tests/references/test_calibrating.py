"""Calibration of a detector: promises kept, bad folders refused or named in one sentence, nothing lost."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors import safe_open
from safetensors.numpy import save_file

from keepad.detector import Detector
from keepad.errors import KeepADError
from keepad.loading import load
from keepad.network import Network
from keepad.references import calibrating
from keepad.references.calibrating import Promise, ScoreLog
from keepad.references.profile import Profile, read_profile
from keepad.references.teaching import add


@pytest.fixture
def detector(tiny: Network) -> Detector:
    return Detector(tiny, "prune70")


@pytest.fixture
def good(tmp_path: Path) -> Path:
    """Twenty alike images."""
    folder = tmp_path / "good"
    folder.mkdir()
    for number in range(20):
        noise = np.random.default_rng(number).normal(0, 6, (72, 88, 3))
        rows = 120 + 60 * np.sin(np.linspace(0, 12, 72))[:, None, None]
        Image.fromarray((rows + noise).clip(0, 255).astype(np.uint8)).save(folder / f"{number:02d}.png")
    return folder


@pytest.fixture
def said() -> list[str]:
    return []


def test_without_a_profile_it_makes_one_that_holds_the_calibration_alone(
    detector: Detector, good: Path, said: list[str], tmp_path: Path
) -> None:
    profile = detector.calibrate(good, false_alarms=0.1, say=said.append)
    profile.save(tmp_path / "p.keepad")
    again = read_profile(tmp_path / "p.keepad")
    assert again.bank is None
    assert again.calibrated == profile.calibrated
    assert again.calibrated is not None
    assert again.holds == ["calibration: at most 10 % false alarms on average, from 20 good images"]
    assert [line["action"] for line in again.history] == ["calibrate"]
    zero_shot, calibrated = detector, detector.with_profile(again)
    predictions = list(calibrated.predict(good))
    assert [each.pred_score for each in predictions] == [each.pred_score for each in zero_shot.predict(good)]
    # Two of twenty-one may exceed the second highest score; of the calibration images themselves, one does.
    assert sum(each.verdict == "defect" for each in predictions) == 1
    for each in predictions:
        assert each.pred_label == (each.verdict == "defect")
        assert each.threshold == again.calibrated.threshold
        assert each.p_value == again.calibrated.p_value(each.pred_score)
        assert each.pixel_threshold == again.calibrated.pixel_threshold
        described = each.to_dict()
        assert (described["verdict"], described["p_value"]) == (each.verdict, each.p_value)
    assert sum(bool(each.pred_mask is not None and each.pred_mask.any()) for each in predictions) == 1


def test_references_stay_and_are_refused_as_calibration_images(
    detector: Detector, good: Path, said: list[str], tmp_path: Path
) -> None:
    references = [good / "00.png", good / "01.png"]
    taught = detector.with_profile(detector.teach(references, rotate="off", say=said.append))
    with pytest.raises(KeepADError, match=r"2 of these images are references of the profile \(00.png is one\)"):
        taught.calibrate(good, false_alarms=0.1, say=said.append)
    shutil.copy(good / "00.png", good / "renamed.png")  # told by content, not by name
    with pytest.raises(KeepADError, match="1 of these images are references"):
        taught.calibrate([*sorted(good.glob("*.png"))[2:]], false_alarms=0.1, say=said.append)
    (good / "renamed.png").unlink()
    profile = taught.calibrate(sorted(good.glob("*.png"))[2:], false_alarms=0.1, say=said.append)
    assert profile.bank is not None
    assert [line["action"] for line in profile.history] == ["teach", "calibrate"]
    # Scores change with the references, so the calibration goes.
    both = detector.with_profile(profile)
    assert add(both, profile, good / "02.png").calibrated is None
    assert add(both, profile, good / "02.png").undone("now").calibrated is None


def test_thresholds_set_by_hand_take_the_place_of_a_calibration(
    detector: Detector, good: Path, said: list[str]
) -> None:
    calibrated = detector.with_profile(detector.calibrate(good, false_alarms=0.1, say=said.append))
    calibrated.set_threshold(0.2)
    prediction = calibrated(good / "00.png")
    assert (prediction.verdict, prediction.p_value, prediction.threshold) == (None, None, 0.2)


def test_a_promise_that_the_images_cannot_keep_is_refused(detector: Detector, good: Path, said: list[str]) -> None:
    with pytest.raises(KeepADError, match=r"20 good images cannot promise 1 % false alarms: that needs 99; .* 4.76 %"):
        detector.calibrate(good, say=said.append)
    with pytest.raises(KeepADError, match=r"3 good images cannot promise .* they can promise 25 %"):
        detector.calibrate(sorted(good.glob("*.png"))[:3], say=said.append)
    with pytest.raises(KeepADError, match="20 good images cannot promise 10 % false alarms at 95 % confidence"):
        detector.calibrate(good, false_alarms=0.1, confidence=0.95, say=said.append)
    with pytest.raises(KeepADError, match="review level"):
        detector.calibrate(good, false_alarms=0.1, review=0.05, say=said.append)


def test_odd_images_copies_sizes_and_unreadable_files_are_named(
    detector: Detector, good: Path, said: list[str]
) -> None:
    odd = Image.open(good / "05.png")
    odd.paste((255, 0, 0), (20, 20, 70, 60))
    odd.save(good / "05.png")
    Image.open(good / "06.png").resize((60, 60)).save(good / "06.png")
    shutil.copy(good / "00.png", good / "copy.png")
    (good / "broken.png").write_bytes(b"no image")
    errors: list[KeepADError] = []
    profile = detector.calibrate(
        good, false_alarms=0.1, say=said.append, on_error=lambda _, error: errors.append(error)
    )
    assert profile.calibrated is not None
    assert len(profile.calibrated.scores) == 20
    assert any(line.startswith("05.png scores far above") or "05.png," in line for line in said)
    assert any("1 of these images are copies" in line and "copy.png" in line for line in said)
    assert any("1 of the 20 images are not 88 x 72 pixels" in line for line in said)
    assert len(errors) == 1
    with pytest.raises(KeepADError, match=r"broken\.png"):
        detector.calibrate(good, false_alarms=0.1, say=said.append)


def test_an_interrupted_calibration_goes_on_and_ends_the_same(
    detector: Detector, good: Path, said: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = sorted(good.glob("*.png"))
    whole = calibrating.calibrate(detector, images, Promise(0.1), say=said.append)
    path = tmp_path / "p.keepad.scores.jsonl"
    log = ScoreLog(path, detector)
    with monkeypatch.context() as patch:
        predict = Detector.__call__

        def interrupted(self: Detector, image: Path) -> object:
            if image.name == "07.png":
                raise KeyboardInterrupt
            return predict(self, image)

        patch.setattr(Detector, "__call__", interrupted)
        with pytest.raises(KeyboardInterrupt):
            calibrating.calibrate(detector, images, Promise(0.1), say=said.append, log=log)
    path.write_text(path.read_text() + '{"digest": "torn')
    again = ScoreLog(path, detector)
    assert len(again.known) == 7
    resumed = calibrating.calibrate(detector, images, Promise(0.1), say=said.append, log=again)
    assert resumed.calibrated == whole.calibrated
    assert len(ScoreLog(path, detector).known) == 20
    assert not ScoreLog(path, Detector(detector.network, "prune50")).known  # scores of another operating point


def test_older_profiles_load_and_damaged_ones_are_refused(
    detector: Detector, good: Path, said: list[str], tmp_path: Path
) -> None:
    taught = detector.teach([good / "00.png"], rotate="off", say=said.append)
    path = tmp_path / "p.keepad"
    taught.save(path)
    with safe_open(path, framework="numpy") as opened:
        tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        described = json.loads(opened.metadata()["keepad-profile"])
    old = {key: value for key, value in described.items() if key not in ("calibrated", "choice", "lost")}
    save_file(tensors, path, metadata={"keepad-profile": json.dumps({**old, "format": 1})})
    assert read_profile(path).images == taught.images
    calibrated = detector.calibrate(good, false_alarms=0.1, say=said.append).calibrated
    assert calibrated is not None
    fields = calibrated.to_dict()
    wrong: list[dict[str, object]] = [
        {"calibrated": {**fields, "scores": [float("nan")] * 20}},
        {"calibrated": {**fields, "level": 0.001}},  # more than the images can promise
        {"calibrated": [1]},
        {"choice": {"point": "prune70"}},
        {"history": []},
        {"images": [{"name": "x", "digest": 3, "tokens": None, "picture": 1}]},
        {"owner": {**described["owner"], "size": [0, 1]}},
        {"level": "high"},
        {"format": 3},
        {"format": "2"},
    ]
    for change in wrong:
        save_file(tensors, path, metadata={"keepad-profile": json.dumps({**described, **change})})
        with pytest.raises(KeepADError, match=r"damaged|another format"):
            read_profile(path)
    deep = '{"format": 2, "owner": ' + "[" * 100_000 + "]" * 100_000 + "}"
    save_file(tensors, path, metadata={"keepad-profile": deep})
    with pytest.raises(KeepADError, match=r"damaged|another format"):
        read_profile(path)


def test_the_engine_of_a_chosen_profile_is_checked(detector: Detector, good: Path, said: list[str]) -> None:
    profile = detector.calibrate(good, false_alarms=0.1, say=said.append)
    chosen = replace(profile, settings={"engine": "abacus"})
    with pytest.raises(KeepADError, match="there is no engine called 'abacus'"):
        load("default", profile=chosen, say=said.append)
    with pytest.raises(KeepADError, match="a profile has its operating point already"):
        load("default", profile=profile, budget_ms=80, say=said.append)


def test_a_calibration_belongs_to_its_operating_point(detector: Detector, good: Path, said: list[str]) -> None:
    profile: Profile = detector.calibrate(good, false_alarms=0.1, say=said.append)
    with pytest.raises(KeepADError, match="another operating point"):
        Detector(detector.network, "prune50").with_profile(profile)
    other = replace(profile, owner=replace(profile.owner, precision="int8"))
    with pytest.raises(KeepADError, match="another precision"):
        detector.with_profile(other)
