"""COCO file: read back by pycocotools, its masks compared with ours."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from pycocotools import mask as coco_mask
from pycocotools.coco import COCO

from keepad.arrays import Array
from keepad.output import coco
from keepad.output.coco import CocoWriter, annotation
from keepad.prediction import Prediction
from keepad.regions import find_regions
from predictions import make_prediction


def prediction(mask: Array, **more: Any) -> Prediction:
    values = np.asarray(mask, np.float32)
    return make_prediction(anomaly_map=values, image_size=values.shape, **{"pixel_threshold": 0.5, **more})


def written(path: Path, *predictions: Prediction) -> COCO:
    writer = CocoWriter(path)
    for record in predictions:
        writer.add(record)
    assert not path.exists(), "it appears when it is complete"
    writer.close()
    return COCO(str(path))


def ring_and_dot() -> Array:
    values = np.zeros((20, 30), np.float32)
    values[3:12, 4:14] = 0.7
    values[5:9, 6:10] = 0  # a hole
    values[15, 20] = 0.9
    return values


def test_images_boxes_scores_and_masks_come_back(tmp_path: Path) -> None:
    record = prediction(ring_and_dot(), path=Path("line/ä.png"))
    empty = prediction(np.zeros((5, 6)), path=Path("b.png"))
    loaded = written(tmp_path / "regions.coco.json", record, empty)
    assert loaded.loadImgs([1, 2]) == [
        {"id": 1, "file_name": "line/ä.png", "width": 30, "height": 20},
        {"id": 2, "file_name": "b.png", "width": 6, "height": 5},
    ]
    assert [category["name"] for category in loaded.loadCats(loaded.getCatIds())] == ["anomaly"]
    dot, ring = loaded.loadAnns(loaded.getAnnIds(imgIds=[1], iscrowd=False))
    assert (dot["bbox"], dot["area"], dot["score"]) == ([20, 15, 1, 1], 1, pytest.approx(0.9))
    assert (ring["bbox"], ring["area"], ring["score"]) == ([4, 3, 10, 9], 74, pytest.approx(0.7))
    assert np.array_equal(loaded.annToMask(dot) + loaded.annToMask(ring), ring_and_dot() > 0.5)
    assert loaded.getAnnIds(imgIds=[2]) == []


@settings(deadline=None, max_examples=100)
@given(st.tuples(st.integers(1, 12), st.integers(1, 12)).flatmap(lambda shape: arrays(bool, shape)))
def test_pycocotools_fills_the_polygons_to_our_masks(mask: Array) -> None:
    total = np.zeros(mask.shape, int)
    for region in find_regions(mask.astype(np.float32), 0.5):
        runs = coco_mask.merge(coco_mask.frPyObjects(annotation(region)["segmentation"], *mask.shape))
        assert coco_mask.area(runs) == region.area
        total += coco_mask.decode(runs)
    assert np.array_equal(total, mask)


def test_no_image_is_a_valid_file(tmp_path: Path) -> None:
    assert written(tmp_path / "regions.coco.json").getImgIds() == []


def test_an_old_file_survives_a_failed_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "regions.coco.json"
    path.write_text("old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    writer = CocoWriter(path)
    writer.add(prediction(ring_and_dot()))
    with pytest.raises(OSError, match="No space"):
        writer.close()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_annotations_leave_memory_when_they_are_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coco, "_SPOOL", 100)
    path = tmp_path / "regions.coco.json"
    loaded = written(path, *(prediction(ring_and_dot()) for _ in range(5)))
    assert len(loaded.getAnnIds()) == 10
    assert [image["file_name"] for image in json.loads(path.read_text())["images"]][:2] == ["image 1", "image 2"]
