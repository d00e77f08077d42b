"""keepad benchmark as users call it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import keepad.benchmark.records
from keepad.benchmark import TimedImages
from keepad.cli.benchmark import benchmark
from keepad.errors import KeepADError
from keepad.network import Network


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, tiny: Network) -> typer.Typer:
    monkeypatch.setattr(keepad.benchmark.records, "untrained", lambda name: tiny)
    app = typer.Typer()
    app.command()(benchmark)
    return app


def test_command_prints_tables_and_writes_both_files(
    command: typer.Typer, tmp_path: Path, squares: TimedImages, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in").mkdir()
    squares.images[0].save(tmp_path / "in" / "a.png")
    words = (
        "--backbones vit_tiny_patch16_224 --points prune50 --batch 1 --threads 1 --warmup 1 --repeats 2 --device cpu"
    )
    paths = ["--images", str(tmp_path / "in"), "--out", str(tmp_path / "new" / "speed.json")]
    monkeypatch.setattr(sys, "argv", ["keepad", "benchmark", *words.split(), *paths])
    result = CliRunner().invoke(command, [*words.split(), *paths], env={"COLUMNS": "80"})
    assert result.exit_code == 0, result.output
    assert "prune50" in result.output
    content = json.loads((tmp_path / "new" / "speed.json").read_text())
    assert set(content) == {"settings", "records"}
    assert [record["point"] for record in content["records"]] == ["dense", "prune50"]
    assert (tmp_path / "new" / "speed.md").read_text().startswith("Made by `keepad benchmark --backbones vit_tiny")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--batch", "one"], "--batch takes whole numbers"),
        (["--threads", "1,x"], "--threads takes whole numbers"),
        (["--engine", "warp"], "no engine called"),
        (["--engine", "torch,auto"], "no engine called 'auto'"),
        (["--engine", "onnx:bf16"], "onnx cannot be exported as 'bf16'"),
        (["--exported", "nowhere"], "nowhere is not an exported detector"),
        (["--model", "default", "--backbones", "vit_tiny_patch16_224"], "leave --backbones out"),
        (["--out", "speed.md"], "must name a .json file"),
    ],
)
def test_command_refuses(command: typer.Typer, words: list[str], sentence: str) -> None:
    result = CliRunner().invoke(command, words)
    assert isinstance(result.exception, KeepADError)
    assert sentence in str(result.exception)
