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
from keepad.training.plan import DetectorPlan, RouterPlan
from keepad.training.recipe import RECIPES, ROUTER_RECIPES
from keepad.training.stage1 import train_detector
from keepad.training.stage2 import train_routers

OUT = Path("keepad-examples")
SIZE = (224, 224)  # height and width


def paint(period: float, hole: bool, rng: np.random.Generator) -> tuple[Image.Image, Image.Image]:
    """Stripes, with a dark square if `hole`, and the mask of that square."""
    pixels = 150 + 50 * np.sin(np.arange(SIZE[1]) / period) + rng.normal(0, 6, SIZE)
    mask = np.zeros(SIZE, np.uint8)
    top, left = rng.integers(20, 160, 2)
    mask[top : top + 40, left : left + 40] = 255 * hole
    return Image.fromarray(np.where(mask, 20, pixels).clip(0, 255).astype(np.uint8)), Image.fromarray(mask)


def main() -> None:
    rng = np.random.default_rng(0)
    for number in range(30):  # three products in the layout of MVTec AD
        period, hole = (3, 6, 12)[number % 3], number % 2 == 1
        product, kind = OUT / "source" / f"stripes{period}", "hole" if hole else "good"
        for folder in (product / "test" / kind, product / "ground_truth" / "hole"):
            folder.mkdir(parents=True, exist_ok=True)
        image, mask = paint(period, hole, rng)
        image.save(product / "test" / kind / f"{number}.png")
        if hole:
            mask.save(product / "ground_truth" / "hole" / f"{number}_mask.png")

    samples = read_dataset(OUT / "source").samples
    fabric = Fabric(accelerator="cpu", devices=1)
    dense, pruned, cache = OUT / "dense.safetensors", OUT / "mine.safetensors", OUT / "features"
    # A small input and one epoch keep this example short; leave both out for a detector to use
    recipe = replace(RECIPES["keepad"], epochs=1)
    plan = DetectorPlan(samples=samples, out=dense, recipe=recipe, sizes=(SIZE,), cache=cache)
    train_detector(plan, fabric, say=print, progress=progress)
    router_recipe = replace(ROUTER_RECIPES["keepad"], epochs=1)
    router_plan = RouterPlan(detector=dense, samples=samples, out=pruned, recipe=router_recipe, cache=cache)
    train_routers(router_plan, fabric, say=print, progress=progress)

    detector = keepad.load(pruned, engine="torch")
    for hole in (False, True):  # a product that was not in the source
        print(f"hole: {hole}, score {detector(paint(20, hole, rng)[0]).pred_score:.3f}")


if __name__ == "__main__":
    main()
