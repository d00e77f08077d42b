"""The same images give the same scores, maps and survivors as before the redesign of 0.2.0.

tests/golden/0.1.npz holds the results of the last 0.1 revision for 40 real images at five operating points, in torch
and OpenVINO fp32. Where kernels round as on the machine that made it, differences of the order of float rounding are
allowed. Elsewhere near ties may be decided otherwise, so the bounds are wider; the name of a CPU does not tell: the old
revision itself keeps another token of one image on another CPU of the same name.

KEEPAD_GOLDEN_EVERY=1 compares all 40 images instead of one in four (torch) or one in eight (OpenVINO).
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from keepad.images import read_image, to_input
from keepad.loading import load
from keepad.presets import POINTS

CHECKPOINT = "imgfocus"  # whose results are stored; the default of 0.1
GOLDEN = Path(__file__).parent / "golden" / "0.1.npz"
_STRIDE = slice(7, None, 28)  # pixels of a map that were stored, in both directions


def _machine() -> list[str]:
    """Torch version, and a digest of what the kernels of a ViT compute: equal where they round alike."""
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(shape, generator=generator) for shape in ((1, 785, 384), (1536, 384)))
    with torch.inference_mode():
        hidden = F.gelu(F.linear(F.layer_norm(x, (384,)), weight))
        heads = F.linear(hidden, weight.T).view(1, 785, 6, 64).transpose(1, 2)
        mixed = F.scaled_dot_product_attention(heads, heads, heads)
        patches = F.conv2d(mixed[:, :3], weight[:, :147].reshape(-1, 3, 7, 7), stride=7)
    return [
        torch.__version__,
        hashlib.sha256(torch.cat([mixed.flatten(), patches.flatten()]).numpy().tobytes()).hexdigest(),
    ]


@pytest.mark.weights
@pytest.mark.shared
@pytest.mark.parametrize(("engine", "tolerance", "every"), [("torch", 1e-6, 4), ("openvino", 1e-4, 8)])
def test_results_are_those_of_the_revision_before(shared_data: Path, engine: str, tolerance: float, every: int) -> None:
    golden = np.load(GOLDEN)
    exact = _machine() == golden["machine"].tolist()
    tolerance = tolerance if exact else 1e-3
    detector = load(CHECKPOINT, engine=engine, device="cpu")
    points = [POINTS[name] for name in golden["points"]]
    cells = detector.grid[0] * detector.grid[1]
    for number in range(0, len(golden["names"]), int(os.environ.get("KEEPAD_GOLDEN_EVERY", every))):
        pixels = to_input(read_image(shared_data / str(golden["names"][number])), detector.image_size)
        results = detector.infer(pixels[None], points)
        for column, point in enumerate(points):
            (result,) = results[point.name]
            assert result.score == pytest.approx(golden[f"{engine}.score"][number, column], abs=tolerance)
            difference = np.abs(result.anomaly_map[_STRIDE, _STRIDE] - golden[f"{engine}.map"][number, column])
            assert (difference.max() if exact else difference.mean()) <= tolerance
            for router, survivors in (("shallow", result.survivors_shallow), ("survivors", result.survivors)):
                stored = np.flatnonzero(np.unpackbits(golden[f"{engine}.{router}"][number, column])[:cells])
                common = len(np.intersect1d(stored, survivors))
                assert common / (len(stored) + len(survivors) - common) >= (1.0 if exact else 0.98)
