"""Every script of examples/ runs as its first lines say, without arguments, and writes what it names."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def run(name: str, folder: Path) -> str:
    """What an example prints, run in `folder`."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name)], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_example_is_tested() -> None:
    tested = set(re.findall(r'run\("(\w+\.py)"', Path(__file__).read_text()))
    assert tested == {path.name for path in EXAMPLES.glob("*.py")}


@pytest.mark.weights
def test_one_image(tmp_path: Path) -> None:
    output = run("01_one_image.py", tmp_path)
    assert re.search(r"^score 0\.\d{3}, anomalous: True$", output, re.MULTILINE)
    with Image.open(tmp_path / "keepad-examples" / "images" / "metal" / "test" / "rust" / "000.png") as image:
        assert f"map {image.height, image.width}" in output
    assert (tmp_path / "keepad-examples" / "one_image.png").is_file()


@pytest.mark.weights
def test_folder_with_report(tmp_path: Path) -> None:
    assert "6 images" in run("02_folder_with_report.py", tmp_path)
    results = tmp_path / "keepad-examples" / "results"
    assert len((results / "predictions.jsonl").read_text().splitlines()) == 6
    assert (results / "report.html").is_file()


@pytest.mark.weights
def test_export_without_torch(tmp_path: Path) -> None:
    output = run("03_export_without_torch.py", tmp_path)
    torch, openvino = (float(score) for score in re.findall(r"score ([\d.]+)", output))
    assert openvino == pytest.approx(torch, abs=1e-3)
    assert "torch imported: False" in output


@pytest.mark.weights
def test_train_on_own_data(tmp_path: Path) -> None:
    output = run("04_train_on_own_data.py", tmp_path)
    good, hole = (float(score) for score in re.findall(r"hole: \w+, score ([\d.]+)", output))
    assert good < hole
    assert (tmp_path / "keepad-examples" / "mine.md").is_file(), "the model card lies beside the checkpoint"
