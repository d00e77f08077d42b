"""exported(): one export in the user's cache, whoever asks for it and however often it failed before."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from keepad.engines.export import cached
from keepad.engines.export.cached import cached_export, exported
from keepad.engines.folder import DESCRIPTION
from keepad.errors import KeepADError
from keepad.network import Network


def silent(line: str) -> None:
    """Ignore a line of progress."""


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEEPAD_CACHE", str(tmp_path / "cache"))


class Export:
    """Takes the place of the real export: writes two files, and can be made to wait or to fail."""

    def __init__(self) -> None:
        self.folders: list[Path] = []
        self.started, self.may_end = threading.Event(), threading.Event()
        self.may_end.set()
        self.fails = False

    def __call__(self, network: Network, folder: Path, **options: Any) -> None:
        self.folders.append(folder)
        folder.mkdir(parents=True)
        (folder / "early.xml").write_text(f"graph {len(self.folders)}")
        self.started.set()
        assert self.may_end.wait(30)
        if self.fails:
            raise KeepADError("the disk is full.")
        (folder / DESCRIPTION).write_text("{}")


@pytest.fixture
def export(monkeypatch: pytest.MonkeyPatch) -> Export:
    own = Export()
    monkeypatch.setattr(cached, "export", own)
    return own


def test_an_export_is_made_once(tiny: Network, export: Export) -> None:
    first = exported(tiny, "onnx", say=silent)
    assert exported(tiny, "onnx", say=silent) == first == cached_export(tiny, "onnx")
    assert len(export.folders) == 1
    assert sorted(path.name for path in first.iterdir()) == sorted(["early.xml", DESCRIPTION])
    assert [path.name for path in first.parent.iterdir()] == [first.name]  # neither a lock nor a part is left


def test_who_comes_second_waits_and_takes_what_the_first_has_written(tiny: Network, export: Export) -> None:
    export.may_end.clear()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(exported, tiny, "onnx", say=silent)
        assert export.started.wait(30)
        second = pool.submit(exported, tiny, "onnx", say=silent)
        assert not cached_export(tiny, "onnx").exists()  # nothing half written is in its place
        export.may_end.set()
        folder = first.result(30)
        assert second.result(30) == folder
    assert len(export.folders) == 1
    assert (folder / "early.xml").read_text() == "graph 1"


def test_a_failed_export_leaves_nothing_in_its_place_and_the_next_one_starts_anew(
    tiny: Network, export: Export
) -> None:
    export.fails = True
    with pytest.raises(KeepADError, match="the disk is full"):
        exported(tiny, "onnx", say=silent)
    assert not cached_export(tiny, "onnx").exists()
    export.fails = False
    assert (exported(tiny, "onnx", say=silent) / "early.xml").read_text() == "graph 2"


def test_a_folder_without_description_is_replaced(tiny: Network, export: Export) -> None:
    half = cached_export(tiny, "onnx")
    half.mkdir(parents=True)
    (half / "late.xml").write_text("half")
    folder = exported(tiny, "onnx", say=silent)
    assert sorted(path.name for path in folder.iterdir()) == sorted(["early.xml", DESCRIPTION])
