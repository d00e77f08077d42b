"""keepad predict: files written, exit codes, and one sentence per user error."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from pycocotools.coco import COCO
from rich.console import Console
from typer.testing import CliRunner

from keepad import loading
from keepad.backbone import BACKBONES
from keepad.checkpoint import bundled_checkpoints
from keepad.cli import app, main
from keepad.detector import Detector
from keepad.files import locked
from keepad.network import Network
from keepad.output import drawing
from keepad.output import folder as output_folder
from predictions import FIELDS

COLUMNS = FIELDS - {"point"} | {"error"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Ten images in nested folders."""
    random = np.random.default_rng(0)
    for number in range(10):
        path = tmp_path / "images" / f"part{number % 2}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 255, (30, 40, 3), dtype=np.uint8)).save(path)
    return tmp_path / "images"


@pytest.fixture(autouse=True)
def small_detector(request: pytest.FixtureRequest, tiny: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small random network in place of the checkpoint, except in tests marked `weights`."""
    if "weights" not in request.keywords:
        monkeypatch.setattr(loading, "load", lambda what=None, *, point="prune50", **_: Detector(tiny, point=point))


def run(*arguments: object, monkeypatch: pytest.MonkeyPatch) -> int:
    """Exit code of the command line; a KeepADError becomes one sentence on standard error."""
    monkeypatch.setattr(sys, "argv", ["keepad", *map(str, arguments)])
    with pytest.raises(SystemExit) as caught:
        main()
    return int(caught.value.code or 0)


def lines(out: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (out / "predictions.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("point", ["dense", "prune30", "prune50", "prune70"])
def test_a_folder_gives_lines_overlays_and_a_report(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    out = tmp_path / "out"
    assert run("predict", folder, "--out", out, "--point", point, "--batch", 3, monkeypatch=monkeypatch) == 0
    rows = lines(out)
    assert len(rows) == 10
    assert all(set(row) == COLUMNS for row in rows)
    assert all(row["error"] is None and row["pred_label"] is None for row in rows)
    overlays = sorted(path.name for path in (out / "overlays").iterdir())
    assert len(overlays) == 10
    assert overlays[0] == "part0__0.png.jpg"
    html = (out / "report.html").read_text()
    assert all(f"{number}.png" in html for number in range(10))
    assert point in html


def test_no_overlays_and_a_threshold(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    arguments = (
        "predict",
        folder / "part0",
        folder / "part1" / "1.png",
        "--out",
        out,
        "--no-overlays",
        "--threshold",
        0.0,
    )
    assert run(*arguments, monkeypatch=monkeypatch) == 0
    assert len(lines(out)) == 6
    assert all(row["pred_label"] is True for row in lines(out))
    assert [path.name for path in out.iterdir()] == ["predictions.jsonl"]


def test_one_unreadable_image_of_ten(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = folder / "part1" / "5.png"
    broken.write_bytes(broken.read_bytes()[:200])
    out = tmp_path / "out"
    assert run("predict", folder, "--out", out, "--batch", 4, monkeypatch=monkeypatch) == 1
    failed = [row for row in lines(out) if row["error"]]
    assert len(lines(out)) == 10
    assert len(failed) == 1
    assert str(failed[0]["path"]).endswith("5.png")
    assert failed[0]["pred_score"] is None
    assert "5.png" in str(failed[0]["error"])


@pytest.mark.parametrize(
    ("make", "sentence", "code"),
    [
        (lambda p: p / "nowhere", "nowhere", 2),
        (lambda p: (p / "empty").mkdir() or p / "empty", "no image", 2),
        (lambda p: (p / "notes.txt").write_text("x") and p / "notes.txt", "notes.txt", 1),
    ],
)
def test_inputs_that_hold_no_image(
    make: Callable[[Path], Path],
    sentence: str,
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run("predict", make(tmp_path), "--out", tmp_path / "out", monkeypatch=monkeypatch) == code
    printed = capsys.readouterr().err
    assert sentence in printed.replace("\n", " ")
    assert "Traceback" not in printed


def test_an_unwritable_output_folder(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("in the way")
    assert run("predict", folder, "--out", tmp_path / "file" / "out", monkeypatch=monkeypatch) == 2
    assert "cannot be written to" in capsys.readouterr().err


def test_a_full_disk_keeps_what_is_done(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write = drawing.write_picture

    def full(picture: Image.Image, path: Path) -> None:
        if "4.png" in str(path):
            raise OSError(28, "No space left on device")
        write(picture, path)

    monkeypatch.setattr(output_folder, "write_picture", full)
    assert run("predict", folder, "--out", tmp_path / "out", monkeypatch=monkeypatch) == 2
    assert "No space left on device; what was written so far is kept" in capsys.readouterr().err.replace("\n", " ")
    assert len(lines(tmp_path / "out")) == 2  # 0.png and 2.png come before 4.png


def test_an_unknown_point_is_refused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("predict", folder, "--out", tmp_path / "out", "--point", "prune99", monkeypatch=monkeypatch) == 2
    assert "dense, prune30, prune50, prune70" in capsys.readouterr().err.replace("\n", " ")


def test_an_interrupt_keeps_what_is_done(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    infer = Network.infer
    calls = []

    def interrupted(self: Network, *arguments: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return infer(self, *arguments, **options)

    monkeypatch.setattr(Network, "infer", interrupted)
    out = tmp_path / "out"
    options = ("--masks", "--coco", "--threshold", 0.5)
    assert run("predict", folder, "--out", out, *options, monkeypatch=monkeypatch) == 130
    assert len(lines(out)) == 3
    assert (out / "report.html").is_file()
    assert len(COCO(str(out / "regions.coco.json")).getImgIds()) == 3
    assert len(list((out / "masks").iterdir())) == 3


def stopped_at(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on, the pass with this number is interrupted."""
    infer, calls = Network.infer, list[int]()

    def interrupted(self: Network, *arguments: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == number:
            raise KeyboardInterrupt
        return infer(self, *arguments, **options)

    monkeypatch.setattr(Network, "infer", interrupted)


def without_times(text: str) -> str:
    return re.sub(r"[0-9.]+ m?s\b|(?<=seconds\": )[0-9.e-]+", "", text)


def test_the_same_command_goes_on_after_an_interrupt(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "part0" / "2.png").write_bytes(b"broken")
    options = ("--masks", "--coco", "--threshold", 0.5)
    whole, out = tmp_path / "whole", tmp_path / "out"
    assert run("predict", folder, "--out", whole, *options, monkeypatch=monkeypatch) == 1
    with monkeypatch.context() as patch:
        stopped_at(5, patch)
        assert run("predict", folder, "--out", out, *options, monkeypatch=patch) == 130
    done = (out / "predictions.jsonl").read_text()
    with (out / "predictions.jsonl").open("a") as file:
        file.write('{"path": "torn')  # as a kill leaves it
    assert run("predict", folder, "--out", out, *options, monkeypatch=monkeypatch) == 1
    assert (out / "predictions.jsonl").read_text().startswith(done)
    assert sorted(path.relative_to(out) for path in out.rglob("*")) == sorted(
        path.relative_to(whole) for path in whole.rglob("*")
    )
    for path in (path.relative_to(out) for path in out.rglob("*") if path.is_file()):
        if path.suffix in (".jsonl", ".html"):
            assert without_times((out / path).read_text()) == without_times((whole / path).read_text())
        elif path.parent.name != "overlays":  # they show the time of the pass
            assert (out / path).read_bytes() == (whole / path).read_bytes()


@pytest.mark.parametrize("changed", ["option", "image", "none"])
def test_any_other_run_begins_anew(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: str) -> None:
    out, options = tmp_path / "out", ["--no-overlays"]
    with monkeypatch.context() as patch:
        stopped_at(5, patch)
        assert run("predict", folder, "--out", out, *options, monkeypatch=patch) == 130
    before = lines(out)
    if changed == "option":
        options += ["--point", "dense"]
    elif changed == "image":
        Image.new("RGB", (40, 30)).save(folder / "part0" / "0.png")
    assert run("predict", folder, "--out", out, *options, monkeypatch=monkeypatch) == 0
    assert len(lines(out)) == 10
    assert (lines(out)[: len(before)] == before) == (changed == "none")
    again = lines(out)
    assert run("predict", folder, "--out", out, *options, monkeypatch=monkeypatch) == 0
    assert lines(out) != again  # a finished run is not taken up: its times are new


def test_a_damaged_state_is_a_sentence(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        stopped_at(5, patch)
        assert run("predict", folder, "--out", out, monkeypatch=patch) == 130
    (out / ".unfinished" / "report.jsonl").write_text("{")
    assert run("predict", folder, "--out", out, monkeypatch=monkeypatch) == 2
    assert "unfinished run that is damaged; remove" in capsys.readouterr().err.replace("\n", " ")


def test_two_processes_do_not_share_a_folder(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    with locked(out):
        assert run("predict", folder, "--out", out, monkeypatch=monkeypatch) == 2
    printed = capsys.readouterr().err.replace("\n", " ")
    assert f"is in use by another keepad (process {os.getpid()})" in printed
    assert list(out.iterdir()) == []
    assert run("predict", folder, "--out", out, monkeypatch=monkeypatch) == 0


def test_masks_and_a_coco_file(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    arguments = ("predict", folder, "--out", out, "--no-overlays", "--masks", "--coco", "--threshold", 0.5)
    assert run(*arguments, monkeypatch=monkeypatch) == 0
    assert sorted(path.name for path in out.iterdir()) == ["masks", "predictions.jsonl", "regions.coco.json"]
    loaded = COCO(str(out / "regions.coco.json"))
    rows = lines(out)
    assert [image["file_name"] for image in loaded.loadImgs(loaded.getImgIds())] == [row["path"] for row in rows]
    for number, row in enumerate(rows, 1):
        path = Path(str(row["path"]))
        mask = np.asarray(Image.open(out / "masks" / f"{path.parent.name}__{path.name}.png")) == 255
        assert mask.shape == (30, 40)
        annotations = loaded.loadAnns(loaded.getAnnIds(imgIds=[number]))
        assert row["regions_total"] == len(annotations)
        regions: Any = row["regions"]
        assert [region["box"][:2] for region in regions] == [annotation["bbox"][:2] for annotation in annotations]
        decoded = sum((loaded.annToMask(annotation) for annotation in annotations), np.zeros((30, 40)))
        assert np.array_equal(decoded, mask)


@pytest.mark.parametrize("option", ["--masks", "--coco"])
def test_masks_and_regions_need_a_threshold(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    assert run("predict", folder, "--out", tmp_path / "out", option, monkeypatch=monkeypatch) == 2
    assert "need a threshold for pixels" in capsys.readouterr().err.replace("\n", " ")
    assert not (tmp_path / "out").exists()


def test_models_lists_every_backbone_and_checkpoint() -> None:
    result = CliRunner().invoke(app, ["models"], env={"COLUMNS": "300"})
    assert result.exit_code == 0
    carriers = [spec.carrier for spec in BACKBONES.values() if spec.carrier]
    packages = [f"{carrier.package} {carrier.version}" for carrier in carriers]
    for name in (*BACKBONES, *bundled_checkpoints(), *packages):
        assert name in result.stdout


def test_models_breaks_no_name_at_100_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    from keepad.backbone import BACKBONES

    monkeypatch.setattr("keepad.console.stdout", Console(width=100))  # consoles read COLUMNS when they are made
    stdout = CliRunner().invoke(app, ["models"]).stdout
    assert max(map(len, stdout.splitlines())) <= 100
    for spec in BACKBONES.values():
        assert spec.name in stdout
        assert not spec.tag or f"timm hub: {spec.architecture}.{spec.tag}" in stdout
        assert not spec.carrier or spec.carrier.source in stdout
    assert "none stated" in stdout


@pytest.mark.weights
@pytest.mark.shared
def test_real_images_with_the_real_detector_and_a_real_interrupt(shared_data: Path, tmp_path: Path) -> None:
    """A subprocess, interrupted by SIGINT after the first lines."""
    out = tmp_path / "out"
    command = [
        sys.executable,
        "-m",
        "keepad",
        "predict",
        str(shared_data / "mvtec" / "hazelnut" / "test"),
        "--out",
        str(out),
    ]
    process = subprocess.Popen(
        command,
        env={**os.environ, "COLUMNS": "200"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        # children of a background shell ignore SIGINT
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline and process.poll() is None:
        if (out / "predictions.jsonl").exists() and (out / "predictions.jsonl").read_text().count("\n") >= 2:
            process.send_signal(signal.SIGINT)
            break
        time.sleep(0.1)
    printed = process.communicate(timeout=240)[0].decode()
    assert process.returncode == 130, printed
    assert "Traceback" not in printed
    rows = lines(out)
    assert 2 <= len(rows) < 110
    assert (out / "report.html").is_file()
    assert all(0 < float(str(row["keep_final"])) < float(str(row["keep_shallow"])) < 0.51 for row in rows)
