"""What the pixel router is worth: `python benchmarks/pixel_router.py --data ../shared/data --out docs/pixels/router`.

prune70 with it and without it take turns, as in `keepad benchmark`, and nothing else does: what is asked is their
ratio, on a shared machine it needs many repeats, and dense is most of a benchmark's time. Each image's two times are
medians over the repeats, which passing noise does not move, and a suite's ratio is that of their means.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from keepad.benchmark.timing import TURN, TorchRunner, _timed_pass, pictures, schedule
from keepad.console import command_line, progress
from keepad.detector import Stages
from keepad.loading import load
from keepad.presets import with_pixel_router

SUITES = ("mpdd", "mvtec", "mtd", "dagm", "ksdd")
POINT = "prune70"


@dataclass(frozen=True)
class Suite:
    """Milliseconds of a suite, (repeats, images), and the mean share of patches that entered."""

    without: np.ndarray
    with_it: np.ndarray
    keep: float

    @property
    def ratio(self) -> float:
        return float(np.median(self.without, 0).mean() / np.median(self.with_it, 0).mean())


@torch.inference_mode()
def timed(runners: list[TorchRunner], repeats: int, title: str) -> Suite:
    """Both on all images, in turns of a few."""
    turns = schedule(len(runners), repeats, runners[0].batches)
    ms, kept = np.zeros((len(runners), repeats, runners[0].batches)), np.ones(runners[0].batches)
    with progress(title, len(turns)) as advance:
        for turn in turns:
            runner = runners[turn.point]
            runner.run(turn.batches[-1], Stages())
            for batch in turn.batches:
                seconds, _, (outcome,) = _timed_pass(runner, batch)
                ms[turn.point, turn.repeat, batch] = 1e3 * seconds
                if outcome.thinned is not None:
                    kept[batch] = len(outcome.thinned.index) / len(outcome.thinned.owner)
            advance(1)
    return Suite(*ms, float(kept.mean()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True, help="results are written to OUT.json and OUT.md")
    parser.add_argument("--images", type=int, default=40, help="of each suite, spread over it")
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    model = load(device="cpu")
    found: dict[str, Suite] = {}
    for suite in SUITES:
        images = pictures(args.data / suite, args.images).images
        runners = [TorchRunner(model, with_pixel_router(POINT, choice), images, 1) for choice in ("off", "on")]
        found[suite] = timed(runners, args.repeats, suite)
    command, mean = command_line(["python", *sys.argv]), float(np.mean([one.ratio for one in found.values()]))
    rows = {
        name: {"ratio": one.ratio, "keep": one.keep, "without": one.without.tolist(), "with": one.with_it.tolist()}
        for name, one in found.items()
    }
    content = {"command": command, "point": POINT, "mean": mean, "suites": rows}
    args.out.with_suffix(".json").write_text(json.dumps(content) + "\n", encoding="utf-8")
    lines = [
        f"Made by `{command}`.",
        "",
        f"{POINT} with the pixel router against {POINT} without, torch, one image at a time; {args.repeats} repeats of",
        f"{args.images} images of each suite, interleaved {TURN} passes at a time. Times are means over the images of",
        "their medians over the repeats.",
        "",
        "| suite | ms without | ms with | times as fast | patches that enter |",
        "|---|---|---|---|---|",
    ]
    for name, one in found.items():
        without, with_it = (np.median(part, 0).mean() for part in (one.without, one.with_it))
        lines.append(f"| {name} | {without:.1f} | {with_it:.1f} | {one.ratio:.3f} | {one.keep:.1%} |")
    lines += [f"| mean | | | {mean:.3f} | |", ""]
    args.out.with_suffix(".md").write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
