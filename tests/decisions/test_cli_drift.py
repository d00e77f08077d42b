"""keepad drift from the outside: what it prints, what it draws, and one sentence per user error."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from keepad.cli import main

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def stream(tmp_path: Path) -> Path:
    """60 good images, 100 more like them, and 60 from a brighter, higher-scoring camera; one could not be read."""
    random = np.random.default_rng(0)
    rows: list[dict[str, object]] = []
    for i in range(220):
        shift = i >= 160
        row = {"pred_score": random.normal(0.2 + 0.1 * shift, 0.03), "keep_final": random.normal(0.2, 0.02)}
        rows.append({"path": f"[red]{i}.png", **row, "brightness": random.normal(100 + 30 * shift, 3), "error": None})
    rows.insert(5, {"path": "bad.png", "pred_score": None, "error": "bad.png is empty."})
    path = tmp_path / "predictions.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def run(*arguments: object, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "argv", ["keepad", "drift", *map(str, arguments)])
    with pytest.raises(SystemExit) as caught:
        main()
    return int(caught.value.code or 0)


def test_when_how_sure_and_what_changed(
    stream: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    plot = tmp_path / "plots" / "drift.png"
    assert run(stream, "--good", 60, "--false-alarms", "1%", "--plot", plot, monkeypatch=monkeypatch) == 0
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    since, alarm = (int(line.split(":")[0].split()[-1]) for line in lines[:2])
    assert abs(since - 101) <= 3
    assert 101 <= alarm <= 125
    assert lines[1].endswith(f"[red]{alarm + 59}.png")
    # A shift of ten deviations shows first.
    assert lines[2].startswith("brightness is higher; probability without drift at most")
    assert [line.split(":")[0] for line in lines[3:6]] == ["brightness", "score", "keep"]
    assert "1 lines with an error" in captured.err
    with Image.open(plot) as image:
        assert image.format == "PNG"


def test_no_drift_and_good_images_from_another_file(
    stream: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    lines = stream.read_text().splitlines()
    good, rest = tmp_path / "good.jsonl", tmp_path / "rest.jsonl"
    good.write_text("\n".join(lines[:80]))
    rest.write_text("\n".join(lines[80:160]))
    assert run(rest, "--good", good, monkeypatch=monkeypatch) == 0
    assert capsys.readouterr().out == "no drift in 80 images after 79 good ones\n"


@pytest.mark.parametrize(
    ("text", "arguments", "sentence"),
    [
        (None, [], "cannot be read"),
        (b"\xff\xfe", [], "is not a text file"),
        (b"", [], "has no images beside the 0 good ones"),
        (b"[1]\n", [], "line 1 of"),
        (b"{\n", [], "is not a JSON object"),
        (b'{"pred_score": NaN}\n', [], "has no finite pred_score"),
        (b'{"pred_score": true}\n', [], "has no finite pred_score"),
        (b'{"pred_score": 0.5}\n' * 9, ["--good", "3"], "3 good images are too few to see drift; use at least 20"),
        (b'{"pred_score": 0.5}\n' * 9, ["--good", "9"], "lower --good"),
        (b'{"pred_score": 0.5}\n', ["--false-alarms", "200%"], "takes a rate above 0 and below 100%"),
        (b'{"pred_score": 0.5}\n', ["--false-alarms", "few"], "takes a rate above 0 and below 100%"),
        (b'{"pred_score": 0.5}\n', ["--good", "missing.jsonl"], "missing.jsonl cannot be read"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
    text: bytes | None,
    arguments: list[str],
    sentence: str,
) -> None:
    path = tmp_path / "p.jsonl"
    if text is not None:
        path.write_bytes(text)
    assert run(path, *arguments, monkeypatch=monkeypatch) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert "Traceback" not in error
