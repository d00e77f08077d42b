"""Whether `--budget-ms` keeps its budgets:
`python benchmarks/budget.py --data ../shared/data --out docs/decisions/budget.md`.

For each engine three budgets are set, a tenth above what prune70, prune50 and dense were measured to take on the demo
images. The point that each budget chooses then runs on real images of unseen products, one at a time; 95 % of these
passes have to stay within the budget. On a machine that does other work meanwhile the numbers mean little.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import numpy as np

from keepad.arrays import Array
from keepad.console import command_line, say_on_stderr
from keepad.data import read_dataset
from keepad.evaluate.markdown import table
from keepad.files import replace_text
from keepad.images import read_image, spread, to_input
from keepad.inference import AnyNetwork
from keepad.latency import cpu_name, interleaved, measured_times, within_budget
from keepad.loading import load
from keepad.presets import OperatingPoint

MODEL, SUITES = "m2i", ("mpdd", "dagm", "mtd", "ksdd")
POINTS = ("prune70", "prune50", "dense")
MARGIN = 1.1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="a folder with all suites")
    parser.add_argument("--out", type=Path, required=True, help="the page, a .md file")
    parser.add_argument("--engines", default="torch,openvino", help="engines, separated by commas")
    parser.add_argument("--images", type=int, default=200, help="images of each budget")
    args = parser.parse_args()
    samples = spread(read_dataset(args.data).select(suites=SUITES, split="test").samples, args.images)
    rows = []
    for engine in args.engines.split(","):
        network = load(MODEL, engine=engine).network
        batches = [to_input(read_image(sample.image), network.image_size)[None] for sample in samples]
        times = measured_times(network, say_on_stderr)
        for name in POINTS:
            budget = MARGIN * times[name]
            point = within_budget(network, budget, say_on_stderr)
            say_on_stderr(f"{len(batches)} images on {engine} within {budget:.0f} ms")

            def run(batch: Array, network: AnyNetwork = network, point: OperatingPoint = point) -> object:
                return network.infer(batch, [point])

            (ms,) = interleaved({point.name: run}, batches, 1).values()
            cells = [np.median(ms), np.percentile(ms, 95), 100 * np.mean(ms <= budget)]
            rows.append([engine, f"{budget:.0f}", point.name, *(f"{cell:.0f}" for cell in cells)])
    columns = ["engine", "budget, ms", "point", "median, ms", "95 %, ms", "within the budget, %"]
    blocks = [
        f"Made by `{command_line(['python', 'benchmarks/budget.py', *sys.argv[1:]])}`; do not edit.",
        "# Budgets in milliseconds",
        f"{MODEL} on {cpu_name()}, {os.cpu_count()} cores; {args.images} test images of {', '.join(SUITES)}, one pass "
        "each. The load of the machine when this was measured was "
        f"{os.getloadavg()[0]:.1f}.",
        table(columns, rows),
    ]
    replace_text(args.out, "\n\n".join(blocks) + "\n")


if __name__ == "__main__":
    main()
