"""The results of README.md, written between its two comment lines from the JSON files in docs/.

    python -m keepad.studies.readme

Run it in the repository's root. `--check` writes nothing and fails if the README is out of date.
"""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from keepad.errors import KeepADError
from keepad.studies.command import run_study
from keepad.studies.precisions import TORCH
from keepad.studies.transfer import ROUTERS_ONLY

START, END = "<!-- results: python -m keepad.studies.readme -->", "<!-- end of results -->"
COLUMNS = (
    *("operating point", "I-AUROC", "P-AUROC", "defect tokens kept (DTR)", "defects lost whole (CMR)", "tokens kept"),
    *("fewer FLOPs", "faster than dense"),
)
# Sources of the text, below docs/; a line without its file is left out.
ACCURACY, SPEED = "results/transfer/summary.json", "benchmark/default.json"
ROUTERS, PIXEL_SPEED = "results/routers/points/summary.json", "pixels/router.json"
ENGINES, PRECISIONS = "benchmark/engines.json", "results/precisions/summary.json"


def results_text(docs: Path) -> str:
    """The table and the lines below it."""
    accuracy, speed = _load(docs, ACCURACY), _load(docs, SPEED)
    if accuracy is None or speed is None:
        raise KeepADError(f"{docs} needs {ACCURACY} and {SPEED}; run the commands that docs/results names for them.")
    return "\n".join(
        [*_table(accuracy, speed), "", *_accuracy(accuracy), *_pixels(docs), *_speed(speed), *_engines(docs)]
    )


def updated(readme: str, text: str) -> str:
    """The README with this text between its two comment lines."""
    before, start, rest = readme.partition(START)
    _, end, after = rest.partition(END)
    if not start or not end:
        raise KeepADError(f"README.md lacks the lines {START} and {END}; put them where the results belong.")
    return f"{before}{START}\n{text}\n{END}{after}"


def _load(docs: Path, name: str) -> dict[str, Any] | None:
    path = docs / name
    content: dict[str, Any] | None = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
    return content


def _table(accuracy: dict[str, Any], speed: dict[str, Any]) -> list[str]:
    timed = {record["point"]: record for record in speed["records"] if record["batch"] == 1}
    lines = [f"| {' | '.join(COLUMNS)} |", f"|{'---|' * len(COLUMNS)}"]
    for point, values in accuracy["mean"].items():
        rate, record = values["survival"], timed[point]
        cells = [
            *(f"{values[metric]:.1f}" for metric in ("i_auroc", "p_auroc")),
            *(f"{rate['dtr']:.1f} %", f"{rate['cmr']:.2f} %", f"{values['keep']:.1f} %"),
            *(f"{record[ratio]:.2f}x" for ratio in ("flops_ratio", "ratio_to_dense")),
        ]
        lines.append(f"| {point} | {' | '.join(cells)} |")
    return lines


def _accuracy(accuracy: dict[str, Any]) -> list[str]:
    suites = " and ".join(", ".join(model["suites"]) for model in accuracy["models"].values())
    return [
        f"- Accuracy: mean of {len(accuracy['models'])} transfer directions, each checkpoint on suites that it has not "
        f"seen ({suites}): `{accuracy['command']}`. [All numbers](docs/results/transfer/summary.md)."
    ]


def _pixels(docs: Path) -> list[str]:
    speed, routers = _load(docs, PIXEL_SPEED), _load(docs, ROUTERS)
    if speed is None:
        return []
    ratios = ", ".join(f"{suite} {row['ratio']:.2f}x" for suite, row in speed["suites"].items())
    line = (
        "- How much the pixels prove depends on the images. Speed of prune70 with the pixel router against prune70 "
        f"without: {ratios}, mean {speed['mean']:.2f}x ([measured](docs/pixels/router.md))"
    )
    if routers is not None:
        on, off = routers["mean"]["prune70"], routers["mean"][ROUTERS_ONLY]
        line += (
            f"; I-AUROC {on['i_auroc'] - off['i_auroc']:+.1f}, P-AUROC {on['p_auroc'] - off['p_auroc']:+.1f}, "
            f"DTR {on['survival']['dtr'] - off['survival']['dtr']:+.1f}, "
            f"CMR {on['survival']['cmr'] - off['survival']['cmr']:+.2f} "
            "([routers](docs/results/routers/points/summary.md))"
        )
    return [f"{line}."]


def _speed(speed: dict[str, Any]) -> list[str]:
    settings = speed["settings"]
    return [
        f"- Speed: `{settings['command']}`, one image at a time on {settings['machine']['cores']} CPU cores, dense and "
        "pruned interleaved. [All numbers](docs/benchmark/default.md)."
    ]


def _engines(docs: Path) -> list[str]:
    """The fastest engine at prune70, and the cost of its precision in accuracy."""
    engines, precisions = _load(docs, ENGINES), _load(docs, PRECISIONS)
    if engines is None:
        return []
    records = [record for record in engines["records"] if record["point"].startswith("prune70")]
    best = min((record for record in records if record["batch"] == 1), key=lambda record: float(record["median_ms"]))
    batched = max(
        (record for record in records if record["engine"] == best["engine"]), key=lambda record: int(record["batch"])
    )
    engine, _, precision = best["engine"].partition(":")
    name = f"{engine} {precision or 'fp32'}"
    line = (
        f"- Without torch: prune70 in {name} is {best['ratio_to_dense']:.2f} times as fast as dense in torch on images "
        f"of all suites, one at a time, and {batched['ratio_to_dense']:.2f} times with {batched['batch']} in a batch "
        "([all engines](docs/benchmark/engines.md))"
    )
    models = [] if precisions is None else [model["points"] for model in precisions["models"].values()]
    if models and all(name in points for points in models):
        changes = " and ".join(
            " / ".join(f"{points[name][metric] - points[TORCH][metric]:+.1f}" for metric in ("i_auroc", "p_auroc"))
            for points in models
        )
        line += f"; I- / P-AUROC against torch {changes} ([precisions](docs/results/precisions/changes.md))"
    return [f"{line}."]


def main() -> None:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail if the README is out of date; write nothing")
    args = parser.parse_args()
    readme = Path("README.md")
    if not readme.is_file():
        raise KeepADError("there is no README.md here; run this in the repository's root.")
    before = readme.read_text(encoding="utf-8")
    after = updated(before, results_text(Path("docs")))
    if not args.check:
        readme.write_text(after, encoding="utf-8")
    elif after != before:
        sys.exit("README.md is out of date: run python -m keepad.studies.readme")


if __name__ == "__main__":
    run_study(main)
