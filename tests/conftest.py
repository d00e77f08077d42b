"""Fixtures of all tests: a small random network with its exports."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import pytest
import torch

from keepad.assembly import with_fresh_parts
from keepad.backbone import build_backbone
from keepad.console import Say
from keepad.engines.export.segments import Segment
from keepad.network import Network
from random_weights import lively

pytest_plugins = ["left_out", "browser", "shared_data"]

_EXPORTS = {"folders", "traced"}  # fixtures of the exports that tests share


def pytest_configure(config: pytest.Config) -> None:
    """Share the cores among the workers of pytest-xdist, and with the processes that these start."""
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if workers > 1:
        threads = max(1, (os.cpu_count() or 1) // workers)
        os.environ["OMP_NUM_THREADS"] = str(threads)
        torch.set_num_threads(threads)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests of a file on one worker, and all that need an export on another: it takes a minute to make."""
    for item in items:
        exports = _EXPORTS & set(getattr(item, "fixturenames", ()))
        item.add_marker(pytest.mark.xdist_group("exports" if exports else item.nodeid.partition("::")[0]))


@pytest.fixture(scope="session")
def make_tiny() -> Callable[[], Network]:
    """Makes a new copy, at every call, of a network on a random 12-block ViT, 192 wide, with a 9x11 grid."""
    backbone, spec = build_backbone("vit_tiny_patch16_224", seed=1)
    original = with_fresh_parts(lively(backbone), spec, seed=2, image_size=(9 * 16, 11 * 16))
    return lambda: deepcopy(original)


@pytest.fixture
def tiny(make_tiny: Callable[[], Network]) -> Network:
    """That network; a copy of its own for every test, which may change it."""
    return make_tiny()


@pytest.fixture(scope="session")
def folders(make_tiny: Callable[[], Network], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """That network, exported for both engines."""
    from keepad.engines.export import export

    root = tmp_path_factory.mktemp("exported")
    graphs = export(make_tiny(), root / "onnx", engine="onnx")
    with pytest.MonkeyPatch.context() as patch:
        copy_graphs(graphs, patch)
        return {"onnx": graphs, "openvino": export(make_tiny(), root / "openvino", engine="openvino")}


@pytest.fixture
def traced(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Exports of that network copy its graphs from `folders`; tracing them takes most of the time of an export."""
    copy_graphs(folders["onnx"], monkeypatch)


def copy_graphs(folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Copy the graphs of an export for ONNX Runtime in fp32, which holds them as they were traced."""
    from keepad.engines.export import writing

    def write_graphs(segments: dict[str, Segment], to: Path, say: Say) -> dict[str, Path]:
        return {name: Path(shutil.copy(folder / f"{name}.onnx", to / f"{name}.onnx")) for name in segments}

    patch.setattr(writing, "write_graphs", write_graphs)
