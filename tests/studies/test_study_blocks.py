"""The study of pixel blocks: shares counted by hand on an image that is half uniform."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from keepad.benchmark.flops import BackboneShape, BlockShape
from keepad.data import Sample
from keepad.studies.pixel_blocks import BUDGETS, Input, budget_rows

SHAPE = BackboneShape(patch=10, prefix=0, blocks=(BlockShape(projections=5, keys=2, mlp=5, attention=0),))


def sample_of(folder: Path, defect: tuple[slice, slice]) -> Sample:
    """64 x 64 pixels: the left half is uniform, the right half noise, with a defect."""
    pixels = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    pixels[:, :32] = 100
    mask = np.zeros((64, 64), np.uint8)
    mask[defect] = 255
    for name, array in (("image.png", pixels), ("mask.png", mask)):
        Image.fromarray(array).save(folder / name)
    return Sample("parts", "bolt", "test", "spot", 1, folder / "image.png", folder / "mask.png", folder)


def rows_of(sample: Sample) -> dict[str, list[str]]:
    rows = budget_rows([sample], Input((64, 64), (8, 8), SHAPE), "parts")
    return {row[0]: row[1:] for row in rows}


def test_uniform_blocks_of_two_keep_a_quarter_of_their_patches(tmp_path):
    # 8 x 8 patches: all 32 of the right half and 8 of the left enter; FLOPs of this shape are linear in patches.
    rows = rows_of(sample_of(tmp_path, (slice(0, 8), slice(32, 64))))
    assert len(rows) == len(BUDGETS)
    assert rows["2x2: 20"] == ["62.5 %", "62.5 %", "100.00 %", "0"]
    assert rows["4x4: 24, 2x2: 20"] == ["53.1 %", "53.1 %", "100.00 %", "0"]
    assert sum("(adopted)" in name for name in rows) == 1


def test_a_defect_on_patches_that_never_enter_is_lost(tmp_path):
    sample = sample_of(tmp_path, (slice(0, 8), slice(0, 32)))  # four patches, of which 4x4 blocks keep at most one
    retained, lost = rows_of(sample)["2x2: 20"][2:]
    assert float(retained.removesuffix(" %")) < 100
    assert lost == str(int(retained == "0.00 %"))
