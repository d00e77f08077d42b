"""keepad export: the folder, the table of differences, and requests that are refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from keepad import loading
from keepad.cli import app, main
from keepad.engines import open_network
from keepad.network import Network


def test_the_command_exports_verifies_and_prints_the_folder(
    tiny: Network, traced: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "load_network", lambda what=None, **options: tiny)
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (90, 90, 3), dtype=np.uint8)).save(tmp_path / "a.png")
    words = ["export", "--engine", "onnx", "--out", str(tmp_path / "out"), "--verify", str(tmp_path / "a.png")]
    result = CliRunner().invoke(app, words, env={"COLUMNS": "100"})
    assert result.exit_code == 0, result.output
    assert f"exported: {tmp_path / 'out'}" in result.output
    assert "prune70" in result.output
    assert "100.0%" in result.output
    info = open_network(tmp_path / "out").info
    assert (info.engine, info.precision) == ("onnx", "fp32")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--engine", "warp"], "there is no engine called 'warp'; choose one of auto, torch, openvino, onnx."),
        (["--engine", "torch"], "there is no engine called 'torch'; choose one of openvino, onnx."),
        (["--engine", "onnx:bf16"], "onnx cannot be exported as 'bf16'"),
        (["--engine", "openvino:int8"], "int8 needs source images"),
        (["--calibrate", "nowhere"], "There is no file or folder 'nowhere'"),
    ],
)
def test_impossible_exports_are_refused_before_anything_is_loaded(
    words: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def load_network(what: object = None, **options: object) -> Network:
        raise AssertionError("the network was loaded")

    monkeypatch.setattr(loading, "load_network", load_network)
    monkeypatch.setattr("sys.argv", ["keepad", "export", "--out", str(tmp_path / "out"), *words])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 2
    assert sentence in capsys.readouterr().err.replace("\n", " ")
    assert not (tmp_path / "out").exists()
