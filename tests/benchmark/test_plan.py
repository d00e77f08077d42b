"""Plans: what is refused before anything is loaded, and which images are timed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import keepad.demo
from keepad.benchmark import BenchmarkPlan, TimedImages, timed_images
from keepad.errors import KeepADError


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"engines": ("warp",)}, "no engine called 'warp' to time; choose one of torch, openvino, onnx"),
        ({"engines": ("auto",)}, "no engine called 'auto' to time"),
        ({"engines": ("openvino:int4",)}, "openvino cannot be exported as 'int4'; choose fp32 or bf16 or int8"),
        ({"engines": ("torch:bf16",)}, "torch takes no precision"),
        ({"exported": (Path("nowhere"),)}, "nowhere is not an exported detector"),
        ({"points": ("prune99",)}, "no operating point called 'prune99'"),
        ({"pixel_router": "maybe"}, "on or off, not 'maybe'"),
        ({"dtypes": ("float16",)}, "'float16' cannot be timed; choose one of float32, bfloat16"),
        ({"backbones": ("vit-of-nobody",)}, "no backbone called 'vit-of-nobody'"),
        ({"backbones": ()}, "must each name at least one"),
        ({"batches": (0,)}, "must be at least 1"),
        ({"threads": (0,)}, "must be at least 1"),
        ({"repeats": 0}, "must be at least 1"),
        ({"warmup": -1}, "warm-ups at least 0"),
    ],
)
def test_an_impossible_plan_is_refused(options: dict[str, object], sentence: str) -> None:
    with pytest.raises(KeepADError, match=sentence):
        BenchmarkPlan(**options)  # type: ignore[arg-type]


def test_exported_folders_are_timed_with_one_backbone_only(folders: dict[str, Path]) -> None:
    with pytest.raises(KeepADError, match="belong to one checkpoint"):
        BenchmarkPlan(backbones=("vit_tiny_patch16_224", "clip-vit-l-14-336"), exported=(folders["onnx"],))


def test_images_are_spread_over_the_folder(tmp_path: Path) -> None:
    for product in ("cable", "tile"):
        (tmp_path / product).mkdir()
        for i in range(4):
            Image.new("RGB", (8, 8)).save(tmp_path / product / f"{i}.png")
    assert timed_images(tmp_path, 4).names == ("cable/0.png", "cable/2.png", "tile/0.png", "tile/2.png")
    assert len(timed_images(tmp_path, 99).names) == 8


def test_demo_images_are_the_default(monkeypatch: pytest.MonkeyPatch, squares: TimedImages) -> None:
    demos = [
        keepad.demo.DemoImage(name, image, np.zeros((1, 1), bool), "metal", "good")
        for name, image in zip(squares.names, squares.images, strict=True)
    ]
    monkeypatch.setattr(keepad.demo, "demo_images", lambda: demos)
    assert timed_images(count=2) == TimedImages("demo", ("a.png", "b.png"), squares.images[:2])


def test_an_incomplete_batch_is_filled_from_the_first_images() -> None:
    greys = tuple(Image.new("RGB", (8, 8), (level,) * 3) for level in (10, 20, 30))
    batches = TimedImages("greys", ("a", "b", "c"), greys).batches((4, 6), 2)
    assert [batch.shape for batch in batches] == [(2, 4, 6, 3)] * 2
    assert [batch[:, 0, 0, 0].tolist() for batch in batches] == [[10, 20], [30, 10]]


def test_folder_without_images_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KeepADError, match="holds no image"):
        timed_images(tmp_path)
    with pytest.raises(KeepADError, match="is no folder"):
        timed_images(tmp_path / "nowhere")
    (tmp_path / "ground_truth").mkdir()
    Image.new("L", (8, 8)).save(tmp_path / "ground_truth" / "0_mask.png")
    with pytest.raises(KeepADError, match="no image but masks"):
        timed_images(tmp_path)
