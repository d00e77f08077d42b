"""keepad choose from the outside: the profile that predict then uses, and one sentence per user error."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from evaluate_trees import draw_part
from keepad.cli import main
from keepad.references.profile import read_profile


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return draw_part(tmp_path / "data")


def run(*words: object, monkeypatch: pytest.MonkeyPatch) -> int:
    """Exit code of the command line."""
    monkeypatch.setattr(sys, "argv", ["keepad", *map(str, words)])
    with pytest.raises(SystemExit) as caught:
        main()
    return int(caught.value.code or 0)


def test_predict_uses_the_chosen_point(
    root: Path, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, model, taught = root.parent / "choice", folders["onnx"], root.parent / "part.keepad"
    good = sorted((root / "part" / "test" / "good").iterdir())
    teach = ("teach", *good[:3], "--model", model, "--point", "prune50", "--rotate", "off", "--out", taught)
    assert run(*teach, monkeypatch=monkeypatch) == 0
    before = taught.read_bytes()
    choose = ("choose", "--data", root, "--out", out, "--profile", taught, "--model", model, "--false-alarms", "10%")
    assert run(*choose, "--max-miss", "40%", "--points", "dense,prune70", monkeypatch=monkeypatch) == 0
    printed = capsys.readouterr().out
    assert "is the fastest operating point with at most 40 % of the defects missed" in printed
    assert taught.read_bytes() == before
    profile = read_profile(out / "part.keepad")
    assert profile.choice is not None
    assert profile.owner.point == profile.choice.point
    results = root.parent / "results"
    predict = ("predict", root / "part" / "test", "--profile", out / "part.keepad", "--model", model, "--out", results)
    assert run(*predict, monkeypatch=monkeypatch) == 0
    rows = [json.loads(line) for line in (results / "predictions.jsonl").read_text().splitlines()]
    missed = sum(row["verdict"] != "defect" for row in rows if "spot" in row["path"])
    assert missed == next(row.missed for row in profile.choice.table if row.point == profile.choice.point)
    monkeypatch.chdir(out)
    capsys.readouterr()
    assert run("models", monkeypatch=monkeypatch) == 0
    assert "calibration: at most 10 % false alarms" in " ".join(capsys.readouterr().out.split())


def test_user_errors_are_one_sentence(
    root: Path, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    choose = ("choose", "--data", root, "--out", root.parent / "choice", "--model", folders["onnx"])
    wrong: list[tuple[object, ...]] = [
        (*choose, "--max-miss", "2%", "--false-alarms", "10%"),  # 149 defects are needed
        (*choose, "--max-miss", "40%"),  # 1 % false alarms need 99 good images
        (*choose, "--max-miss", "none"),
        (*choose, "--max-miss", "40%", "--false-alarms", "10%", "--points", "prune99"),
        (*choose, "--max-miss", "40%", "--false-alarms", "10%", "--good", root / "nothing"),
        (*choose, "--max-miss", "40%", "--false-alarms", "10%", "--profile", root / "nothing.keepad"),
        (*choose, "--max-miss", "40%", "--false-alarms", "10%", "--max-lost", "1%"),
        (*choose, "--max-miss", "40%", "--false-alarms", "10%", "--engines", "torch"),
    ]
    for words in wrong:
        assert run(*words, monkeypatch=monkeypatch) == 2, words
        assert capsys.readouterr().err.count("error:") == 1
