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
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from keepad.benchmark.schedule import schedule
from keepad.console import command_line, progress, say_on_stderr
from keepad.data import Dataset, read_dataset
from keepad.detector import Detector
from keepad.evaluate import Options, Results, evaluate, unseen
from keepad.evaluate.markdown import table
from keepad.files import replace_text
from keepad.framing import SQUASHED, Framing
from keepad.loading import load
from keepad.studies.command import run_study, study_command
from keepad.studies.composing import DEFECT_SIDES, PLAIN, compose, demo_surfaces, real_surface, write_sheets
from keepad.tiles import Tiling

MODELS = ("m2i", "i2m")
CLASSES = {"m2i": ("mtd/magnetic_tile", "mpdd/bracket_brown"), "i2m": ("mvtec/pill", "mvtec/screw")}
POINTS = ("dense", "prune50", "prune70")
TILED_POINTS = ("prune50", "prune70")  # dense tiles are timed, but not measured on every sheet
STRIP = "ksdd"  # its images were 500 x 1260 before they were stored as squares
STRIP_SIZE = (252, 616)  # that aspect ratio with as many patches as 392 x 392
SHEET = (1036, 4144)
SIDE = 20_000  # of the sheet whose memory is measured
SIDE_PLAIN = 0.98  # its part alone has more tiles than share a batch
REPEATS = 3
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
    ways = {"squash": (SQUASHED, POINTS), "tiles": (TILED, TILED_POINTS)}
    results = {}
    for name, (framing, points) in ways.items():
        framed = Detector(detector.network, "prune50", framing=framing)
        options = Options(command=command, progress=progress)
        results[name] = evaluate(framed, dataset, points, work / "results" / model / name, options)
    return results


def accuracy_rows(results: dict[str, dict[str, Results]]) -> list[list[str]]:
    """A row for every class and point: squash, tiles and what tiles gain."""
    rows = []
    for model, ways in results.items():
        records = {
            way: {(row["suite"], row["class"], row["point"]): row for row in result.content["records"]}
            for way, result in ways.items()
        }
        for key, tiles in records["tiles"].items():
            squash = records["squash"][key]
            cells = [f"{key[0]}/{key[1]}", model, key[2]]
            for metric in ("p_auroc", "pro", "i_auroc"):
                a, b = (_value(row[metric]) for row in (squash, tiles))
                cells.append(f"{a:.1f} → {b:.1f} ({b - a:+.1f})")
            rows.append([*cells, f"{tiles['keep']:.1f} %"])
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


def strip_results(data: Path, work: Path, command: Sequence[str], limit: int) -> dict[str, Results]:
    """KSDD at the square input and at its own aspect ratio, by a model that has not seen it."""
    results = {}
    for name, size in (("392x392", None), (f"{STRIP_SIZE[0]}x{STRIP_SIZE[1]}", STRIP_SIZE)):
        detector = load("m2i", engine="torch", image_size=size)
        dataset = unseen(read_dataset(data).select(suites=[STRIP]), detector)
        options = Options(command=command, progress=progress, batch_size=8, limit=limit)
        results[name] = evaluate(detector, dataset, ("dense", "prune50"), work / "results" / STRIP / name, options)
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


def strip_rows(results: dict[str, Results]) -> list[list[str]]:
    """I-AUROC, P-AUROC and PRO of both inputs at every point."""
    rows = []
    for name, result in results.items():
        for point, own in result.averages["points"].items():
            rows.append([name, point, *(_percent(own[metric]) for metric in ("i_auroc", "p_auroc", "pro"))])
    return rows


def pictures(model: Detector, folder: Path) -> list[Path]:
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


def sheets_of(model: str, data: Path, work: Path, counts: tuple[int, int]) -> Dataset:
    """The sheets of the classes of a model, and of the demo surfaces, written where they are missing."""
    folder = work / "sheets" / model
    for name in CLASSES[model]:
        suite, cls = name.split("/")
        samples = read_dataset(data).select(suites=[suite], classes=[cls], split="test").samples
        write_sheets(real_surface(samples), folder / suite, SHEET, counts)
    return read_dataset(folder)


def kept(file: Path, measure: Callable[[], Any]) -> Any:
    """What was measured before, from its file; else measured now."""
    if not file.exists():
        replace_text(file, json.dumps(measure(), indent=1))
    return json.loads(file.read_text(encoding="utf-8"))


def timed(args: Namespace) -> dict[str, list[float]]:
    """Seconds of all ways on the first sheet of the first model."""
    network = load(MODELS[0], engine="torch").network
    squash, tiles = (Detector(network, "dense", framing=framing) for framing in (SQUASHED, TILED))
    ways = [
        Way(f"{name}, {point}", own, point) for name, own in (("squash", squash), ("tiles", tiles)) for point in POINTS
    ]
    sheet = next((args.work / "sheets" / MODELS[0]).rglob("test/pasted/*.png"))
    return timings(ways, [sheet])


def measured_memory(args: Namespace) -> dict[str, dict[str, float]]:
    """Memory and time of the large sheet, in colour and in grey, by engine."""
    colour, grey = (args.work / f"large-{name}.png" for name in ("colour", "grey"))
    if not grey.exists():
        sheet = compose(demo_surfaces()[3], np.random.default_rng(5), (SIDE, SIDE), SIDE_PLAIN, 60)
        Image.fromarray(sheet.pixels).save(colour, compress_level=1)
        Image.fromarray(sheet.pixels).convert("L").save(grey, compress_level=1)
    return {
        f"{path.stem}, {engine}": memory(path, "default", engine) for engine in ("torch",) for path in (grey, colour)
    }


