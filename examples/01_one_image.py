"""One image: its score, its anomaly map in the image's own pixels, and a picture of both.

python examples/01_one_image.py [IMAGE]
"""

from __future__ import annotations

import sys
from pathlib import Path

import keepad
from keepad.demo import write_demo_images

OUT = Path("keepad-examples")


def main(image: Path) -> None:
    detector = keepad.load(point="prune50")
    prediction = detector(image)  # a path, a PIL image, a NumPy array or a torch tensor
    anomaly_map = prediction.map_at()  # (height, width) of the image, in [0, 1]

    print(f"score {prediction.pred_score:.3f}, anomalous: {prediction.pred_label}")
    print(f"map {anomaly_map.shape}, highest value {anomaly_map.max():.3f}")
    print(f"{prediction.keep_final:.0%} of the patch tokens survived")

    # The same detector at another operating point, for this call only
    print(f"dense: score {detector(image, point='dense').pred_score:.3f}")

    OUT.mkdir(exist_ok=True)
    prediction.save(OUT / "one_image.png")
    print(f"picture: {OUT / 'one_image.png'}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else write_demo_images(OUT / "images")[-1])
