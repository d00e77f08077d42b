"""Exports against torch on suites that their checkpoint was not trained on: the cost of a precision.

    python -m keepad.studies.precisions --data ../shared/data --out docs/results/precisions --exports m2i-int8,i2m-int8

Rounding moves scores a little, at random, which alone moves an AUROC over few images. Two rows show how much: torch on
pixels that are one grey level off, and every comparison on four views of the images.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from keepad.detector import Detector
from keepad.errors import KeepADError
from keepad.evaluate import Results, Variant, View, evaluate, write_summary
from keepad.evaluate.markdown import table, with_delta
from keepad.files import replace_text
from keepad.loading import load
from keepad.presets import OperatingPoint, operating_point
from keepad.studies.command import directions, run_study, study_options, study_parser

TORCH = "torch fp32"
AS_IT_IS = "as it is"
VIEWS = {
    AS_IT_IS: None,
    "mirrored": View("mirrored", flip=(1,)),
    "upside down": View("upside down", flip=(0,)),
    "turned around": View("turned around", flip=(0, 1)),
}
NOISE = View("one grey level off", noise=1)


def variant_name(runner: str, view: str) -> str:
    """Name of a runner's variant in a view."""
    return runner if view == AS_IT_IS else f"{runner}, {view}"


def precision_variants(point: OperatingPoint, exports: Mapping[str, Detector]) -> list[Variant]:
    """Torch and every export, by name, on all views; and torch on pixels that are one grey level off."""
    runners: dict[str, Detector | None] = {TORCH: None, **exports}
    return [
        *(
            Variant(variant_name(runner, name), point, detector=detector, view=view)
            for name, view in VIEWS.items()
            for runner, detector in runners.items()
        ),
        Variant(variant_name(TORCH, NOISE.name), point, view=NOISE),
    ]


def exports_by_model(folders: Sequence[str]) -> dict[str, dict[str, Detector]]:
    """Exported detectors by the name of their checkpoint, then by engine and precision."""
    by_model: dict[str, dict[str, Detector]] = {}
    for folder in folders:
        export = load(folder)
        by_model.setdefault(export.name, {})[export.runs_on.removesuffix(" on the CPU")] = export
    return by_model


def check_origin(detector: Detector, exports: Mapping[str, Detector]) -> None:
    """Raise a KeepADError if an export was not made from the detector."""
    digest = detector.digests()["checkpoint"]
    for runner, export in exports.items():
        if not export.digests()["checkpoint"].startswith(digest):
            raise KeepADError(
                f"the {runner} export of {export.name} was made from another checkpoint; export it again."
            )


def changes_table(points: Mapping[str, Any]) -> str:
    """Each runner against torch: both AUROCs on the images as they are, and their change on every view."""
    runners = [name for name in points if not any(name.endswith(f", {view}") for view in VIEWS)]
    rows = []
    for runner in runners:
        cells = [runner]
        for metric in ("i_auroc", "p_auroc"):
            by_view = [
                points[variant_name(runner, view)][metric] - points[variant_name(TORCH, view)][metric]
                for view in VIEWS
                if variant_name(runner, view) in points and points[runner][metric] is not None
            ]
            cells.append(with_delta(points[runner][metric], by_view[0] if by_view and runner != TORCH else None))
            changes = ", ".join(f"{change:+.2f}" for change in by_view)
            cells.append(f"{changes}: {np.mean(by_view):+.2f}" if len(by_view) > 1 and runner != TORCH else "")
        rows.append(cells)
    columns = ("", "I-AUROC (Δ)", "Δ by view: mean", "P-AUROC (Δ)", "Δ by view: mean")
    return table(columns, rows)


def to_markdown(summary: dict[str, Any]) -> str:
    """The changes of every model."""
    blocks = [
        f"Made by `{summary['command']}`; do not edit.",
        "# Cost of a precision",
        f"In percent on unseen suites; Δ is against torch on the same view. Views: {', '.join(VIEWS)}. All metrics: "
        "[summary](summary.md).",
    ]
    for name, model in summary["models"].items():
        blocks += [f"## {name}, on {', '.join(model['suites'])}", changes_table(model["points"])]
    return "\n\n".join(blocks) + "\n"


def main() -> None:
    parser = study_parser(__doc__)
    parser.add_argument("--exports", required=True, help="folders of keepad export, separated by commas")
    parser.add_argument("--point", default="prune70", help="operating point")
    args = parser.parse_args()
    by_model = exports_by_model(args.exports.split(","))
    results: dict[str, Results] = {}
    for direction in directions(args.data, list(by_model)):
        exports = by_model[direction.detector.name]
        check_origin(direction.detector, exports)
        variants = precision_variants(operating_point(args.point), exports)
        options = study_options(args, reference=TORCH)
        results[direction.name] = evaluate(
            direction.detector, direction.dataset, variants, args.out / direction.name, options
        )
    summary = write_summary(results, args.out)
    replace_text(args.out / "changes.md", to_markdown(summary))


if __name__ == "__main__":
    run_study(main)
