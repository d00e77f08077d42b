"""Export the detector for OpenVINO, and use the folder in a process that never imports torch.

python examples/03_export_without_torch.py [IMAGE]
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import keepad
from keepad.demo import write_demo_images
from keepad.engines.export import exported
from keepad.loading import load_network

OUT = Path("keepad-examples")

# What the other machine runs; it needs pip install ".[openvino]" and the exported folder
PREDICT = """
import sys
import keepad

folder, image = sys.argv[1:]
prediction = keepad.load(folder, point="prune70")(image)
print(f"OpenVINO: score {prediction.pred_score:.4f}; torch imported: {'torch' in sys.modules}")
"""


def main(image: Path) -> None:
    network = load_network(device="cpu")  # the default checkpoint in torch
    print(f"torch:    score {keepad.Detector(network, point='prune70')(image).pred_score:.4f}")
    folder = exported(network, "openvino", say=print)  # in the cache, made once; export() writes to any folder
    subprocess.run([sys.executable, "-c", PREDICT, str(folder), str(image)], check=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else write_demo_images(OUT / "images")[-1])
