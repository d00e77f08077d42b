"""How soon drift is found, and how often where there is none:
`python benchmarks/drift.py --data ../shared/data --out docs/decisions/drift.md`.

Good images of unseen products are measured as they are, blurred by 2 pixels, and 10 % darker; another product is the
fourth kind. Streams are drawn from these: good images, then as many normal ones, then drift. The delay counts images
of the drift until the alarm. Streams without drift are as long as the horizon of the false-alarm rate. What was
measured is kept beside the page (.json); an interrupted run goes on there.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image, ImageEnhance, ImageFilter

from keepad.arrays import Array
from keepad.console import command_line, progress
from keepad.data import read_dataset
from keepad.decisions import HORIZON, WATCHED, DriftMonitor, DriftWatch
from keepad.detector import Detector
from keepad.evaluate.markdown import table
from keepad.files import replace_text
from keepad.images import read_image, spread
from keepad.loading import load

# Product: model that has not seen it, and another product of those measured by that model.
PRODUCTS = {
    "mtd/magnetic_tile": ("m2i", "ksdd/commutator"),
    "ksdd/commutator": ("m2i", "mtd/magnetic_tile"),
    "mvtec/hazelnut": ("i2m", None),
}
CHANGES: dict[str, Callable[[Image.Image], Image.Image]] = {
    "no change": lambda image: image,
    "blur 2 px": lambda image: image.filter(ImageFilter.GaussianBlur(2)),
    "10 % darker": lambda image: ImageEnhance.Brightness(image).enhance(0.9),
}
IMAGES = 60  # of each product
GOOD, FALSE_ALARMS, SOON = 100, 0.01, 50

Measured = dict[str, dict[str, list[list[float]]]]  # by product and change: score, brightness, sharpness of each image


def measure(data: Path, file: Path) -> Measured:
    """Values of every good image of the products under every change, as kept in the file or measured now."""
    known: Measured = json.loads(file.read_text()) if file.exists() else {}
    groups = read_dataset(data).by_class()
    detectors: dict[str, Detector] = {}
    for product, (model, _) in PRODUCTS.items():
        if product in known:
            continue
        detector = detectors.setdefault(model, load(model, point="prune70", engine="torch"))
        suite, cls = product.split("/")
        paths = spread([sample.image for sample in groups[suite, cls] if sample.label == 0], IMAGES)
        rows: dict[str, list[list[float]]] = {name: [] for name in CHANGES}
        with progress(product, len(paths)) as advance:
            for path in paths:
                image = read_image(path)
                for name, change in CHANGES.items():
                    prediction = detector(change(image))
                    values = prediction.pred_score, prediction.brightness, prediction.sharpness
                    rows[name].append([round(value, 6) for value in values])
                advance()
        known[product] = rows
        replace_text(file, json.dumps(known))
    return known


def draw(pool: Array, count: int, random: np.random.Generator) -> Array:
    """(count, quantities) values of images drawn with replacement."""
    drawn: Array = pool[random.integers(0, len(pool), count)]
    return drawn


def delays(pool: Array, changed: Array, streams: int, *, scores_only: bool) -> tuple[list[int], int]:
    """Delay of each stream, and the number of streams with an alarm before the drift; a miss counts as 500."""
    found, early = [], 0
    for seed in range(streams):
        random = np.random.default_rng(seed)
        good, before = draw(pool, GOOD, random), draw(pool, GOOD, random)
        names = WATCHED[:1] if scores_only else WATCHED
        watch = DriftWatch(dict(zip(names, good.T, strict=False)), false_alarms=FALSE_ALARMS, seed=seed)
        for row in [*before, *draw(changed, 500, random)]:
            watch.update(dict(zip(names, row, strict=False)))
            if watch.alarm:
                break
        images = watch.state.images
        early += images <= GOOD
        if images > GOOD:
            found.append(images - GOOD)
    return found, early


def silent(pool: Array, streams: int) -> int:
    """Streams of 10,000 normal images that raise an alarm."""
    alarms = 0
    for seed in range(streams):
        random = np.random.default_rng([1, seed])
        good, stream = draw(pool, GOOD, random), draw(pool, HORIZON, random)
        for number in range(len(WATCHED)):
            rate = FALSE_ALARMS / len(WATCHED)
            monitor = DriftMonitor(good[:, number], false_alarms=rate, seed=seed + number)
            for value in stream[:, number]:
                monitor.update(float(value))
                if monitor.alarm:
                    break
            if monitor.alarm:
                alarms += 1
                break
    return alarms


def page(measured: Measured, streams: int, command: str) -> str:
    """The tables."""
    pools = {product: {name: np.array(rows) for name, rows in of.items()} for product, of in measured.items()}
    rows, quiet = [], []
    with progress("streams", len(PRODUCTS)) as advance:
        for product, (_, other) in PRODUCTS.items():
            pool = pools[product]["no change"]
            kinds = {name: pools[product][name] for name in CHANGES if name != "no change"}
            if other is not None:
                kinds[f"another product ({other})"] = pools[other]["no change"]
            for kind, changed in kinds.items():
                found, early = delays(pool, changed, streams, scores_only=False)
                alone, _ = delays(pool, changed, streams, scores_only=True)
                soon = np.mean(np.array(found) <= SOON)
                cells = [np.median(found), np.percentile(found, 95), 100 * soon, np.median(alone), early]
                rows.append([product, kind, *(f"{cell:.0f}" for cell in cells)])
            calm = max(1, streams // 10)
            quiet.append([product, str(len(pool)), f"{silent(pool, calm)} of {calm}"])
            advance()
    columns = ["product", "drift", "median delay", "95 %", f"within {SOON}, %", "median, scores only", "too early"]
    blocks = [
        f"Made by `{command}`; do not edit.",
        "# Delay of drift detection",
        f"{streams} streams a row: {GOOD} good images, {GOOD} normal ones, then drift; scores at prune70 by a model "
        "that has not seen the product, with brightness and sharpness watched beside them, at most "
        f"{100 * FALSE_ALARMS:g} % false alarms in {HORIZON:,} images. Delays are in images of the drift; 500 is not "
        "found. Too early: streams with an alarm before the drift.",
        table(columns, rows, words=2),
        f"## Streams of {HORIZON:,} normal images",
        "Resampled from the good images; streams with an alarm.",
        table(["product", "good images", "alarms"], quiet),
    ]
    return "\n\n".join(blocks) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="a folder with all suites")
    parser.add_argument("--out", type=Path, required=True, help="the page, a .md file")
    parser.add_argument("--streams", type=int, default=100, help="streams of each kind")
    args = parser.parse_args()
    measured = measure(args.data, args.out.with_suffix(".json"))
    command = command_line(["python", "benchmarks/drift.py", *sys.argv[1:]])
    replace_text(args.out, page(measured, args.streams, command))


if __name__ == "__main__":
    main()
