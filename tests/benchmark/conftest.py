"""Images and a plan that the tests of timing share."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from PIL import Image

from keepad.benchmark import BenchmarkPlan, Record, TimedImages, time_network
from keepad.network import Network


@pytest.fixture(scope="session")
def squares() -> TimedImages:
    """Three images of coloured squares on a gradient."""
    rng = np.random.default_rng(0)
    images = []
    for _ in range(3):
        pixels = np.tile(np.linspace(40, 200, 96, dtype=np.uint8)[:, None, None], (1, 96, 3))
        row, column = rng.integers(0, 72, 2)
        pixels[row : row + 20, column : column + 20] = rng.integers(0, 255, 3)
        images.append(Image.fromarray(pixels))
    return TimedImages("squares", ("a.png", "b.png", "c.png"), tuple(images))


@pytest.fixture(scope="session")
def plan() -> BenchmarkPlan:
    return BenchmarkPlan(backbones=("vit_tiny_patch16_224",), batches=(1, 2), threads=(1,), warmup=1, repeats=2)


@pytest.fixture(scope="session")
def records(make_tiny: Callable[[], Network], plan: BenchmarkPlan, squares: TimedImages) -> list[Record]:
    return [record for group in time_network(make_tiny(), plan, squares, weights="random") for record in group]
