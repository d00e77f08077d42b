"""Shared fixtures: a source of three painted products, random weights, and one feature cache."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors.torch import save_file

from keepad.backbone import build_backbone
from random_weights import lively
from training_data import BACKBONE


@pytest.fixture(scope="session")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "random.safetensors"
    save_file(lively(build_backbone(BACKBONE, seed=1)[0]).vit.state_dict(), path)
    return path


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three products in MVTec's tree: stripes, noise and dots; the defect is a dark square somewhere."""
    root = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    row, column = np.mgrid[:224, :224]
    surfaces = {
        "stripes": 150 + 40 * np.sin(column / 5),
        "noise": np.full((224, 224), 140.0),
        "dots": 150 + 50 * (np.sin(column / 6) * np.sin(row / 6) > 0.3),
    }
    for name, surface in surfaces.items():
        for number in range(10):
            bad = number % 2
            pixels = surface + rng.normal(0, 6, surface.shape)
            mask = np.zeros(surface.shape, dtype=bool)
            if bad:
                top, left = rng.integers(20, 160, 2)
                mask[top : top + 40, left : left + 40] = True
                pixels[mask] = 20
            _save(root / name / "test" / ("cut" if bad else "good") / f"{number}.png", pixels)
            if bad:
                _save(root / name / "ground_truth" / "cut" / f"{number}_mask.png", mask * 255.0)
    return root


def _save(path: Path, values: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(values.clip(0, 255).astype(np.uint8)).save(path)


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")
