"""KeepAD in anomalib's Engine: the same scores as ours, its data modules, metrics and pictures."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from keepad.detector import Detector
from keepad.errors import KeepADError
from keepad.images import read_image, to_input
from keepad.metrics import auroc
from keepad.network import Network

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    anomalib = pytest.importorskip("anomalib", reason="anomalib is not installed")
    from anomalib import LearningType
    from anomalib.data import Folder
    from anomalib.engine import Engine

    from keepad.integrations import anomalib as integration
    from keepad.integrations.anomalib import KeepAD, PillowResize, UnscaledPostProcessor

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def small(tiny: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    """The small random network in place of a checkpoint."""

    def load(what: Any = None, *, point: Any = None, profile: Any = None, **_: Any) -> Detector:
        detector = Detector(tiny, point or "prune70")
        return detector if profile is None else detector.with_profile(profile)

    monkeypatch.setattr(integration, "load", load)


@pytest.fixture
def data(tmp_path: Path) -> Folder:
    """Good and bad images with masks, in anomalib's Folder."""
    random = np.random.default_rng(0)
    for kind, count in (("train", 6), ("good", 5), ("bad", 5)):
        for number in range(count):
            pixels = random.integers(90, 140, (90, 110, 3), dtype=np.uint8)
            mask = np.zeros((90, 110), np.uint8)
            if kind == "bad":
                pixels[20:50, 30:60] = random.integers(0, 255, (30, 30, 3), dtype=np.uint8)
                mask[20:50, 30:60] = 255
                (tmp_path / "data" / "mask").mkdir(parents=True, exist_ok=True)
                Image.fromarray(mask).save(tmp_path / "data" / "mask" / f"{number}.png")
            (tmp_path / "data" / kind).mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(tmp_path / "data" / kind / f"{number}.png")
    return Folder(
        "made",
        root=tmp_path / "data",
        normal_dir="train",
        abnormal_dir="bad",
        normal_test_dir="good",
        mask_dir="mask",
        eval_batch_size=3,
        num_workers=0,
    )


def engine(tmp_path: Path) -> Engine:
    options = {"enable_progress_bar": False, "enable_model_summary": False}
    return Engine(default_root_dir=tmp_path / "results", accelerator="cpu", logger=False, **options)


@pytest.mark.parametrize("k_shot", [0, 3])
def test_the_engines_metrics_are_those_of_our_scores(tmp_path: Path, data: Folder, k_shot: int) -> None:
    model = KeepAD(k_shot=k_shot)
    assert model.learning_type == (LearningType.FEW_SHOT if k_shot else LearningType.ZERO_SHOT)
    (found,) = engine(tmp_path).test(model, datamodule=data, verbose=False)
    assert (model.detector.profile is not None) == bool(k_shot)
    samples = data.test_data.samples
    scores = [model.detector(path).pred_score for path in samples.image_path]
    assert found["image_AUROC"] == pytest.approx(auroc(scores, list(samples.label_index)), abs=1e-6)
    assert 0 <= found["pixel_AUROC"] <= 1
    pictures = list((tmp_path / "results").rglob("*.png"))
    assert len(pictures) == len(samples) >= 4


def test_predictions_are_ours_with_our_thresholds(tmp_path: Path, data: Folder) -> None:
    model = KeepAD(visualizer=False)
    detector = model.detector
    detector.set_threshold(0.5, 0.4)
    model.post_processor.know(detector)
    path = tmp_path / "data" / "bad" / "0.png"
    ours = detector(path)
    batches = engine(tmp_path).predict(model, data_path=path, return_predictions=True)
    (item,) = [item for batch in batches for item in batch]
    assert float(item.pred_score) == pytest.approx(ours.pred_score, abs=1e-6)
    assert np.abs(item.anomaly_map.squeeze().numpy() - ours.anomaly_map).max() < 1e-6
    assert bool(item.pred_label) == (ours.pred_score > 0.5)
    assert np.array_equal(item.pred_mask.squeeze().numpy(), ours.anomaly_map > 0.4)


def test_images_are_resized_as_ours_are(tmp_path: Path, data: Folder) -> None:
    path = tmp_path / "data" / "bad" / "0.png"
    image = torch.from_numpy(np.asarray(read_image(path)).copy()).permute(2, 0, 1)[None] / 255
    resized = PillowResize((144, 176))(image)
    assert np.array_equal((resized[0] * 255).round().byte().permute(1, 2, 0), to_input(read_image(path), (144, 176)))


def test_references_from_a_folder_and_a_profile(tmp_path: Path, data: Folder) -> None:
    model = KeepAD(few_shot_source=tmp_path / "data" / "train")
    model.setup("test")
    assert model.detector.profile is not None
    assert len(model.detector.profile.images) == 6
    model.detector.profile.save(tmp_path / "made.keepad")
    again = KeepAD(profile=tmp_path / "made.keepad")
    assert again.learning_type == LearningType.FEW_SHOT
    path = tmp_path / "data" / "bad" / "1.png"
    # A profile's file holds 16-bit numbers.
    assert again.detector(path).pred_score == pytest.approx(model.detector(path).pred_score, abs=1e-3)
    assert float(again.post_processor.image_threshold) == pytest.approx(again.detector.thresholds[0] or 0, abs=1e-6)


def test_the_post_processor_leaves_scores_alone() -> None:
    processor = UnscaledPostProcessor()
    assert not processor.enable_normalization


def test_wrong_use_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(KeepADError, match="not both"):
        KeepAD(profile=tmp_path / "x.keepad", k_shot=1)
    with pytest.raises(KeepADError, match="cannot be -1"):
        KeepAD(k_shot=-1)
    with pytest.raises(KeepADError, match="keepad export"):
        KeepAD().to_onnx(tmp_path)