_SHEETS = """\
Sheets of {width} x {height} pixels, {plain:.0%} plain: one colour with sensor noise and falling light. One part is laid
with test images of a class at native scale; twelve defects of the class, {short} to {long} pixels long and cut out with
their masks, are pasted, two thirds on the part and one third beside it. {bad} sheets with defects and {good} without
per class; no model has seen the suite. Squash → tiles (gain), in percent; `keep` is the share of the tokens of all
tiles that leave both routers."""
_READING = """\
Squashing reaches a high P-AUROC without finding defects: two thirds of them lie on the part, whose map is higher than
that of the plain area. PRO, region by region, shows what is found."""
_TIME = """\
Milliseconds per sheet, median of {repeats} interleaved repeats in one process, decoding left out; then against one
dense squashed pass, and how much faster than the same tiles dense."""
_MEMORY = """\
Resident megabytes of one process at its peak: with the network loaded, with the picture decoded, at the end.
{plain:.0%} plain. Pillow decodes the whole picture, in colour with four bytes per pixel; that is the floor."""
_STRIP = """\
KSDD was 500 x 1260 and is stored squashed to squares. Model m2i, {limit} images, in percent: at the square input and at
its own aspect ratio with as many patches."""
_VIEWS = """\
Maps and scores averaged over the image, its mirror image, and both turned, at prune50 on unseen suites, {limit} images
per class; in percent, and milliseconds of the network per image."""
_PICTURES = """\
Sheets of the demo's own surfaces: the sheet, its defects, the map of the squashed sheet, and that of its tiles."""


def page(args: Namespace) -> str:
    """All tables."""
    command, parts = study_command(), args.parts.split(",")
    counts = (args.sheets, max(1, args.sheets // 2))

    def accuracies() -> list[list[str]]:
        datasets = {model: sheets_of(model, args.data, args.work, counts) for model in MODELS}
        return accuracy_rows({name: accuracy(name, own, args.work, command) for name, own in datasets.items()})

    rows = kept(args.work / "accuracy.json", accuracies)
    (height, width), (short, long) = SHEET, DEFECT_SIDES
    blocks = [
        f"Made by `{command_line(command)}`; do not edit.",
        "# Large sheets: tiles against squashing",
        _SHEETS.format(width=width, height=height, plain=PLAIN, short=short, long=long, bad=counts[0], good=counts[1]),
        table(("class", "model", "point", "P-AUROC", "PRO", "I-AUROC", "keep"), rows),
        _READING,
    ]
    seconds = kept(args.work / "timings.json", lambda: timed(args))
    rows = timing_rows(seconds, "squash, dense", "tiles, dense")
    blocks += ["## Time", _TIME.format(repeats=REPEATS), table(("", "ms", "squash, dense", "tiles, dense"), rows)]
    columns: tuple[str, ...]
    if "memory" in parts:
        peaks = kept(args.work / "memory.json", lambda: measured_memory(args))
        keys = ("loaded", "decoded", "peak", "seconds", "tiles", "plain")
        rows = [[name, *(f"{own[key]:.0f}" for key in keys)] for name, own in peaks.items()]
        columns = ("", "network", "decoded", "peak", "seconds", "tiles", "plain tiles")
        blocks += [f"## Memory at {SIDE:,} x {SIDE:,}", _MEMORY.format(plain=SIDE_PLAIN), table(columns, rows)]
    if "strip" in parts:
        strip = lambda: strip_rows(strip_results(args.data, args.work, command, args.limit))  # noqa: E731
        rows = kept(args.work / "strip.json", strip)
        columns = ("input", "point", "I-AUROC", "P-AUROC", "PRO")
        blocks += ["## A matching aspect ratio", _STRIP.format(limit=args.limit), table(columns, rows)]
    if "views" in parts:
        rows = kept(args.work / "views.json", lambda: view_rows(args.data, args.work, command, args.view_limit))
        columns = ("model", "views", "I-AUROC", "P-AUROC", "PRO", "ms")
        blocks += ["## Views", _VIEWS.format(limit=args.view_limit), table(columns, rows)]
    if "pictures" in parts:
        folder = args.out.parent / "sheets"
        paths = lambda: [path.name for path in pictures(load(engine="torch"), folder)]  # noqa: E731
        shown = kept(args.work / "pictures.json", paths)
        blocks += ["## Pictures", _PICTURES, *(f"![{name}](sheets/{name})" for name in shown)]
    return "\n\n".join(blocks) + "\n"


def main() -> None:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="a folder with all suites")
    parser.add_argument("--out", type=Path, required=True, help="page to write")
    parser.add_argument("--work", type=Path, default=Path("out/sheets"), help="folder for sheets and state")
    parser.add_argument("--sheets", type=int, default=4, help="sheets with defects per class, and half as many without")
    parser.add_argument("--limit", type=int, default=40, help="images of KSDD")
    parser.add_argument("--view-limit", type=int, default=6, help="images per class for views")
    parser.add_argument("--parts", default="memory,strip,views,pictures", help="further tables, separated by commas")
    args = parser.parse_args()
    replace_text(args.out, page(args))
    say_on_stderr(f"written: {args.out}")


if __name__ == "__main__":
    run_study(main)
