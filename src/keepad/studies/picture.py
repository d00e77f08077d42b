"""docs/demo.jpg, the picture of the README: demo images, their anomaly maps and surviving tokens.

python -m keepad.studies.picture
"""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path

from PIL import Image

from keepad.demo import demo_images
from keepad.loading import load
from keepad.studies.command import run_study

SHOWN = ("fabric-thread-000", "ceramic-crack-000", "metal-dent-000")


def main() -> None:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/demo.jpg"), help="picture to write")
    args = parser.parse_args()
    detector = load(point="prune70", engine="torch")
    images = {demo.name: demo.image for demo in demo_images()}
    panels = [detector(images[name]).plot() for name in SHOWN]
    sheet = Image.new("RGB", (max(panel.width for panel in panels), sum(panel.height for panel in panels)), "white")
    top = 0
    for panel in panels:
        sheet.paste(panel, (0, top))
        top += panel.height
    sheet = sheet.resize((sheet.width * 3 // 5, sheet.height * 3 // 5), Image.Resampling.LANCZOS)
    sheet.save(args.out, quality=88, optimize=True)


if __name__ == "__main__":
    run_study(main)
