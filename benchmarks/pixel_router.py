"""Speed-up of the pixel router: `python benchmarks/pixel_router.py --images ../shared/data --out docs/pixels/router`.

prune70 with and without it, interleaved as in `keepad benchmark` but without dense, whose passes would take most of the
time: on a shared machine the ratio needs many repeats. The time of an image is its median over the repeats, which is
robust to passing noise; the ratio of a suite is that of the means over its images.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np

from keepad.benchmark import Runner, measure, timed_images
from keepad.benchmark.schedule import TURN
from keepad.console import command_line, progress
from keepad.loading import load_network
from keepad.presets import with_pixel_router

SUITES = ("mpdd", "mvtec", "mtd", "dagm", "ksdd")
POINT = "prune70"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=Path, required=True, help="folder with a folder of images per suite")
    parser.add_argument("--out", type=Path, required=True, help="results are written to OUT.json and OUT.md")
    parser.add_argument("--per-suite", type=int, default=40, help="images per suite, spread evenly over it")
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    network = load_network(None, device="cpu")
    runners = [Runner(network, with_pixel_router(POINT, choice)) for choice in ("off", "on")]
    command = command_line(["python", *sys.argv])
    lines = [
        f"Made by `{command}`.",
        "",
        f"{POINT} with the pixel router against {POINT} without, torch, batch 1; {args.repeats} repeats of",
        f"{args.per_suite} images per suite, interleaved {TURN} passes at a time. Times are means over the images of",
        "their medians over the repeats.",
        "",
        "| suite | ms without | ms with | times as fast | patches that enter |",
        "|---|---|---|---|---|",
    ]
    suites = {}
    with progress("suites", len(SUITES)) as advance:
        for suite in SUITES:
            batches = timed_images(args.images / suite, args.per_suite).batches(network.image_size, 1)
            off, on = measure(runners, batches, network, warmup=1, repeats=args.repeats)
            without, routed = (float(np.median(timing.ms, axis=0).mean()) for timing in (off, on))
            ratio, keep = without / routed, on.keep_pixels
            suites[suite] = {"ratio": ratio, "keep": keep, "without": off.ms.tolist(), "with": on.ms.tolist()}
            lines.append(f"| {suite} | {without:.1f} | {routed:.1f} | {ratio:.3f} | {keep:.1%} |")
            advance()
    mean = float(np.mean([content["ratio"] for content in suites.values()]))
    lines += [f"| mean | | | {mean:.3f} | |", ""]
    content = {"command": command, "point": POINT, "mean": mean, "suites": suites}
    args.out.with_suffix(".json").write_text(json.dumps(content) + "\n", encoding="utf-8")
    args.out.with_suffix(".md").write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
