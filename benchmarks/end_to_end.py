"""A whole `keepad predict` against the forward passes in it: `python benchmarks/end_to_end.py --out end_to_end.json`.

Two hundred JPEG files (the demo images in turns, 900 pixels wide, each with its own noise) go through the same code
that the command runs: reading, resizing, forward pass, lines, overlays and report. Its wall time is divided by the sum
of its own forward times (the goal is at most 1.15), and by that of the same files, decoded beforehand, with nothing
beside the network: on few cores, what runs beside it slows it down, and the first ratio does not see that. Loading the
model is not part of it.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image

from keepad.console import command_line
from keepad.demo import demo_images
from keepad.engines.opening import open_detector
from keepad.images import read_image
from keepad.output.folder import run_folder

GOAL = 1.15
WIDTH = 900


def write_images(folder: Path, count: int) -> list[Path]:
    """The JPEG files."""
    demos, paths = [demo.image.convert("RGB") for demo in demo_images()], []
    for number in range(count):
        image = demos[number % len(demos)].resize((WIDTH, WIDTH))
        noise = np.random.default_rng(number).integers(-3, 4, (WIDTH, WIDTH, 3))
        pixels = np.clip(np.asarray(image).astype(int) + noise, 0, 255).astype(np.uint8)
        paths.append(folder / f"{number:03d}.jpg")
        Image.fromarray(pixels).save(paths[-1], quality=92)
    return paths


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--points", nargs="+", default=["prune50", "prune70"])
    parser.add_argument("--engine", default="torch")
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        paths = write_images(Path(folder), args.count)
        for point in args.points:
            detector = open_detector(None, point, engine=args.engine)
            list(detector.predict(paths[:2]))
            undisturbed = sum(detector(read_image(path)).seconds for path in paths)
            for pictures in (True, False):
                started = time.perf_counter()
                summary = run_folder(detector, paths, Path(folder) / "out", pictures=pictures)
                whole = time.perf_counter() - started
                forward = sum(row["seconds"] for row in summary.rows)
                rows.append(
                    {
                        "point": point,
                        "engine": args.engine,
                        "pictures": pictures,
                        "images": summary.done,
                        "seconds": whole,
                        "forward_seconds": forward,
                        "ratio": whole / forward,
                        "undisturbed_seconds": undisturbed,
                        "ratio_to_undisturbed": whole / undisturbed,
                    }
                )
                told = f"{whole / forward:.3f} (goal {GOAL}), against an undisturbed network {whole / undisturbed:.3f}"
                print(f"{point}, {'with' if pictures else 'without'} pictures: {told}")
    args.out.parent.mkdir(parents=True, exist_ok=True)
    content = {"command": command_line(["python", *sys.argv]), "goal": GOAL, "rows": rows}
    args.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
