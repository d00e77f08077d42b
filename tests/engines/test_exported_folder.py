"""Exported folders: opened by load(), and refused in one sentence where they cannot be used."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from keepad.engines import EngineNetwork, is_exported, open_network
from keepad.engines.folder import DESCRIPTION, FORMAT
from keepad.errors import KeepADError
from keepad.loading import load, parse_engine


def silent(line: str) -> None:
    """Ignore a line of progress."""


@pytest.fixture
def folder(folders: dict[str, Path], tmp_path: Path) -> Path:
    """An exported folder that a test may damage."""
    return shutil.copytree(folders["onnx"], tmp_path / "folder")


@pytest.mark.parametrize("engine", ["auto", "onnx"])
def test_load_opens_a_folder_with_its_own_engine(folder: Path, engine: str) -> None:
    lines: list[str] = []
    detector = load(folder, point="prune70", engine=engine, say=lines.append)
    assert isinstance(detector.network, EngineNetwork)
    assert detector.point.name == "prune70"
    assert lines == ["engine: onnx fp32 on the CPU, as exported"]


@pytest.mark.parametrize("engine", ["openvino", "torch"])
def test_load_refuses_another_engine_than_that_of_the_folder(folder: Path, engine: str) -> None:
    with pytest.raises(KeepADError, match=rf"{folder} was exported for onnx, not for {engine}; leave the engine out\."):
        load(folder, engine=engine, say=silent)


@pytest.mark.parametrize(
    ("engine", "sentence"),
    [
        ("warp", r"there is no engine called 'warp'; choose one of auto, torch, openvino, onnx\."),
        ("", "there is no engine called ''"),
        ("auto:bf16", "auto takes no precision; leave ':bf16' out, or name openvino or onnx"),
        ("torch:fp32", "torch takes no precision; leave ':fp32' out"),
    ],
)
def test_an_unknown_engine_is_refused(folder: Path, engine: str, sentence: str) -> None:
    with pytest.raises(KeepADError, match=sentence):
        parse_engine(engine)
    with pytest.raises(KeepADError, match=sentence):
        load(folder, engine=engine, say=silent)


@pytest.mark.parametrize(
    ("engine", "parts"),
    [
        ("auto", ("auto", "fp32")),
        ("torch", ("torch", "fp32")),
        ("onnx", ("onnx", "fp32")),
        ("openvino:int8", ("openvino", "int8")),
    ],
)
def test_an_engine_is_split_from_its_precision(engine: str, parts: tuple[str, str]) -> None:
    assert parse_engine(engine) == parts


@pytest.mark.parametrize("name", ["middle.onnx", "scores.onnx"])
def test_a_damaged_or_missing_file_is_refused(folder: Path, name: str) -> None:
    sentence = rf"{name} is missing or not the file that was exported; export it again\."
    (folder / name).write_bytes(b"nothing")
    with pytest.raises(KeepADError, match=sentence):
        open_network(folder)
    (folder / name).unlink()
    with pytest.raises(KeepADError, match=sentence):
        open_network(folder)


@pytest.mark.parametrize("content", ["{}", "[]", "no JSON", f'{{"format": {FORMAT}}}'])
def test_a_damaged_description_is_refused(folder: Path, content: str) -> None:
    (folder / DESCRIPTION).write_text(content)
    with pytest.raises(KeepADError, match=rf"{DESCRIPTION} is damaged; export it again\."):
        open_network(folder)


@pytest.mark.parametrize("version", [5, 99])
def test_a_folder_of_another_format_is_refused(folder: Path, version: int) -> None:
    description = json.loads((folder / DESCRIPTION).read_text())
    (folder / DESCRIPTION).write_text(json.dumps({**description, "format": version}))
    for open_folder in (open_network, load):
        with pytest.raises(
            KeepADError, match=rf"^{folder} was exported by another version of KeepAD; export it again\.$"
        ):
            open_folder(folder)


def test_a_folder_without_description_is_no_exported_network(tmp_path: Path) -> None:
    assert not is_exported(tmp_path)
    with pytest.raises(KeepADError, match="is no exported network"):
        open_network(tmp_path)


@pytest.mark.parametrize(
    "changed",
    [
        {"engine": "../engine"},
        {"files": {"../../elsewhere": "0"}},
        {"files": {}},
        {"files": [1]},
        {"image_size": [10**9, 10**9]},
        {"patch": [0, 0]},
        None,
    ],
)
def test_a_description_that_lies_is_refused(folder: Path, changed: dict[str, Any] | None) -> None:
    fields = json.loads((folder / "engine.json").read_text())
    text = "[" * 100_000 if changed is None else json.dumps({**fields, **changed})
    (folder / "engine.json").write_text(text)
    with pytest.raises(KeepADError, match="export it again"):
        open_network(folder)
