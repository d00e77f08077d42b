"""A whole `keepad predict` against the forward passes in it: `python benchmarks/end_to_end.py --out end_to_end.json`.

Two hundred JPEG files (the demo images in rotation, 900 pixels wide, each with its own noise) go through the code of
the command: reading, resizing, forward pass, lines, overlays and report. Its wall time is divided by the sum of its own
forward times (the goal is at most 1.15), and by the forward times of the same files with nothing running beside the
network, because on few cores the rest slows the network down. Loading the model is not included.
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

import keepad
from keepad.console import command_line
from keepad.demo import demo_images
from keepad.images import read_image
from keepad.output.folder import Outputs, run_folder
from keepad.presets import ENGINES

GOAL = 1.15
WIDTH = 900


def write_images(folder: Path, count: int) -> list[Path]:
    """Paths of `count` JPEG files."""
    demos = [np.asarray(demo.image.convert("RGB").resize((WIDTH, WIDTH)), np.int16) for demo in demo_images()]
    noise, paths = np.random.default_rng(0).integers(-3, 4, (WIDTH, WIDTH, 3), np.int16), []
    for number in range(count):  # the same noise elsewhere is another image, and takes no time
        pixels = np.clip(demos[number % len(demos)] + np.roll(noise, 7 * number), 0, 255).astype(np.uint8)
        paths.append(folder / f"{number:03d}.jpg")
        Image.fromarray(pixels).save(paths[-1], quality=92)
    return paths


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--points", nargs="+", default=["prune50", "prune70"])
    parser.add_argument("--engine", default="torch", choices=ENGINES)
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        paths = write_images(Path(folder), args.count)
        for point in args.points:
            detector = keepad.load(point=point, engine=args.engine)
            list(detector.predict(paths[:2]))
            undisturbed = sum(detector(read_image(path)).seconds for path in paths)
            for overlays in (True, False):
                started = time.perf_counter()
                summary = run_folder(detector, paths, Path(folder) / "out", outputs=Outputs(overlays))
                whole = time.perf_counter() - started
                forward = sum(row["seconds"] for row in summary.rows)
                rows.append(
                    {
                        "point": point,
                        "engine": args.engine,
                        "overlays": overlays,
                        "images": summary.done,
                        "seconds": whole,
                        "forward_seconds": forward,
                        "ratio": whole / forward,
                        "undisturbed_seconds": undisturbed,
                        "ratio_to_undisturbed": whole / undisturbed,
                    }
                )
                ratios = f"{whole / forward:.3f} (goal {GOAL}), to an undisturbed network {whole / undisturbed:.3f}"
                print(f"{point}, {'with' if overlays else 'without'} overlays: {ratios}")
    args.out.parent.mkdir(parents=True, exist_ok=True)
    content = {"command": command_line(["python", *sys.argv]), "goal": GOAL, "rows": rows}
    args.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
