"""Tiles against squashing on large sheets with small defects: accuracy, time and memory.

    python -m keepad.studies.sheets --data ../shared/data --out docs/results/sheets.md

A sheet is plain but for one part, which is laid with real images of one class at native scale; real defects of that
class, 6 to 40 pixels long, are pasted on the part and beside it. Demo surfaces and their painted defects give sheets
that may be shown. Sheets, and the state of the evaluations, are kept below --work.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from keepad.benchmark.schedule import schedule
from keepad.console import progress
from keepad.data import Dataset, read_dataset
from keepad.detector import Detector
from keepad.evaluate import Options, Results, evaluate, unseen
from keepad.framing import SQUASHED, Framing
from keepad.loading import load
from keepad.studies.composing import PLAIN, compose, demo_surfaces
from keepad.tiles import Tiling

MODELS = ("m2i", "i2m")
CLASSES = {"m2i": ("mtd/magnetic_tile", "mpdd/bracket_brown"), "i2m": ("mvtec/pill", "mvtec/screw")}
POINTS = ("dense", "prune50", "prune70")
STRIP = "ksdd"  # its images were 500 x 1260 before they were stored as squares
STRIP_SIZE = (252, 616)  # that aspect ratio with as many patches as 392 x 392
SIDE = 20_000  # of the sheet whose memory is measured
SIDE_PLAIN = 0.95  # its part alone has more tiles than share a batch
REPEATS = 5
TILED = Framing(tiles=Tiling())


@dataclass(frozen=True)
class Way:
    """A way to take a sheet, at an operating point."""

    name: str
    detector: Detector
    point: str


def accuracy(model: str, dataset: Dataset, work: Path, command: Sequence[str]) -> dict[str, Results]:
    """Results of squashing and of tiles on the sheets of a model."""
    detector = load(model, engine="torch")
    ways = {"squash": SQUASHED, "tiles": TILED}
    results = {}
    for name, framing in ways.items():
        framed = Detector(detector.network, "prune50", framing=framing)
        options = Options(command=command, progress=progress)
        results[name] = evaluate(framed, dataset, POINTS, work / "results" / model / name, options)
    return results


def accuracy_rows(results: dict[str, dict[str, Results]]) -> list[list[str]]:
    """A row for every class and point: squash, tiles and what tiles gain."""
    rows = []
    for model, ways in results.items():
        records = {
            way: {(row["suite"], row["class"], row["point"]): row for row in result.content["records"]}
            for way, result in ways.items()
        }
        for key, squash in records["squash"].items():
            tiles = records["tiles"][key]
            cells = [f"{key[0]}/{key[1]}", model, key[2]]
            for metric in ("p_auroc", "pro", "i_auroc"):
                a, b = (100 * _value(row[metric]) for row in (squash, tiles))
                cells.append(f"{a:.1f} → {b:.1f} ({b - a:+.1f})")
            rows.append([*cells, f"{100 * tiles['keep']:.1f} %"])
    return rows


def _value(entry: Any) -> float:
    """A metric of a record, with or without its bounds."""
    return float(entry["value"] if isinstance(entry, dict) else entry) if entry is not None else float("nan")


def timings(ways: Sequence[Way], sheets: Sequence[Path]) -> dict[str, list[float]]:
    """Seconds per sheet of every way in every repeat, forward pass and cutting, without decoding; interleaved."""
    images = [Image.open(path).convert("RGB") for path in sheets]
    seconds: dict[str, list[float]] = {way.name: [] for way in ways}
    for way in ways:
        way.detector(images[0], point=way.point)  # warm-up
    with progress("time", len(ways) * REPEATS) as advance:
        for turn in schedule(len(ways), REPEATS, len(images)):
            way = ways[turn.variant]
            start = time.perf_counter()
            for number in turn.batches:
                way.detector(images[number], point=way.point)
            seconds[way.name].append((time.perf_counter() - start) / len(turn.batches))
            advance()
    return seconds


def timing_rows(seconds: dict[str, list[float]], dense: str, tiled: str) -> list[list[str]]:
    """Median of each way against one dense squashed pass, and against the same tiles dense."""
    medians = {name: float(np.median(own)) for name, own in seconds.items()}
    return [
        [name, f"{1e3 * own:.0f}", f"{own / medians[dense]:.2f} x", f"{medians[tiled] / own:.1f} x"]
        for name, own in medians.items()
    ]


def memory(sheet: Path, model: str, engine: str) -> dict[str, float]:
    """Megabytes and seconds of one tiled prediction, in a process of its own."""
    code = (
        "import json, resource, sys, time, keepad\n"
        f"detector = keepad.load({model!r}, engine={engine!r}, tiles='auto', say=lambda line: None)\n"
        "from keepad.images import read_image\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3\n"
        "loaded = peak()\n"
        f"picture = read_image({str(sheet)!r})\n"
        "decoded = peak()\n"
        "start = time.perf_counter()\n"
        "prediction = detector(picture)\n"
        "seconds = time.perf_counter() - start\n"
        "print(json.dumps(dict(loaded=loaded, decoded=decoded, peak=peak(), seconds=seconds, "
        "tiles=prediction.tiles.tiles, plain=prediction.tiles.plain)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    measured: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return measured


def strip_results(data: Path, work: Path, command: Sequence[str]) -> dict[str, Results]:
    """KSDD at the square input and at its own aspect ratio, by a model that has not seen it."""
    results = {}
    for name, size in (("392x392", None), (f"{STRIP_SIZE[0]}x{STRIP_SIZE[1]}", STRIP_SIZE)):
        detector = load("m2i", engine="torch", image_size=size)
        dataset = unseen(read_dataset(data).select(suites=[STRIP]), detector)
        options = Options(command=command, progress=progress, batch_size=8)
        results[name] = evaluate(detector, dataset, POINTS, work / "results" / STRIP / name, options)
    return results


def view_rows(data: Path, work: Path, command: Sequence[str], limit: int) -> list[list[str]]:
    """What averaging one, two and four views gives on the unseen suites of both models, at prune50."""
    rows = []
    for model in MODELS:
        network = load(model, engine="torch").network
        dataset = unseen(read_dataset(data), Detector(network))
        for views in (1, 2, 4):
            detector = Detector(network, "prune50", framing=Framing(views=views))
            options = Options(command=command, progress=progress, batch_size=8, limit=limit, reference="prune50")
            result = evaluate(detector, dataset, ["prune50"], work / "results" / f"views-{model}" / str(views), options)
            point = result.averages["points"]["prune50"]
            seconds = result.content["settings"]["seconds_per_image"]["network"]
            accuracies = [_percent(point[metric]) for metric in ("i_auroc", "p_auroc", "pro")]
            rows.append([model, str(views), *accuracies, f"{1e3 * seconds:.0f}"])
    return rows


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"


def overview(results: dict[str, Results]) -> list[list[str]]:
    """I-AUROC, P-AUROC and PRO of every result at every point."""
    rows = []
    for name, result in results.items():
        for point in POINTS:
            own = result.averages["points"][point]
            rows.append([name, point, *(_percent(own[metric]) for metric in ("i_auroc", "p_auroc", "pro"))])
    return rows


def pictures(model: Detector, folder: Path, work: Path) -> list[Path]:
    """Squash and tiles of one sheet of each demo surface, as pictures."""
    written = []
    for surface in demo_surfaces():
        sheet = compose(surface, np.random.default_rng(1), (1036, 4144), PLAIN, 8)
        image = Image.fromarray(sheet.pixels)
        rows = []
        for framing in (SQUASHED, TILED):
            prediction = Detector(model.network, "prune50", framing=framing)(image)
            level = np.clip(prediction.map_at((259, 1036)) * 255, 0, 255).astype(np.uint8)
            rows.append(np.repeat(level[..., None], 3, 2))
        small = np.asarray(image.resize((1036, 259), Image.Resampling.LANCZOS))
        mask = np.asarray(Image.fromarray(sheet.mask).convert("L").resize((1036, 259), Image.Resampling.BOX)) > 0
        shown = np.concatenate([small, np.repeat(mask[..., None], 3, 2) * np.uint8(255), *rows])
        path = folder / f"sheets-{surface.name}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(shown).save(path, quality=85)
        written.append(path)
    return written
