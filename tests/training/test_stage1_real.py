"""Stage 1 on a few real images and the default backbone: trained on three products, tested on leather."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from lightning_fabric import Fabric

from keepad.console import progress
from keepad.data import Dataset, Sample, load_mask, read_dataset
from keepad.loading import load
from keepad.metrics import auroc
from keepad.training.plan import DetectorPlan
from keepad.training.recipe import RECIPES
from keepad.training.stage1 import train_detector


def _some(dataset: Dataset, cls: str, each: int) -> list[Sample]:
    """`each` normal and `each` anomalous images of a class."""
    samples = dataset.select(suites=["mvtec"], classes=[cls], split="test").samples
    return [sample for label in (0, 1) for sample in [sample for sample in samples if sample.label == label][:each]]


@pytest.mark.shared
@pytest.mark.weights
def test_a_few_real_images_suffice_to_localise_defects_of_another_product(shared_data: Path, tmp_path: Path) -> None:
    dataset = read_dataset(shared_data)
    out = tmp_path / "few.safetensors"
    plan = DetectorPlan(
        samples=[sample for cls in ("hazelnut", "pill", "cable") for sample in _some(dataset, cls, 6)],
        out=out,
        recipe=replace(RECIPES["keepad"], epochs=12),
        sizes=((392, 392),),
        cache=tmp_path / "cache",
    )
    train_detector(plan, Fabric(accelerator="cpu", devices=1), say=lambda line: None, progress=progress)
    model = load(out, point="dense", engine="torch", device="cpu")
    maps, masks = [], []
    for sample in _some(dataset, "leather", 3)[3:]:
        maps.append(model(sample.image).anomaly_map.ravel())
        masks.append(load_mask(sample, model.image_size).ravel())
    pixel_auroc = auroc(np.concatenate(maps), np.concatenate(masks))
    assert pixel_auroc is not None
    assert pixel_auroc > 0.8
