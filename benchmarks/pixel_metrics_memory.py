"""Memory and time of PixelMetrics in histogram mode over a large class: `python benchmarks/pixel_metrics_memory.py`.

Feeds synthetic 518x518 maps and masks to one PixelMetrics per operating point, all alive at once, and prints the extra
peak memory two ways:

- resident: growth of the process's peak resident set (getrusage), counted from after one image was generated, so
  without imports and the generator; all memory that updates touch.
- traced: peak of the Python and NumPy allocations made since then (tracemalloc); includes bins that were reserved but
  never touched, and does not depend on earlier memory of the process.

Maps imitate the model: a smooth 37x37 grid for each of five layers, sigmoid, mean over layers, bilinear up-sampling.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from scipy import ndimage, sparse

from keepad.metrics import Estimate, PixelMetrics

SIDE, GRID, LAYERS = 518, 37, 5
MEASURES = ("auroc", "ap", "f1_max", "pro")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--images", type=int, default=3700, help="images per operating point (default 3700)")
    options.add_argument("--points", type=int, default=4, help="operating points measured side by side (default 4)")
    options.add_argument("--out", type=Path, help="also write the numbers to this JSON file")
    args = options.parse_args()

    next(images(1, args.points))  # the generator's own memory belongs to the baseline
    before = peak_resident_mb()
    tracemalloc.start()
    metrics = [PixelMetrics() for _ in range(args.points)]
    seconds, at_half = [], 0.0
    for i, (maps, mask) in enumerate(images(args.images, args.points)):
        for metric, anomaly_map in zip(metrics, maps, strict=True):
            start = time.perf_counter()
            metric.update(anomaly_map, mask)
            seconds.append(time.perf_counter() - start)
        if i + 1 == (args.images + 1) // 2:
            at_half = peak_resident_mb() - before
    at_end = peak_resident_mb() - before
    start = time.perf_counter()
    results = [metric.compute() for metric in metrics]
    compute_ms = 1000 * (time.perf_counter() - start) / args.points

    report = {
        "images": args.images,
        "points": args.points,
        "extra_peak_resident_mb": round(peak_resident_mb() - before, 1),
        "of_it_after_half_the_images_mb": round(at_half, 1),
        "of_it_after_all_images_mb": round(at_end, 1),
        "extra_peak_traced_mb": round(tracemalloc.get_traced_memory()[1] / 1e6, 1),
        "state_mb_per_point": round(metrics[0].nbytes / 1e6, 1),
        "every_pixel_float32_mb": round(args.points * args.images * SIDE * SIDE * 4 / 1e6, 1),
        "update_ms_median": round(1000 * float(np.median(seconds)), 2),
        "update_ms_p95": round(1000 * float(np.quantile(seconds, 0.95)), 2),
        "compute_ms": round(compute_ms, 1),
        "results": [{name: as_dict(getattr(result, name)) for name in MEASURES} for result in results],
    }
    for name, number in report.items():
        if name != "results":
            print(f"{name:32} {number}")
    for point, result in enumerate(results):
        print(f"point {point}: " + "  ".join(f"{name} {as_text(getattr(result, name))}" for name in MEASURES))
    if args.out:
        args.out.write_text(json.dumps(report, indent=2) + "\n")


def images(count: int, points: int) -> Iterator[tuple[list[np.ndarray], np.ndarray]]:
    """Per image the maps of all points, (518, 518) float32 each, and the mask; two images in three have a defect."""
    rng = np.random.default_rng(0)
    up = bilinear(SIDE, GRID)
    for i in range(count):
        mask = ellipses(rng) if i % 3 else np.zeros((SIDE, SIDE), dtype=bool)
        defect = ndimage.gaussian_filter(mask[7::14, 7::14].astype(np.float32), 0.7)
        noise = rng.standard_normal((LAYERS, GRID, GRID), dtype=np.float32)
        logits = 12 * ndimage.gaussian_filter(noise, (0, 1.2, 1.2)) + 6 * defect - 4
        maps = []
        for point in range(points):
            disturbed = logits + 0.3 * point * rng.standard_normal(logits.shape, dtype=np.float32)
            response = (1 / (1 + np.exp(-disturbed))).mean(axis=0)
            maps.append(np.clip((up @ (up @ response).T).T, 0, 1))
        yield maps, mask


def ellipses(rng: np.random.Generator) -> np.ndarray:
    mask = np.zeros((SIDE, SIDE), dtype=bool)
    for _ in range(rng.integers(1, 5)):
        a, b = rng.integers(4, 60, size=2)
        y, x = rng.integers(0, SIDE - 2 * a), rng.integers(0, SIDE - 2 * b)
        rows, cols = np.ogrid[-a:a, -b:b]
        mask[y : y + 2 * a, x : x + 2 * b] |= (rows / a) ** 2 + (cols / b) ** 2 < 1
    return mask


def bilinear(side: int, grid: int) -> sparse.csr_array:
    """(side, grid) weights that up-sample one axis bilinearly, pixel centres aligned as in an image resize."""
    at = np.clip((np.arange(side) + 0.5) * grid / side - 0.5, 0, grid - 1)
    weights = np.maximum(0, 1 - np.abs(at[:, None] - np.arange(grid))).astype(np.float32)
    return sparse.csr_array(weights)  # a dense product would leave BLAS threads spinning during the timed updates


def peak_resident_mb() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak * 1024 / 1e6  # macOS counts bytes, Linux kilobytes


def as_dict(estimate: Estimate | None) -> dict[str, float] | None:
    return None if estimate is None else {name: getattr(estimate, name) for name in ("value", "lower", "upper")}


def as_text(estimate: Estimate | None) -> str:
    return "none" if estimate is None else f"{estimate.value:.5f} (error under {estimate.error:.0e})"


if __name__ == "__main__":
    main()
