"""Images for engines and their exports."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image


@pytest.fixture(scope="session")
def image_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with three images, 0.png to 2.png, of noise with a uniform rectangle."""
    folder = tmp_path_factory.mktemp("images")
    random = np.random.default_rng(5)
    for number in range(3):
        pixels = random.integers(0, 256, (150, 170, 3), dtype=np.uint8)
        pixels[20 * number : 20 * number + 60, 30:90] = 40 * number
        Image.fromarray(pixels).save(folder / f"{number}.png")
    return folder
