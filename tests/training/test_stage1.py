"""Stage 1 as a whole: on small painted images and a small random backbone, through the same code as the real thing."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from lightning_fabric import Fabric
from PIL import Image
from training_data import BACKBONE, SIZE
from typer.testing import CliRunner

from keepad.checkpoint import read_checkpoint, read_info
from keepad.cli import app
from keepad.console import progress
from keepad.data import Dataset, read_dataset
from keepad.errors import KeepADError
from keepad.loading import load
from keepad.training.recipe import RECIPES, DetectorRecipe
from keepad.training.stage1 import Plan, train_detector

SHORT = replace(RECIPES["keepad"], epochs=2)


def trained(
    data: Dataset, out: Path, weights: Path, cache: Path, recipe: DetectorRecipe = SHORT, seed: int = 1
) -> list[str]:
    """Train and return what was said."""
    said: list[str] = []
    plan = Plan(data.samples, out, recipe, backbone=BACKBONE, weights=weights, image_size=SIZE, seed=seed, cache=cache)
    train_detector(plan, Fabric(accelerator="cpu", devices=1), say=said.append, progress=progress)
    return said


@pytest.mark.parametrize("recipe", ["paper", "keepad"])
def test_a_detector_learns_what_a_defect_looks_like_on_other_products(
    recipe: str, data: Path, weights: Path, cache: Path, tmp_path: Path
) -> None:
    out = tmp_path / "new.safetensors"
    trained(read_dataset(data), out, weights, cache, replace(RECIPES[recipe], epochs=4))
    info = read_info(out)
    found = info.provenance["validation"]
    assert found["image_auroc"] > 0.9
    assert found["patch_auroc"] > 0.9
    assert info.provenance["data"][0]["anomalous"] == 15
    model = load(out, "dense", "cpu", weights=weights, say=lambda line: None)
    bad, good = data / "dots" / "test" / "cut" / "1.png", data / "dots" / "test" / "good" / "0.png"
    assert model(bad).pred_score > model(good).pred_score
    mask = np.asarray(Image.open(data / "dots" / "ground_truth" / "cut" / "1_mask.png")) > 0
    seen = model(bad).anomaly_map
    assert seen[mask].mean() > seen[~mask].mean()


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(
    data: Path, weights: Path, cache: Path, tmp_path: Path
) -> None:
    first, again, other = (tmp_path / folder / "one.safetensors" for folder in "abc")
    for path in (first, again, other):
        path.parent.mkdir()
    trained(read_dataset(data), first, weights, cache)
    trained(read_dataset(data), again, weights, cache)
    trained(read_dataset(data), other, weights, cache, seed=2)
    assert first.read_bytes() == again.read_bytes()
    assert first.read_bytes() != other.read_bytes()


def test_an_interrupted_run_goes_on_to_the_same_bytes(data: Path, weights: Path, cache: Path, tmp_path: Path) -> None:
    recipe = replace(SHORT, epochs=3)
    whole, broken = tmp_path / "a" / "one.safetensors", tmp_path / "b" / "one.safetensors"
    for path in (whole, broken):
        path.parent.mkdir()
    trained(read_dataset(data), whole, weights, cache, recipe)
    plan = Plan(
        read_dataset(data).samples,
        broken,
        recipe,
        backbone=BACKBONE,
        weights=weights,
        image_size=SIZE,
        seed=1,
        cache=cache,
    )

    def stop_after_two(line: str) -> None:
        if line.startswith("epoch 3"):
            raise KeyboardInterrupt

    fabric = Fabric(accelerator="cpu", devices=1)
    with pytest.raises(KeyboardInterrupt):
        train_detector(plan, fabric, say=stop_after_two, progress=progress)
    assert not broken.exists()
    said = trained(read_dataset(data), broken, weights, cache, recipe)
    assert "going on after epoch 2 of 3" in said
    assert whole.read_bytes() == broken.read_bytes()
    assert not list(broken.parent.glob("*.state"))


def test_what_was_begun_with_other_settings_is_not_taken_up(
    data: Path, weights: Path, cache: Path, tmp_path: Path
) -> None:
    out = tmp_path / "one.safetensors"

    def stop(line: str) -> None:
        if line.startswith("epoch 2"):
            raise KeyboardInterrupt

    plan = Plan(
        read_dataset(data).samples, out, SHORT, backbone=BACKBONE, weights=weights, image_size=SIZE, seed=1, cache=cache
    )
    with pytest.raises(KeyboardInterrupt):
        train_detector(plan, Fabric(accelerator="cpu", devices=1), say=stop, progress=progress)
    said = trained(read_dataset(data), out, weights, cache, seed=7)
    assert any("starts over" in line for line in said)


def test_the_record_lies_beside_the_checkpoint(data: Path, weights: Path, cache: Path, tmp_path: Path) -> None:
    out = tmp_path / "mine.safetensors"
    trained(read_dataset(data), out, weights, cache)
    card = out.with_suffix(".md").read_text(encoding="utf-8")
    info = read_info(out)
    for said in ("# mine", BACKBONE, str(info.backbone_digest)[:12], "15", info.provenance["command"], "lambda"):
        assert said in card
    with Image.open(out.with_suffix(".png")) as picture:
        assert picture.width > 600
    assert str(tmp_path) not in card + info.to_json()


def test_two_processes_share_the_work(data: Path, weights: Path, tmp_path: Path) -> None:
    out = tmp_path / "two.safetensors"
    command = [sys.executable, "-m", "keepad", "train", "detector", "--data", str(data), "--out", str(out)]
    command += ["--backbone", BACKBONE, "--weights", str(weights), "--cache", str(tmp_path / "cache"), "--epochs", "1"]
    command += ["--image-size", "224"]
    done = subprocess.run(
        [*command, "--accelerator", "cpu", "--devices", "2"], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert read_checkpoint(out)[1]["head.patch"].isfinite().all()


# -- sources that teach little ---------------------------------------------------------------------------------------


def test_a_source_without_defects_cannot_be_learned_from(
    data: Path, weights: Path, cache: Path, tmp_path: Path
) -> None:
    whole = read_dataset(data)
    normal = replace(whole, samples=tuple(sample for sample in whole.samples if sample.label == 0))
    with pytest.raises(KeepADError, match="no anomalous image"):
        trained(normal, tmp_path / "one.safetensors", weights, cache)


def test_a_source_without_masks_cannot_teach_patches(data: Path, weights: Path, cache: Path, tmp_path: Path) -> None:
    whole = read_dataset(data)
    unmasked = replace(whole, samples=tuple(replace(sample, mask=None) for sample in whole.samples))
    with pytest.raises(KeepADError, match="patch prototypes cannot be trained"):
        trained(unmasked, tmp_path / "one.safetensors", weights, cache)


def test_a_source_without_normal_images_says_what_it_cannot_teach(
    data: Path, weights: Path, cache: Path, tmp_path: Path
) -> None:
    whole = read_dataset(data)
    bad = replace(whole, samples=tuple(sample for sample in whole.samples if sample.label == 1))
    out = tmp_path / "one.safetensors"
    said = trained(bad, out, weights, cache)
    assert any("CLS pathway, lambda and the image threshold cannot be trained" in line for line in said)
    info = read_info(out)
    assert info.calibration.patch_weight == 1.0
    assert info.calibration.image_threshold is None


def test_a_single_class_says_that_it_flatters(data: Path, weights: Path, cache: Path, tmp_path: Path) -> None:
    said = trained(read_dataset(data).select(classes=["dots"]), tmp_path / "one.safetensors", weights, cache)
    assert any("single class" in line and "flatters" in line for line in said)


def test_some_images_without_masks_train_the_cls_pathway_only(
    data: Path, weights: Path, cache: Path, tmp_path: Path
) -> None:
    whole = read_dataset(data)
    samples = tuple(replace(s, mask=None) if s.cls == "dots" else s for s in whole.samples)
    out = tmp_path / "one.safetensors"
    said = trained(replace(whole, samples=samples), out, weights, cache)
    assert any("5 anomalous images have no mask" in line for line in said)
    assert torch.isfinite(read_checkpoint(out)[1]["head.patch"]).all()


# -- the command -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("extra", "sentence"),
    [
        (["--out", "model.pt"], "a .safetensors file"),
        (["--out", "m.safetensors", "--recipe", "soup"], "no recipe called 'soup'"),
        (["--out", "m.safetensors", "--cache-limit", "0.0001"], "raise --cache-limit"),
    ],
)
def test_what_a_user_can_get_wrong_is_one_sentence(
    extra: list[str], sentence: str, data: Path, weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ["train", "detector", "--data", str(data), "--backbone", BACKBONE, "--weights", str(weights)]
    result = CliRunner().invoke(app, [*arguments, "--cache", str(tmp_path / "cache"), *extra])
    assert isinstance(result.exception, KeepADError)
    assert sentence in str(result.exception)


def test_the_published_recipe_is_the_published_one() -> None:
    paper = RECIPES["paper"]
    assert paper.placement(24).head_layers == (12, 15, 18, 21, 24)
    assert paper.placement(12).head_layers == (6, 8, 9, 11, 12)
    assert (paper.epochs, paper.batch, paper.rate, paper.decay, paper.augmented) == (15, 8, 1e-3, 0.01, 0.5)
    assert (paper.level, paper.unlike, paper.smoothing, paper.top_fraction) == (False, 0.0, 0.0, 0.05)
