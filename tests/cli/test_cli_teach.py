"""keepad teach, predict --profile and audit on an exported folder: files written, history, one sentence per error."""

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
    """Nine alike images, and one with a spot."""
    for number in range(10):
        generator = np.random.default_rng(number)
        pixels = np.full((60, 70, 3), 120.0) + generator.normal(0, 5, (60, 70, 3))
        if number == 9:
            pixels[20:36, 20:40] = (250, 0, 0)
        folder = tmp_path / ("odd" if number == 9 else "good")
        folder.mkdir(exist_ok=True)
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / f"{number}.png")
    return tmp_path


@pytest.fixture
def model(folders: dict[str, Path]) -> Path:
    return folders["onnx"]


def run(*words: object, monkeypatch: pytest.MonkeyPatch) -> int:
    """Exit code of the command line."""
    monkeypatch.setattr(sys, "argv", ["keepad", *map(str, words)])
    with pytest.raises(SystemExit) as caught:
        main()
    return int(caught.value.code or 0)


def scores(out: Path) -> dict[str, float]:
    rows = [json.loads(line) for line in (out / "predictions.jsonl").read_text().splitlines()]
    return {Path(row["path"]).name: row["pred_score"] for row in rows}


def test_three_commands_teach_predict_and_absorb_a_false_alarm(
    images: Path, model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    profile, out = images / "parts.keepad", images / "out"
    good = [images / "good" / f"{number}.png" for number in range(4)]
    assert run("teach", *good, "--out", profile, "--model", model, "--rotate", "off", monkeypatch=monkeypatch) == 0
    # prune50 is the default of teach, and predict takes the point from the profile.
    predict = ("predict", images / "good", images / "odd", "--profile", profile, "--model", model, "--out", out)
    assert run(*predict, monkeypatch=monkeypatch) == 0
    before = scores(out)
    assert max(before, key=lambda name: before[name]) == "9.png"
    printed = " ".join(capsys.readouterr().err.split())
    assert "4 of these images are references of the profile" in printed
    page = (out / "report.html").read_text()
    assert page.count("nearest in ") >= 10
    assert "4 good images" in page

    odd = images / "odd" / "9.png"
    assert run("teach", profile, "--add", odd, "--model", model, monkeypatch=monkeypatch) == 0
    assert "added 9.png" in capsys.readouterr().out
    assert run(*predict, monkeypatch=monkeypatch) == 0
    assert scores(out)["9.png"] < before["9.png"]
    assert run("teach", profile, "--undo", monkeypatch=monkeypatch) == 0
    assert run(*predict, monkeypatch=monkeypatch) == 0
    assert scores(out)["9.png"] == pytest.approx(before["9.png"], abs=1e-6)
    assert [line["action"] for line in read_profile(profile).history] == ["teach", "add", "undo"]


def test_user_errors_are_one_sentence_and_lose_nothing(
    images: Path, model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    profile = images / "parts.keepad"
    teach = ("teach", images / "good" / "0.png", "--out", profile, "--model", model)
    assert run(*teach, monkeypatch=monkeypatch) == 0
    content = profile.read_bytes()
    wrong: list[tuple[object, ...]] = [
        ("teach", images / "good"),  # no --out
        ("teach", images / "nothing", "--out", profile, "--model", model),
        ("teach", profile, images, "--undo"),
        ("teach", profile, "--undo"),
        ("teach", profile, "--add", images / "odd" / "9.png", "--model", model, "--add", images / "good" / "0.png"),
        ("predict", images, "--profile", images / "good" / "0.png", "--out", images / "out", "--model", model),
        ("predict", images, "--profile", profile, "--point", "prune70", "--out", images / "out", "--model", model),
        ("audit", images / "odd", "--out", images / "out", "--model", model),
    ]
    capsys.readouterr()
    for words in wrong:
        assert run(*words, monkeypatch=monkeypatch) == 2, words
        assert capsys.readouterr().err.count("error:") == 1
    assert profile.read_bytes() == content


def test_an_audit_ranks_the_odd_image_first(
    images: Path, model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = images / "out"
    words = ("audit", images / "good", "--out", out, "--model", model, "--no-overlays")
    assert run(*words, monkeypatch=monkeypatch) == 0
    assert "not verdicts" in " ".join(capsys.readouterr().err.split())
    (images / "odd" / "9.png").rename(images / "good" / "9.png")
    assert run(*words, monkeypatch=monkeypatch) == 0
    found = scores(out)
    assert max(found, key=lambda name: found[name]) == "9.png"


def test_models_lists_the_profiles_of_the_folder(
    images: Path, model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    teach = ("teach", images / "good" / "0.png", "--out", images / "parts.keepad", "--model", model)
    assert run(*teach, monkeypatch=monkeypatch) == 0
    (images / "broken.keepad").write_bytes(b"no profile")
    monkeypatch.chdir(images)
    capsys.readouterr()
    assert run("models", monkeypatch=monkeypatch) == 0
    printed = capsys.readouterr().out
    assert "parts.keepad" in printed
    assert "1 good image" in printed
    assert "damaged" in printed
