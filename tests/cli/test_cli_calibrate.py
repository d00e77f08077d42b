"""keepad calibrate and predict with its profile: verdicts, false discovery rate, one sentence per error."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from keepad.cli import main
from keepad.references.profile import read_profile


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Twenty good images, and a test folder of four more and one with a spot."""
    for number in range(25):
        pixels = np.full((60, 70, 3), 120.0) + np.random.default_rng(number).normal(0, 5, (60, 70, 3))
        if number == 24:
            pixels[20:36, 20:40] = (250, 0, 0)
        folder = tmp_path / ("good" if number < 20 else "test")
        folder.mkdir(exist_ok=True)
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / f"{number}.png")
    return tmp_path


def run(*words: object, monkeypatch: pytest.MonkeyPatch) -> int:
    """Exit code of the command line."""
    monkeypatch.setattr(sys, "argv", ["keepad", *map(str, words)])
    with pytest.raises(SystemExit) as caught:
        main()
    return int(caught.value.code or 0)


def test_calibrate_and_predict_with_verdicts(
    images: Path, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    profile, out, model = images / "parts.keepad", images / "out", folders["onnx"]
    calibrate = ("calibrate", images / "good", "--out", profile, "--model", model, "--false-alarms", "5%")
    assert run(*calibrate, monkeypatch=monkeypatch) == 0
    assert "at most 5 % false alarms on average, from 20 good images" in capsys.readouterr().out
    assert not list(images.glob("*.scores.jsonl"))
    predict = ("predict", images / "test", "--out", out, "--model", model, "--profile", profile)
    assert run(*predict, monkeypatch=monkeypatch) == 0
    rows = [json.loads(line) for line in (out / "predictions.jsonl").read_text().splitlines()]
    calibrated = read_profile(profile).calibrated
    assert calibrated is not None
    for row in rows:
        assert row["verdict"] == calibrated.verdict(row["pred_score"])
        assert row["p_value"] == calibrated.p_value(row["pred_score"])
        assert row["threshold"] == calibrated.threshold
        assert 0.4 < row["brightness"] < 0.55
    printed = capsys.readouterr().out
    assert "verdict" in printed
    assert "p-value" in printed
    page = (out / "report.html").read_text()
    assert "from 20 good images" in page
    assert page.count("<dt>p-value</dt>") == 5

    # Verdicts of the whole folder; only the regions of the lines are not in the summary's rows.
    before = [set(row) for row in rows]
    assert run(*predict, "--fdr", "40%", monkeypatch=monkeypatch) == 0
    together = [json.loads(line) for line in (out / "predictions.jsonl").read_text().splitlines()]
    assert [set(row) for row in together] == before
    assert {row["verdict"] for row in together} <= {"ok", "review", "defect"}
    assert all(row["pred_label"] == (row["verdict"] == "defect") for row in together)
    assert "of the defects called here expected to be good" in (out / "report.html").read_text()


def test_user_errors_are_one_sentence(
    images: Path, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    profile, model = images / "parts.keepad", folders["onnx"]
    good = ("calibrate", images / "good", "--model", model)
    assert run(*good, "--false-alarms", "5%", "--out", profile, monkeypatch=monkeypatch) == 0
    content = profile.read_bytes()
    predict = ("predict", images / "test", "--out", images / "out", "--model", model)
    wrong: list[tuple[object, ...]] = [
        good,  # no --out
        (*good, "--out", profile),  # 1 % needs 99
        (*good, "--out", profile, "--false-alarms", "no"),
        (*good, "--out", profile, "--false-alarms", "10%", "--review", "5%"),
        (*good, "--profile", images / "good" / "0.png", "--false-alarms", "5%"),
        (*good, "--profile", profile, "--point", "prune70", "--false-alarms", "5%"),
        ("calibrate", images / "nothing", "--out", profile, "--model", model),
        (*predict, "--fdr", "5%"),  # no calibration
        (*predict, "--fdr", "1%", "--profile", profile),  # too few images for that rate
        (*predict, "--fdr", "30%", "--profile", profile, "--threshold", "0.5"),
    ]
    capsys.readouterr()
    for words in wrong:
        assert run(*words, monkeypatch=monkeypatch) == 2, words
        assert capsys.readouterr().err.count("error:") == 1
    assert profile.read_bytes() == content
