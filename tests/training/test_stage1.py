"""Stage 1 end to end, on small painted images and a small random backbone."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from lightning_fabric import Fabric
from PIL import Image
from typer.testing import CliRunner

from keepad.checkpoint import read_checkpoint, read_info
from keepad.cli import app
from keepad.console import progress
from keepad.data import Dataset, read_dataset
from keepad.errors import KeepADError
from keepad.loading import load
from keepad.training.plan import DetectorPlan
from keepad.training.recipe import RECIPES, DetectorRecipe
from keepad.training.stage1 import train_detector
from training_data import BACKBONE, SIZE

SHORT = replace(RECIPES["keepad"], epochs=2, tuned=False)


def plan_of(
    data: Dataset, out: Path, weights: Path, cache: Path, recipe: DetectorRecipe = SHORT, seed: int = 1
) -> DetectorPlan:
    out.parent.mkdir(exist_ok=True)
    return DetectorPlan(
        samples=data.samples,
        out=out,
        recipe=recipe,
        backbone=BACKBONE,
        weights=weights,
        sizes=(SIZE,),
        seed=seed,
        cache=cache,
    )


def train(plan: DetectorPlan) -> list[str]:
    """Train and return the messages."""
    messages: list[str] = []
    train_detector(plan, Fabric(accelerator="cpu", devices=1), say=messages.append, progress=progress)
    return messages


def interrupt(plan: DetectorPlan, message: str) -> None:
    """Train and interrupt at the first message that starts like this."""

    def stop(line: str) -> None:
        if line.startswith(message):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_detector(plan, Fabric(accelerator="cpu", devices=1), say=stop, progress=progress)


@pytest.mark.parametrize("recipe", ["paper", "keepad"])
def test_a_detector_generalises_to_other_products(
    recipe: str, data: Path, weights: Path, cache: Path, tmp_path: Path
) -> None:
    out = tmp_path / "new.safetensors"
    train(plan_of(read_dataset(data), out, weights, cache, replace(RECIPES[recipe], epochs=4)))
    info = read_info(out)
    validation = info.provenance["validation"]
    assert validation["image_auroc"] > 0.9
    assert validation["patch_auroc"] > 0.9
    assert info.provenance["data"][0]["anomalous"] == 15
    model = load(out, point="dense", engine="torch", device="cpu", weights=weights, say=lambda line: None)
    bad, good = data / "dots" / "test" / "cut" / "1.png", data / "dots" / "test" / "good" / "0.png"
    assert model(bad).pred_score > model(good).pred_score
    mask = np.asarray(Image.open(data / "dots" / "ground_truth" / "cut" / "1_mask.png")) > 0
    anomaly_map = model(bad).anomaly_map
    assert anomaly_map[mask].mean() > anomaly_map[~mask].mean()


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(
    data: Path, weights: Path, cache: Path, tmp_path: Path
) -> None:
    first, again, other = (tmp_path / folder / "one.safetensors" for folder in "abc")
    for path, seed in ((first, 1), (again, 1), (other, 2)):
        train(plan_of(read_dataset(data), path, weights, cache, seed=seed))
    assert first.read_bytes() == again.read_bytes()
    assert first.read_bytes() != other.read_bytes()


def test_an_interrupted_run_goes_on_to_the_same_bytes(data: Path, weights: Path, cache: Path, tmp_path: Path) -> None:
    recipe = replace(SHORT, epochs=3)
    whole, broken = tmp_path / "a" / "one.safetensors", tmp_path / "b" / "one.safetensors"
    train(plan_of(read_dataset(data), whole, weights, cache, recipe))
    plan = plan_of(read_dataset(data), broken, weights, cache, recipe)
    interrupt(plan, "epoch 3")
    assert not broken.exists()
    assert "going on after epoch 2 of 3" in train(plan)
    assert whole.read_bytes() == broken.read_bytes()
    assert not list(broken.parent.glob("*.state"))


def test_a_run_with_other_settings_does_not_resume(data: Path, weights: Path, cache: Path, tmp_path: Path) -> None:
    plan = plan_of(read_dataset(data), tmp_path / "one.safetensors", weights, cache)
    interrupt(plan, "epoch 2")
    assert any("starts over" in line for line in train(replace(plan, seed=7)))


def test_a_damaged_state_file_is_one_sentence(data: Path, weights: Path, cache: Path, tmp_path: Path) -> None:
    plan = plan_of(read_dataset(data), tmp_path / "one.safetensors", weights, cache)
    interrupt(plan, "epoch 2")
    plan.state.write_bytes(plan.state.read_bytes()[:100])
    with pytest.raises(KeepADError, match="is damaged; remove it and start again"):
        train(plan)


def test_the_model_card_is_written_beside_the_checkpoint(
    data: Path, weights: Path, cache: Path, tmp_path: Path
) -> None:
    out = tmp_path / "mine.safetensors"
    train(plan_of(read_dataset(data), out, weights, cache))
    card = out.with_suffix(".md").read_text(encoding="utf-8")
    info = read_info(out)
    for part in ("# mine", BACKBONE, str(info.backbone_digest)[:12], "15", info.provenance["command"], "lambda"):
        assert part in card
    with Image.open(out.with_suffix(".png")) as curves:
        assert curves.width > 600
    assert str(tmp_path) not in card + info.to_json()


def test_tuning_chooses_on_the_source_and_the_card_says_what(
    data: Path, weights: Path, cache: Path, tmp_path: Path
) -> None:
    out = tmp_path / "mine.safetensors"
    plan = plan_of(read_dataset(data), out, weights, cache, replace(RECIPES["keepad"], epochs=1))
    train(replace(plan, sizes=((160, 160), (128, 128))))
    info = read_info(out)
    tuning, card = info.provenance["tuning"], out.with_suffix(".md").read_text(encoding="utf-8")
    assert tuning["sizes"][0]["image_size"] == [128, 128], "the smallest comes first"
    assert list(info.image_size) in [row["image_size"] for row in tuning["sizes"]]
    assert tuple(tuning["trials"][-1]["head_layers"]) == info.placement.head_layers
    assert tuning["trials"][-1]["image_auroc"] == info.provenance["validation"]["image_auroc"]
    assert info.calibration.patch_weight == 0.5
    assert info.placement.base_layers == info.placement.mid_layers
    assert "trials of tuning" in card
    assert "--image-size 160,128" in info.provenance["command"]
    assert not list(tmp_path.glob("*.state"))


def test_two_processes_share_the_work(data: Path, weights: Path, tmp_path: Path) -> None:
    out = tmp_path / "two.safetensors"
    command = [sys.executable, "-m", "keepad", "train", "detector", "--data", str(data), "--out", str(out)]
    command += ["--backbone", BACKBONE, "--weights", str(weights), "--cache", str(tmp_path / "cache"), "--epochs", "1"]
    command += ["--image-size", "224"]
    done = subprocess.run(
        [*command, "--accelerator", "cpu", "--devices", "2"], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert np.isfinite(read_checkpoint(out)[1]["head.patch"]).all()


# -- incomplete sources ----------------------------------------------------------------------------------------------


def test_a_source_without_defects_is_refused(data: Path, weights: Path, cache: Path, tmp_path: Path) -> None:
    whole = read_dataset(data)
    normal = replace(whole, samples=tuple(sample for sample in whole.samples if sample.label == 0))
    with pytest.raises(KeepADError, match="no anomalous image"):
        train(plan_of(normal, tmp_path / "one.safetensors", weights, cache))


def test_a_source_without_masks_is_refused(data: Path, weights: Path, cache: Path, tmp_path: Path) -> None:
    whole = read_dataset(data)
    unmasked = replace(whole, samples=tuple(replace(sample, mask=None) for sample in whole.samples))
    with pytest.raises(KeepADError, match="patch prototypes cannot be trained"):
        train(plan_of(unmasked, tmp_path / "one.safetensors", weights, cache))


def test_a_source_without_normal_images_reports_what_it_cannot_train(
    data: Path, weights: Path, cache: Path, tmp_path: Path
) -> None:
    whole = read_dataset(data)
    bad = replace(whole, samples=tuple(sample for sample in whole.samples if sample.label == 1))
    out = tmp_path / "one.safetensors"
    messages = train(plan_of(bad, out, weights, cache))
    assert any("CLS pathway, lambda and the image threshold cannot be trained" in line for line in messages)
    info = read_info(out)
    assert info.calibration.patch_weight == 1.0
    assert info.calibration.image_threshold is None


def test_a_single_class_reports_optimistic_validation(data: Path, weights: Path, cache: Path, tmp_path: Path) -> None:
    dots = read_dataset(data).select(classes=["dots"])
    messages = train(plan_of(dots, tmp_path / "one.safetensors", weights, cache))
    assert any("single class" in line and "optimistic" in line for line in messages)


def test_a_single_class_of_too_few_images_to_hold_one_out_is_refused(
    data: Path, weights: Path, cache: Path, tmp_path: Path
) -> None:
    dots = read_dataset(data).select(classes=["dots"])
    few = replace(dots, samples=(*dots.samples[:4], *dots.samples[-4:]))
    assert [sample.label for sample in few.samples].count(1) == 4
    with pytest.raises(KeepADError, match="no image can be held out for validation"):
        train(plan_of(few, tmp_path / "one.safetensors", weights, cache))


def test_some_images_without_masks_train_the_cls_pathway_only(
    data: Path, weights: Path, cache: Path, tmp_path: Path
) -> None:
    whole = read_dataset(data)
    samples = tuple(replace(s, mask=None) if s.cls == "dots" else s for s in whole.samples)
    out = tmp_path / "one.safetensors"
    messages = train(plan_of(replace(whole, samples=samples), out, weights, cache))
    assert any("5 anomalous images have no mask" in line for line in messages)
    assert np.isfinite(read_checkpoint(out)[1]["head.patch"]).all()


# -- the command -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("extra", "sentence"),
    [
        (["--out", "model.pt"], "a .safetensors file"),
        (["--out", "m.safetensors", "--recipe", "soup"], "no recipe called 'soup'"),
        (["--out", "m.safetensors", "--cache-limit", "0.0001"], "raise --cache-limit"),
        (["--out", "m.safetensors", "--image-size", "224,big"], "an image size is HxW in pixels such as 266x1036"),
        (["--out", "m.safetensors", "--recipe", "paper", "--tune"], "leave --tune out"),
        (["--out", "m.safetensors", "--image-size", "208,224", "--no-tune"], "needs one image size"),
    ],
)
def test_user_errors_are_one_sentence(
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
    assert (paper.level, paper.dissimilarity, paper.smoothing, paper.top_fraction) == (False, 0.0, 0.0, 0.05)
