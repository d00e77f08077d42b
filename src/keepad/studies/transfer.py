"""Routers and their controls on suites that a checkpoint was not trained on.

    python -m keepad.studies.transfer --data ../shared/data --out docs/results/routers --model m2i,i2m

OUT/points holds every operating point with and without the pixel router. OUT/controls compares prune70 with a global
top-k in place of its shallow router, and with the mean budget of its deep router for every image.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from keepad.errors import KeepADError
from keepad.evaluate import Results, Variant, evaluate, write_summary
from keepad.presets import POINTS, OperatingPoint, ShallowBudget, with_pixel_router
from keepad.studies.command import directions, run_study, study_options, study_parser

ROUTERS_ONLY = "prune70, no pixel router"


def point_variants() -> list[Variant]:
    """Every named operating point, and those that prune pixels without that; dense with it."""
    named = [Variant(name, point) for name, point in POINTS.items()]
    without = [
        Variant(f"{name}, no pixel router", with_pixel_router(name, "off"))
        for name, point in POINTS.items()
        if point.pixels is not None
    ]
    return [*named, *without, Variant("dense, pixel router", with_pixel_router("dense", "on"))]


def control_variants(images: Sequence[dict[str, Any]]) -> list[Variant]:
    """prune70 without pixel router and its controls; `images` are rows of a result that has it."""
    base = with_pixel_router("prune70", "off")
    top_k = ShallowBudget(0.30, strict=False, block=1, diversity=0)  # rho of prune70
    return [
        Variant(ROUTERS_ONLY, base),
        Variant("global top-k", replace(base, shallow=top_k)),
        Variant("fixed mean budget", fixed_budget(base, [row["points"][ROUTERS_ONLY] for row in images])),
    ]


def fixed_budget(point: OperatingPoint, rows: Sequence[dict[str, Any]]) -> OperatingPoint:
    """The point with the mean share of its deep router over these rows for every image."""
    if point.deep is None or not rows:
        raise KeepADError("a fixed budget needs a point with a deep router, and images.")
    share = float(np.mean([row["keep"] / row["keep_shallow"] for row in rows]))
    # A deep router keeps rho ** kappa of the live tokens, and kappa may be the checkpoint's.
    return replace(point, deep=replace(point.deep, rho_min=share, rho_max=share, kappa=1.0))


def main() -> None:
    parser = study_parser(__doc__)
    parser.add_argument("--model", default="m2i,i2m", help="checkpoints, separated by commas")
    args = parser.parse_args()
    points: dict[str, Results] = {}
    controls: dict[str, Results] = {}
    for each in directions(args.data, args.model.split(",")):
        folder = args.out / "points" / each.name
        points[each.name] = evaluate(each.detector, each.dataset, point_variants(), folder, study_options(args))
        variants, folder = control_variants(points[each.name].images), args.out / "controls" / each.name
        options = study_options(args, reference=ROUTERS_ONLY)
        controls[each.name] = evaluate(each.detector, each.dataset, variants, folder, options)
    write_summary(points, args.out / "points")
    write_summary(controls, args.out / "controls")


if __name__ == "__main__":
    run_study(main)
