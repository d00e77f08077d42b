"""Fixtures of scoring at scale: images, and a checkpoint of the small random network for worker processes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from keepad.network import Network
from keepad.scale.run import DetectorOptions
from receivers import png


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Nine images, one of them broken, in nested folders, with a file that is none."""
    for number in range(9):
        path = tmp_path / "photos" / f"part{number % 2}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(number)[: 200 if number == 4 else None])
    (tmp_path / "photos" / "notes.txt").write_text("no image")
    return tmp_path / "photos"


@pytest.fixture(scope="session")
def exported_options(folders: dict[str, Path]) -> DetectorOptions:
    """How to open that network from a file, as worker processes do."""
    return DetectorOptions(str(folders["openvino"]), "prune70")


@pytest.fixture
def tiny_options(make_tiny: Callable[[], Network], monkeypatch: pytest.MonkeyPatch) -> DetectorOptions:
    """The same, opened in this process only."""
    from keepad import loading
    from keepad.detector import Detector

    monkeypatch.setattr(loading, "load", lambda what=None, *, point="prune50", **_: Detector(make_tiny(), point=point))
    return DetectorOptions(point="prune70")
