"""Draw docs/demo.jpg, the picture of the README: three demo images as the detector sees them.

python scripts/readme_picture.py
"""

from __future__ import annotations

from pathlib import Path

from PIL import Image

import keepad
from keepad.demo import demo_images

SHOWN = ("fabric-thread-000", "ceramic-crack-000", "metal-dent-000")


def main() -> None:
    model = keepad.load(point="prune70")
    images = {demo.name: demo.image for demo in demo_images()}
    panels = [model(images[name]).plot() for name in SHOWN]
    sheet = Image.new("RGB", (max(panel.width for panel in panels), sum(panel.height for panel in panels)), "white")
    top = 0
    for panel in panels:
        sheet.paste(panel, (0, top))
        top += panel.height
    sheet = sheet.resize((sheet.width * 3 // 5, sheet.height * 3 // 5), Image.Resampling.LANCZOS)
    sheet.save(Path(__file__).parents[1] / "docs" / "demo.jpg", quality=88, optimize=True)


if __name__ == "__main__":
    main()
