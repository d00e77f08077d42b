"""What tests share: the real images beside the project, the default backbone, and a small random detector."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

from keepad.assembly import with_fresh_parts
from keepad.backbone import Backbone, build_backbone, load_backbone
from keepad.network import Network
from random_weights import lively

SHARED = Path(__file__).resolve().parents[2] / "shared"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The real images in ../shared/data; without them the test fails, so that a green run means they were used."""
    folder = SHARED / "data"
    if not (folder / "index.csv").is_file():
        pytest.fail(f'real images are needed in {folder}; without them run pytest -m "not shared"', pytrace=False)
    return folder


@pytest.fixture(scope="session")
def default_backbone() -> Backbone:
    """The bundled default backbone with its pretrained weights."""
    return load_backbone()[0]


@pytest.fixture(scope="session")
def tiny_original() -> Network:
    """A detector on a random 12-block ViT, 192 wide, with a 9x11 grid."""
    backbone, spec = build_backbone("vit_tiny_patch16_224", seed=1)
    return with_fresh_parts(lively(backbone), spec, seed=2, image_size=(9 * 16, 11 * 16))


@pytest.fixture
def tiny(tiny_original: Network) -> Network:
    """A copy of it that a test may change."""
    return copy.deepcopy(tiny_original)


@pytest.fixture(scope="session")
def folders(tiny_original: Network, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """That detector, exported for both engines."""
    from keepad.engines.export import export

    root = tmp_path_factory.mktemp("exported")
    return {engine: export(tiny_original, root / engine, engine=engine) for engine in ("openvino", "onnx")}
