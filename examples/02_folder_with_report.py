"""A folder of images: predictions.jsonl, an overlay per image, and one page to open in a browser.

python examples/02_folder_with_report.py [FOLDER]
"""

from __future__ import annotations

import sys
from pathlib import Path

import keepad
from keepad.demo import write_demo_images
from keepad.images import find_images
from keepad.output.folder import run_folder

OUT = Path("keepad-examples")


def main(folder: Path) -> None:
    detector = keepad.load(point="prune70")
    detector.set_threshold(0.6)  # choose it above the scores of good images of your product
    summary = run_folder(detector, find_images([folder]), OUT / "results", batch_size=4)

    print(f"{summary.done} images, {summary.jsonl}")
    for sentence in summary.errors:  # images that could not be read; the others were still done
        print(sentence)
    print(f"report: {summary.report}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else write_demo_images(OUT / "images")[-1].parents[1])
