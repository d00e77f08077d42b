"""What routing and recovery cost beside the blocks they save: `python benchmarks/router_overhead.py`.

Passes of dense and of prune30, prune50 and prune70 take turns on single images with the default backbone. Inside the
real passes a clock runs around each piece of bookkeeping:

- scores: the selector; selection: which tokens stay; gather: the tokens that stay, copied together - at each router
- other: what remains of the routing stage, such as cutting a batch into its images
- recovery: the owner of every grid cell, and the copy of its response
- image score: from survivors and class token; dense has one too, so it is shown but not summed up

Each is given in milliseconds (median over all passes) and as a share of the median dense pass. The goal is a sum,
without the image score, of at most 3 percent.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import keepad.model
import numpy as np
import torch

from keepad.backbone import DEFAULT_BACKBONE
from keepad.benchmark.timing import Plan, pictures, schedule
from keepad.checkpoint import bundled_checkpoints
from keepad.console import command_line
from keepad.images import to_input
from keepad.loading import load, untrained
from keepad.network import KeepAD, Stages
from keepad.presets import POINTS, OperatingPoint
from keepad.tokens import Tokens

GOAL = 0.03
BOOKKEEPING = (
    "shallow scores",
    "shallow selection",
    "shallow gather",
    "deep scores",
    "deep selection",
    "deep gather",
    "other",
    "recovery",
)
PIECES = (*BOOKKEEPING, "sum", "image score")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--images", type=Path, help="folder of images (default: the demo images)")
    options.add_argument("--per-repeat", type=int, default=8, help="different images in each repeat (default 8)")
    options.add_argument("--warmup", type=int, default=20, help="untimed passes of each point (default 20)")
    options.add_argument("--repeats", type=int, default=5, help="timed repeats (default 5)")
    options.add_argument("--threads", type=int, help="CPU threads (default: torch's choice)")
    options.add_argument("--out", type=Path, help="also write the numbers to this JSON file")
    args = options.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)

    shown = pictures(args.images, args.per_repeat)
    trained = bool(bundled_checkpoints())
    model = load(device="cpu") if trained else untrained(DEFAULT_BACKBONE)
    points = [POINTS[name] for name in Plan().points]
    seconds = time_pieces(model, points, shown.images, args.warmup, args.repeats)

    dense_ms = 1e3 * float(np.median(seconds["dense"]["pass"]))
    report: dict[str, Any] = {
        "command": command_line(["python", *sys.argv]),
        "backbone": model.backbone.name,
        "weights": "pretrained" if trained else "random",
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "load_average": os.getloadavg()[0],
        "images": {"source": shown.source, "names": list(shown.names)},
        "warmup": args.warmup,
        "repeats": args.repeats,
        "dense_ms": dense_ms,
        "points": {},
    }
    for point in points[1:]:
        pieces = {piece: 1e3 * float(np.median(seconds[point.name][piece])) for piece in PIECES}
        report["points"][point.name] = {
            "pass_ms": 1e3 * float(np.median(seconds[point.name]["pass"])),
            "ms": pieces,
            "share_of_dense": {piece: ms / dense_ms for piece, ms in pieces.items()},
        }
    show(report)
    if args.out:
        args.out.write_text(json.dumps(report, indent=2) + "\n")


@torch.inference_mode()
def time_pieces(
    model: KeepAD, points: list[OperatingPoint], images: tuple[Any, ...], warmup: int, repeats: int
) -> dict[str, dict[str, list[float]]]:
    """Seconds of every piece in every timed pass, by point and piece."""
    pixels = torch.from_numpy(np.stack([to_input(image, model.image_size) for image in images]))
    inputs = (pixels.permute(0, 3, 1, 2).float() / 255).contiguous().split(1)
    seconds: dict[str, dict[str, list[float]]] = {point.name: defaultdict(list) for point in points}
    clock: dict[str, float] = defaultdict(float)
    with watched(model, clock):
        for turn in schedule(len(points), warmup, 1):
            one_pass(model, inputs[turn.repeat % len(inputs)], points[turn.point], clock)
        for turn in schedule(len(points), repeats, len(inputs)):
            point = points[turn.point]
            one_pass(model, inputs[turn.batches[-1]], point, clock)
            for batch in turn.batches:
                for piece, spent in one_pass(model, inputs[batch], point, clock).items():
                    seconds[point.name][piece].append(spent)
    return seconds


def one_pass(model: KeepAD, image: torch.Tensor, point: OperatingPoint, clock: dict[str, float]) -> dict[str, float]:
    """Seconds of the pieces of one pass, and of the pass itself."""
    clock.clear()
    stages = Stages()
    start = time.perf_counter()
    model.finish(model.prefix(image, stages), point, model.image_size, stages)
    spent = {"pass": time.perf_counter() - start, **clock}
    known = sum(spent.get(piece, 0.0) for piece in BOOKKEEPING if piece.startswith(("shallow", "deep")))
    spent["other"] = stages.seconds["routing"] - known
    spent["sum"] = sum(spent.get(piece, 0.0) for piece in BOOKKEEPING)
    return spent


@contextmanager
def watched(model: KeepAD, clock: dict[str, float]) -> Iterator[None]:
    """While this lasts, the pieces of the model's pass book their time to the clock."""

    def timed(piece: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            result = function(*args, **kwargs)
            clock[piece] += time.perf_counter() - start
            return result

        return call

    gather = Tokens.gather

    def timed_gather(tokens: Tokens, keep: Any) -> Tokens:
        router = "deep" if "deep selection" in clock else "shallow"
        return timed(f"{router} gather", gather)(tokens, keep)

    with ExitStack() as stack:
        for owner, name, piece in (
            (model.shallow, "forward", "shallow scores"),
            (model.deep, "forward", "deep scores"),
            (keepad.model, "keep_shallow", "shallow selection"),
            (keepad.model, "keep_deep", "deep selection"),
            (keepad.model, "recover", "recovery"),
            (keepad.model, "image_score", "image score"),
        ):
            stack.enter_context(patch.object(owner, name, timed(piece, getattr(owner, name))))
        stack.enter_context(patch.object(Tokens, "gather", timed_gather))
        yield


def show(report: dict[str, Any]) -> None:
    print(f"{report['backbone']} ({report['weights']} weights), batch 1, {report['threads']} threads")
    print(f"dense pass: {report['dense_ms']:.1f} ms")
    points = report["points"]
    print(f"{'':18}" + "".join(f"{name:>20}" for name in points))
    print(f"{'pass':18}" + "".join(f"{point['pass_ms']:12.1f} ms {'':5}" for point in points.values()))
    for piece in PIECES:
        cells = (f"{point['ms'][piece]:8.3f} ms {point['share_of_dense'][piece]:7.2%} " for point in points.values())
        print(f"{piece:18}" + "".join(cells))
    for name, point in points.items():
        share = point["share_of_dense"]["sum"]
        print(f"{name}: {share:.2%} of the dense pass, {'within' if share <= GOAL else 'ABOVE'} the goal of {GOAL:.0%}")


if __name__ == "__main__":
    main()
