"""Pixel metrics from bins against exact ones on real images: `python benchmarks/histogram_vs_exact.py --data PATH`.

The maps of one detector go to PixelMetrics in both modes. Prints both values of each class, their difference, and the
error bound that the histogram states, all as fractions. Exit code 1 if any difference reaches 1e-3.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import keepad
from keepad.data import load_mask, read_dataset
from keepad.metrics import PixelMetrics

MEASURES = ("auroc", "ap", "f1_max", "pro")
ALLOWED = 1e-3


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--data", type=Path, required=True, help="a folder with a data set or with several")
    options.add_argument("--suites", help="only these suites, separated by commas")
    options.add_argument("--classes", help="only these classes, separated by commas")
    options.add_argument("--limit", type=int, default=20, help="images of each label in a class (default 20)")
    options.add_argument("--model", help="checkpoint name or file (default: the bundled one)")
    options.add_argument("--point", default="prune50", help="operating point (default prune50)")
    args = options.parse_args()

    chosen = {name: value.split(",") for name in ("suites", "classes") if (value := getattr(args, name))}
    dataset = read_dataset(args.data).select(split="test", **chosen)
    detector = keepad.load(args.model, point=args.point, engine="torch")
    worst = dict.fromkeys(MEASURES, 0.0)
    print(f"{'class':<24}{'measure':<9}{'histogram':>11}{'exact':>11}{'difference':>12}{'stated':>10}")
    for (suite, cls), samples in dataset.by_class().items():
        usable = [sample for sample in samples if sample.label == 0 or sample.mask is not None]
        some = [sample for label in (0, 1) for sample in [s for s in usable if s.label == label][: args.limit]]
        if not any(sample.label for sample in some):
            print(f"{suite + '/' + cls:<24}left out: no masks")
            continue
        binned, exact = PixelMetrics("histogram"), PixelMetrics("exact")
        for sample in some:
            anomaly_map, mask = detector(sample.image).anomaly_map, load_mask(sample, detector.image_size)
            binned.update(anomaly_map, mask)
            exact.update(anomaly_map, mask)
        of_bins, of_pixels = binned.compute(), exact.compute()
        for measure in MEASURES:
            estimate, value = getattr(of_bins, measure), getattr(of_pixels, measure).value
            difference = abs(estimate.value - value)
            worst[measure] = max(worst[measure], difference)
            print(
                f"{suite + '/' + cls:<24}{measure:<9}{estimate.value:>11.7f}{value:>11.7f}"
                f"{difference:>12.1e}{estimate.error:>10.1e}"
            )
    print("largest difference: " + ", ".join(f"{measure} {difference:.1e}" for measure, difference in worst.items()))
    if max(worst.values()) >= ALLOWED:
        sys.exit(f"that is not under {ALLOWED:g}")


if __name__ == "__main__":
    main()
