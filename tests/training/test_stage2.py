"""Stage 2 end to end, on small painted images and a small random backbone."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest
import torch
from lightning_fabric import Fabric
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from keepad.assembly import HELD_OUT
from keepad.checkpoint import read_checkpoint, read_info
from keepad.cli import app
from keepad.console import Say, progress
from keepad.data import read_dataset
from keepad.errors import KeepADError
from keepad.loading import load
from keepad.presets import Calibration
from keepad.training.plan import DetectorPlan, RouterPlan
from keepad.training.recipe import RECIPES, ROUTER_RECIPES, RouterRecipe
from keepad.training.results import RouterValidation, Trained
from keepad.training.router_training import training_point
from keepad.training.stage1 import train_detector
from keepad.training.stage2 import train_routers
from training_data import BACKBONE, SIZE

SHORT = replace(ROUTER_RECIPES["keepad"], epochs=2, tuned=False)


@pytest.fixture(scope="module")
def detector(data: Path, weights: Path, cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("detector") / "dense.safetensors"
    plan = DetectorPlan(
        samples=read_dataset(data).samples,
        out=out,
        recipe=replace(RECIPES["keepad"], epochs=2, tuned=False),
        backbone=BACKBONE,
        weights=weights,
        sizes=(SIZE,),
        cache=cache,
    )
    train_detector(plan, Fabric(accelerator="cpu", devices=1), say=lambda line: None, progress=progress)
    return out


def plan_of(detector: Path, data: Path, weights: Path, cache: Path, out: Path, **others: object) -> RouterPlan:
    out.parent.mkdir(exist_ok=True)
    samples = read_dataset(data).samples
    plan = RouterPlan(detector=detector, samples=samples, out=out, recipe=SHORT, weights=weights, cache=cache)
    return replace(plan, **others)  # type: ignore[arg-type]


def train(plan: RouterPlan, say: Say = lambda line: None) -> Trained:
    return train_routers(plan, Fabric(accelerator="cpu", devices=1), say=say, progress=progress)


@pytest.mark.parametrize("recipe", ["paper", "keepad"])
def test_only_selectors_are_trained(
    recipe: str, detector: Path, data: Path, weights: Path, cache: Path, tmp_path: Path
) -> None:
    out = tmp_path / "routed.safetensors"
    short = replace(ROUTER_RECIPES[recipe], epochs=1, rate=1e-3, tuned=False)
    trained = train(plan_of(detector, data, weights, cache, out, recipe=short))
    before, after = read_checkpoint(detector)[1], read_checkpoint(out)[1]
    for name in ("head.patch", "head.cls"):
        np.testing.assert_array_equal(before[name], after[name])
    assert not any(name.startswith(HELD_OUT) for name in after)
    assert ("shallow.dissimilarity" in after) == (recipe == "keepad")
    fresh = train(plan_of(detector, data, weights, cache, tmp_path / "x.safetensors", recipe=replace(short, rate=0.0)))
    for part in ("shallow", "deep"):
        initial = fresh.network.get_submodule(part).state_dict()
        for name, value in trained.network.get_submodule(part).state_dict().items():
            assert not torch.equal(value, initial[name]), name
    model = load(out, point="prune70", engine="torch", device="cpu", weights=weights, say=lambda line: None)
    assert model(data / "dots" / "test" / "cut" / "1.png").keep_final < 0.35


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(
    detector: Path, data: Path, weights: Path, cache: Path, tmp_path: Path
) -> None:
    paths = [tmp_path / folder / "one.safetensors" for folder in "abc"]
    for path, seed in zip(paths, (1, 1, 2), strict=True):
        train(plan_of(detector, data, weights, cache, path, seed=seed))
    first, again, other = (path.read_bytes() for path in paths)
    assert first == again
    assert first != other


def test_an_interrupted_run_goes_on_to_the_same_bytes(
    detector: Path, data: Path, weights: Path, cache: Path, tmp_path: Path
) -> None:
    whole, broken = tmp_path / "a" / "one.safetensors", tmp_path / "b" / "one.safetensors"
    train(plan_of(detector, data, weights, cache, whole))

    class StoppedError(Exception):
        pass

    def stop(line: str) -> None:
        if line.startswith("epoch 2 of"):
            raise StoppedError

    plan = plan_of(detector, data, weights, cache, broken)
    with pytest.raises(StoppedError):
        train(plan, stop)
    assert broken.with_name("one.safetensors.state").is_file()
    messages: list[str] = []
    train(plan, messages.append)
    assert "going on after epoch 1 of 2" in messages
    assert broken.read_bytes() == whole.read_bytes()
    assert not broken.with_name("one.safetensors.state").exists()


def test_a_loss_can_be_left_out(detector: Path, data: Path, weights: Path, cache: Path, tmp_path: Path) -> None:
    out = tmp_path / "routed.safetensors"
    train(plan_of(detector, data, weights, cache, out, recipe=replace(SHORT, epochs=1).without(["teacher", "mask"])))
    losses = json.loads(out.with_suffix(".json").read_text())["epochs"][0]["losses"]
    assert set(losses) == {"detection", "flops", "preserve"}
    assert "--without teacher --without mask" in read_info(out).provenance["routers"]["command"]
    with pytest.raises(KeepADError, match="no loss called 'speed'"):
        SHORT.without(["speed"])


def test_tuning_chooses_within_what_prune70_promises(
    detector: Path, data: Path, weights: Path, cache: Path, tmp_path: Path
) -> None:
    out = tmp_path / "routed.safetensors"
    recipe = replace(ROUTER_RECIPES["keepad"], epochs=1, images=6)
    trained = train(plan_of(detector, data, weights, cache, out, recipe=recipe))
    info = read_info(out)
    *trials, choice = info.provenance["routers"]["tuning"]
    assert choice in trials
    assert (info.placement.shallow, info.calibration.coverage) == (choice["shallow"], choice["coverage"])
    assert (info.calibration.kappa, list(info.calibration.grades)) == (choice["kappa"], choice["grades"])
    assert trained.network.placement == info.placement
    assert "Trials of tuning the routers" in out.with_suffix(".md").read_text()


def test_other_layers_can_be_trained(detector: Path, data: Path, weights: Path, cache: Path, tmp_path: Path) -> None:
    out = tmp_path / "routed.safetensors"
    train(plan_of(detector, data, weights, cache, out, recipe=replace(SHORT, epochs=1), shallow=3, deep=5))
    placement = read_info(out).placement
    assert (placement.shallow, placement.deep) == (3, 5)
    with pytest.raises(KeepADError, match="routers must be in order"):
        train(plan_of(detector, data, weights, cache, out, shallow=6, deep=5))


def test_the_model_card_has_the_validation_of_every_point(
    detector: Path, data: Path, weights: Path, cache: Path, tmp_path: Path
) -> None:
    out = tmp_path / "routed.safetensors"
    paths = {"--detector": detector, "--data": data, "--out": out, "--weights": weights, "--cache": cache}
    options = [part for name, value in paths.items() for part in (name, str(value))]
    done = CliRunner().invoke(app, ["train", "routers", *options, "--epochs", "1", "--accelerator", "cpu"])
    assert done.exit_code == 0, done.output
    card = out.with_suffix(".md").read_text()
    assert "| prune70 |" in card
    assert "keepad train routers --detector dense.safetensors" in card
    assert out.with_suffix(".png").stat().st_size > 1000


def test_epochs_are_compared_by_lost_defects_first() -> None:
    safe = RouterValidation(0.7, 0.8, 0.5, 0, 100, 0.18)
    sharp = RouterValidation(0.9, 0.95, 0.9, 1, 100, 0.18)
    sharper = RouterValidation(0.9, 0.95, 0.91, 1, 100, 0.18)
    assert safe.quality > sharper.quality > sharp.quality


def test_training_keeps_coverage_and_the_recipes_rescued_tokens() -> None:
    point = training_point(RouterRecipe("x", point="paper70", rescue=64), Calibration(), (37, 37))
    assert point.shallow is not None
    assert round(point.shallow.rho * 1369) == 361 + 64
    assert not point.early_exit
    with pytest.raises(KeepADError, match="cannot be trained at dense"):
        training_point(RouterRecipe("x", point="dense"), Calibration(), (37, 37))


def test_a_detector_of_other_weights_is_refused(
    detector: Path, data: Path, weights: Path, cache: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other.safetensors"
    save_file({name: 1.1 * tensor for name, tensor in load_file(weights).items()}, other)
    with pytest.raises(KeepADError, match="other weights"):
        train(plan_of(detector, data, other, cache, tmp_path / "out.safetensors"))


@pytest.mark.parametrize("fewer", [{0: 4, 1: 4}, {0: 5, 1: 4}])
def test_a_source_of_which_no_defect_can_be_held_out_is_refused_at_once(
    fewer: dict[int, int], data: Path, weights: Path, cache: Path, tmp_path: Path
) -> None:
    plan = plan_of(tmp_path / "missing.safetensors", data, weights, cache, tmp_path / "out.safetensors")
    groups = groupby(plan.samples, key=lambda sample: (sample.cls, sample.label))
    samples = [sample for (_, label), group in groups for sample in list(group)[: fewer[label]]]
    with pytest.raises(KeepADError, match="every 5th anomalous image of a class is held out, and the source has no"):
        train(replace(plan, samples=samples))
    with pytest.raises(KeepADError, match="does not exist"):  # with the fifth image, the detector is looked for
        train(plan)


def test_the_published_recipe_is_the_published_one() -> None:
    recipe = ROUTER_RECIPES["paper"]
    assert (recipe.epochs, recipe.batch, recipe.rate, recipe.decay, recipe.rescue) == (10, 4, 5e-5, 0.01, 64)
    assert dict(recipe.losses) == {"flops": 0.45, "preserve": 0.22, "teacher": 0.60, "mask": 0.25}
    assert not recipe.cues
