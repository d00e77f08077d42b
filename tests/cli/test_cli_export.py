"""keepad export: what is written and told, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import keepad.loading
from keepad.cli import app, main
from keepad.engines import load_engine
from keepad.network import KeepAD


def test_the_command_exports_verifies_and_says_where(
    tiny: KeepAD, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keepad.loading, "load", lambda *given, **named: tiny)
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (90, 90, 3), dtype=np.uint8)).save(tmp_path / "a.png")
    words = ["export", "--format", "onnx", "--out", str(tmp_path / "out"), "--verify", str(tmp_path / "a.png")]
    result = CliRunner().invoke(app, words, env={"COLUMNS": "100"})
    assert result.exit_code == 0, result.output
    assert "prune70" in result.output
    assert "100.0%" in result.output
    assert load_engine(tmp_path / "out").info.precision == "fp32"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--format", "warp"], "there is no engine called 'warp'; choose one of openvino, onnx."),
        (["--format", "onnx", "--precision", "bf16"], "onnx cannot be exported as 'bf16'"),
        (["--precision", "int8"], "int8 needs source images"),
        (["--calibrate", "nowhere"], "There is no file or folder 'nowhere'"),
    ],
)
def test_what_cannot_be_exported_is_refused_at_once(
    words: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["keepad", "export", "--out", str(tmp_path / "out"), *words])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 2
    assert sentence in capsys.readouterr().err.replace("\n", " ")
    assert not (tmp_path / "out").exists()
