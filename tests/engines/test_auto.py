"""engine="auto": OpenVINO where it is installed, verified and faster; torch elsewhere, and one line that says why."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from keepad.engines import EngineNetwork, auto
from keepad.engines.auto import choose_network
from keepad.engines.export.cached import cached_export
from keepad.engines.folder import DESCRIPTION
from keepad.network import Network

MEASUREMENT = "auto.json"


@pytest.fixture(scope="module")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder for all tests, so that the network is exported once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def cache(shared_cache: Path, folders: dict[str, Path], tiny: Network, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache with the export of the network, without measurements."""
    monkeypatch.setenv("KEEPAD_CACHE", str(shared_cache))
    if not (folder := cached_export(tiny, "openvino")).exists():
        shutil.copytree(folders["openvino"], folder)
    for file in shared_cache.rglob(MEASUREMENT):
        file.unlink()
    return shared_cache


@pytest.fixture
def set_times(monkeypatch: pytest.MonkeyPatch) -> Callable[[float, float], list[str]]:
    """Sets the milliseconds of torch and OpenVINO; returns the list of measurements made from then on."""

    def apply(torch: float, openvino: float) -> list[str]:
        measurements: list[str] = []

        def times(networks: dict[str, object], batches: object) -> dict[str, float]:
            measurements.append(" and ".join(networks))
            return {"torch": torch, "openvino": openvino}

        monkeypatch.setattr(auto, "_times", times)
        return measurements

    return apply


def test_a_faster_verified_export_is_chosen_and_its_measurement_reused(
    tiny: Network, cache: Path, set_times: Callable[[float, float], list[str]]
) -> None:
    measurements, lines = set_times(30.0, 20.0), list[str]()
    chosen = choose_network(tiny, say=lines.append)
    assert isinstance(chosen, EngineNetwork)
    assert chosen.info.digests == tiny.digests()
    assert lines[-1] == "engine: openvino fp32 on the CPU (OpenVINO 1.50x as fast as torch at prune50, verified)"
    assert "verifying the OpenVINO export against torch and timing both, once" in lines

    lines.clear()
    assert isinstance(choose_network(tiny, say=lines.append), EngineNetwork)
    assert len(lines) == 1
    assert measurements == ["torch and openvino"]

    (file,) = cache.rglob(MEASUREMENT)
    measured = json.loads(file.read_text())
    measured["machine"]["openvino"] = "0.1"
    file.write_text(json.dumps(measured))
    choose_network(tiny, say=lines.append)
    assert len(measurements) == 2, "another version is measured again"


def test_a_damaged_measurement_is_repeated(
    tiny: Network, cache: Path, set_times: Callable[[float, float], list[str]]
) -> None:
    measurements = set_times(30.0, 20.0)
    choose_network(tiny, say=lambda line: None)
    (file,) = cache.rglob(MEASUREMENT)
    file.write_text("[")
    choose_network(tiny, say=lambda line: None)
    assert len(measurements) == 2


def test_a_slower_export_is_not_chosen(
    tiny: Network, cache: Path, set_times: Callable[[float, float], list[str]]
) -> None:
    set_times(20.0, 40.0)
    lines: list[str] = []
    assert choose_network(tiny, say=lines.append) is tiny
    assert lines[-1] == "engine: torch on cpu (OpenVINO 0.50x as fast as torch at prune50, verified)"


def test_measured_times_decide(tiny: Network, cache: Path) -> None:
    chosen = choose_network(tiny, say=lambda line: None)
    (file,) = cache.rglob(MEASUREMENT)
    times = json.loads(file.read_text())["ms"]
    assert set(times) == {"torch", "openvino"}
    assert isinstance(chosen, EngineNetwork) == (times["openvino"] < times["torch"])


def test_an_export_that_differs_from_torch_is_not_used(
    tiny: Network, cache: Path, set_times: Callable[[float, float], list[str]]
) -> None:
    measurements = set_times(30.0, 20.0)
    choose_network(tiny, say=lambda line: None)
    (measurement,), (file,) = cache.rglob(MEASUREMENT), cache.rglob(DESCRIPTION)
    measurement.unlink()
    original = file.read_text()
    description = json.loads(original)
    description["calibration"]["patch_weight"] = 0.0
    description["placement"]["base_layers"] = description["placement"]["mid_layers"]
    file.write_text(json.dumps(description))
    lines: list[str] = []
    try:
        assert choose_network(tiny, say=lines.append) is tiny
    finally:
        file.write_text(original)
    sentence = "engine: torch on cpu; OpenVINO was not used: the exported network differs from torch at dense"
    assert lines[-1].startswith(sentence)
    assert len(measurements) == 1
    assert not measurement.exists()


@pytest.mark.parametrize("package", ["openvino", "onnxscript"])
def test_torch_runs_where_a_package_is_missing(
    tiny: Network, cache: Path, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    lines: list[str] = []
    assert choose_network(tiny, say=lines.append) is tiny
    assert lines == [f"engine: torch on cpu ({package} not installed)"]


def test_torch_runs_where_the_cache_cannot_be_written(
    tiny: Network, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("KEEPAD_CACHE", str(tmp_path / "file"))
    lines: list[str] = []
    assert choose_network(tiny, say=lines.append) is tiny
    assert lines[-1].startswith("engine: torch on cpu; OpenVINO was not used: ")
