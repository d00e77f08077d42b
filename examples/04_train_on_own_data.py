"""Train a detector and its routers on labelled images of three products, and use them on a fourth.

python examples/04_train_on_own_data.py
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from lightning_fabric import Fabric
from PIL import Image

import keepad
from keepad.console import progress
from keepad.data import read_dataset
from keepad.training.recipe import RECIPES, ROUTER_RECIPES
from keepad.training.stage1 import Plan, train_detector
from keepad.training.stage2 import RouterPlan, train_routers

OUT = Path("keepad-examples")


def paint(folder: Path, count: int, period: float) -> None:
    """Stripes with and without a dark square, in the layout of MVTec AD."""
    rng = np.random.default_rng(0)
    for number in range(count):
        kind = "hole" if number % 2 else "good"
        pixels = 150 + 50 * np.sin(np.mgrid[:224, :224][1] / period) + rng.normal(0, 6, (224, 224))
        mask = np.zeros((224, 224), np.uint8)
        top, left = rng.integers(20, 160, 2)
        mask[top : top + 40, left : left + 40] = 255 * (kind == "hole")
        pixels[mask > 0] = 20
        files = {folder / "test" / kind / f"{number}.png": pixels.clip(0, 255).astype(np.uint8)}
        if kind == "hole":
            files[folder / "ground_truth" / kind / f"{number}_mask.png"] = mask
        for path, values in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(values).save(path)


def main() -> None:
    for name, period in {"narrow": 3, "middle": 6, "wide": 12}.items():
        paint(OUT / "source" / name, count=10, period=period)
    paint(OUT / "target" / "wider", count=2, period=20)

    samples = read_dataset(OUT / "source").samples
    fabric = Fabric(accelerator="cpu", devices=1)
    dense, pruned, cache = OUT / "dense.safetensors", OUT / "mine.safetensors", OUT / "features"
    # A small input and one epoch keep this example short; leave both out in earnest
    stage1 = Plan(samples, dense, replace(RECIPES["keepad"], epochs=1), image_size=(224, 224), cache=cache)
    train_detector(stage1, fabric, say=print, progress=progress)
    stage2 = RouterPlan(dense, samples, pruned, replace(ROUTER_RECIPES["keepad"], epochs=1), cache=cache)
    train_routers(stage2, fabric, say=print, progress=progress)

    detector = keepad.load(pruned, point="prune50")
    for image in ("good/0.png", "hole/1.png"):
        print(f"{image}: score {detector(OUT / 'target' / 'wider' / 'test' / image).pred_score:.3f}")


if __name__ == "__main__":
    main()
