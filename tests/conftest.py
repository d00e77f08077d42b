"""Fixtures of all tests: a small random network with its exports."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import pytest

from keepad.assembly import with_fresh_parts
from keepad.backbone import build_backbone
from keepad.network import Network
from random_weights import lively

pytest_plugins = ["shared_data"]


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
    return {engine: export(make_tiny(), root / engine, engine=engine) for engine in ("openvino", "onnx")}
