"""Small data sets on disk, on which a tiny detector can be evaluated in seconds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

SIZE = (88, 72)  # width and height; not the network's, so that images and masks are resized
POINTS = ("dense", "prune70")


def draw_class(folder: Path, *, good: int, defects: list[int], masks: bool = True, seed: int = 0) -> None:
    """A class in MVTec's layout: noise, and on anomalous images a bright square of so many pixels a side."""
    noise = np.random.default_rng(seed)
    width, height = SIZE

    def save(path: Path, pixels: np.ndarray) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.astype(np.uint8)).save(path)

    save(folder / "train" / "good" / "000.png", np.zeros((height, width, 3)))
    for number in range(good):
        save(folder / "test" / "good" / f"{number:03d}.png", noise.integers(0, 120, (height, width, 3)))
    for number, side in enumerate(defects):
        image, mask = noise.integers(0, 120, (height, width, 3)), np.zeros((height, width))
        top, left = noise.integers(0, height - side), noise.integers(0, width - side)
        image[top : top + side, left : left + side] += 120
        mask[top : top + side, left : left + side] = 255
        save(folder / "test" / "spot" / f"{number:03d}.png", image)
        if masks:
            save(folder / "ground_truth" / "spot" / f"{number:03d}_mask.png", mask)


def draw_suites(root: Path) -> Path:
    """Two suites: `parts` with two classes, and `brainmri`, which has no masks; 14 test images."""
    draw_class(root / "parts" / "bolt", good=3, defects=[6, 20, 50], seed=1)
    draw_class(root / "parts" / "cap", good=2, defects=[10, 30], seed=2)
    draw_class(root / "brainmri" / "brain", good=2, defects=[20, 40], masks=False, seed=3)
    return root


def draw_part(root: Path) -> Path:
    """One product: striped parts that resemble each other, 14 good ones and 10 with a spot and its mask."""
    folder = root / "part"
    for number in range(24):
        noise = np.random.default_rng(number).normal(0, 6, (72, 88, 3))
        pixels = 120 + 60 * np.sin(np.linspace(0, 12, 72))[:, None, None] + noise
        kind, mask = ("good" if number < 14 else "spot"), np.zeros((72, 88), np.uint8)
        if kind == "spot":
            pixels[20:44, 20 + number : 44 + number] = (250, 20, 20)
            mask[20:44, 20 + number : 44 + number] = 255
            (folder / "ground_truth" / "spot").mkdir(parents=True, exist_ok=True)
            Image.fromarray(mask).save(folder / "ground_truth" / "spot" / f"{number}_mask.png")
        (folder / "test" / kind).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / "test" / kind / f"{number}.png")
    return root


def numbers_in(out: Path) -> dict[str, Any]:
    """What results.json holds, less what a clock decides."""
    content = json.loads((out / "results.json").read_text())
    content["settings"].pop("finished")
    content["settings"].pop("seconds_per_image")
    return content
