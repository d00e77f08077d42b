"""Stage 2 as a whole: on small painted images and a small random backbone, through the same code as the real thing."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from lightning_fabric import Fabric
from training_data import BACKBONE, SIZE
from typer.testing import CliRunner

from keepad.checkpoint import read_checkpoint, read_info
from keepad.cli import app
from keepad.console import progress
from keepad.data import read_dataset
from keepad.errors import KeepADError
from keepad.loading import HELD_OUT, load
from keepad.presets import POINTS
from keepad.training.recipe import RECIPES, ROUTER_RECIPES, RouterRecipe
from keepad.training.stage1 import Plan, train_detector
from keepad.training.stage2 import RouterPlan, TrainedRouters, train_routers, training_point
from keepad.training.validation import Survived

SHORT = replace(ROUTER_RECIPES["keepad"], epochs=2)


@pytest.fixture(scope="module")
def detector(data: Path, weights: Path, cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("detector") / "dense.safetensors"
    plan = Plan(
        read_dataset(data).samples,
        out,
        replace(RECIPES["keepad"], epochs=2),
        backbone=BACKBONE,
        weights=weights,
        image_size=SIZE,
        cache=cache,
    )
    train_detector(plan, Fabric(accelerator="cpu", devices=1), say=lambda line: None, progress=progress)
    return out


def plan_of(detector: Path, data: Path, weights: Path, cache: Path, out: Path, **others: object) -> RouterPlan:
    out.parent.mkdir(exist_ok=True)
    plan = RouterPlan(detector, read_dataset(data).samples, out, SHORT, weights=weights, cache=cache)
    return replace(plan, **others)  # type: ignore[arg-type]


def taught(plan: RouterPlan, said: list[str] | None = None) -> TrainedRouters:
    told = [] if said is None else said
    return train_routers(plan, Fabric(accelerator="cpu", devices=1), say=told.append, progress=progress)


@pytest.mark.parametrize("recipe", ["paper", "keepad"])
def test_only_selectors_learn(
    recipe: str, detector: Path, data: Path, weights: Path, cache: Path, tmp_path: Path
) -> None:
    out = tmp_path / "routed.safetensors"
    short = replace(ROUTER_RECIPES[recipe], epochs=1, rate=1e-3)
    trained = taught(plan_of(detector, data, weights, cache, out, recipe=short))
    before, after = read_checkpoint(detector)[1], read_checkpoint(out)[1]
    for name in ("head.patch", "head.cls"):
        assert torch.equal(before[name], after[name])
    assert not any(name.startswith(HELD_OUT) for name in after)
    assert ("shallow.unlike" in after) == (recipe == "keepad")
    fresh = taught(plan_of(detector, data, weights, cache, tmp_path / "x.safetensors", recipe=replace(short, rate=0.0)))
    for name, value in {**dict(trained.model.shallow.state_dict()), **dict(trained.model.deep.state_dict())}.items():
        other = {**dict(fresh.model.shallow.state_dict()), **dict(fresh.model.deep.state_dict())}[name]
        assert not torch.equal(value, other), name
    model = load(out, "prune70", "cpu", weights=weights, say=lambda line: None)
    assert model(data / "dots" / "test" / "cut" / "1.png").keep_final < 0.35


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(
    detector: Path, data: Path, weights: Path, cache: Path, tmp_path: Path
) -> None:
    paths = [tmp_path / folder / "one.safetensors" for folder in "abc"]
    for path, seed in zip(paths, (1, 1, 2), strict=True):
        taught(plan_of(detector, data, weights, cache, path, seed=seed))
    first, again, other = (path.read_bytes() for path in paths)
    assert first == again
    assert first != other


def test_an_interrupted_run_goes_on_to_the_same_bytes(
    detector: Path, data: Path, weights: Path, cache: Path, tmp_path: Path
) -> None:
    whole, broken = tmp_path / "a" / "one.safetensors", tmp_path / "b" / "one.safetensors"
    taught(plan_of(detector, data, weights, cache, whole))

    class StoppedError(Exception):
        pass

    def stop(line: str) -> None:
        if line.startswith("epoch 2 of"):
            raise StoppedError

    plan = plan_of(detector, data, weights, cache, broken)
    with pytest.raises(StoppedError):
        train_routers(plan, Fabric(accelerator="cpu", devices=1), say=stop, progress=progress)
    assert broken.with_name("one.safetensors.state").is_file()
    said: list[str] = []
    taught(plan, said)
    assert "going on after epoch 1 of 2" in said
    assert broken.read_bytes() == whole.read_bytes()
    assert not broken.with_name("one.safetensors.state").exists()


def test_a_loss_that_is_left_out_is_not_there(
    detector: Path, data: Path, weights: Path, cache: Path, tmp_path: Path
) -> None:
    out = tmp_path / "routed.safetensors"
    taught(plan_of(detector, data, weights, cache, out, recipe=replace(SHORT, epochs=1).without(["teacher", "mask"])))
    losses = json.loads(out.with_suffix(".json").read_text())["epochs"][0]["losses"]
    assert set(losses) == {"detection", "flops", "preserve"}
    assert "--without teacher --without mask" in read_info(out).provenance["routers"]["command"]
    with pytest.raises(KeepADError, match="no loss called 'speed'"):
        SHORT.without(["speed"])


def test_other_layers_can_be_trained(detector: Path, data: Path, weights: Path, cache: Path, tmp_path: Path) -> None:
    out = tmp_path / "routed.safetensors"
    taught(plan_of(detector, data, weights, cache, out, recipe=replace(SHORT, epochs=1), shallow=3, deep=5))
    place = read_info(out).placement
    assert (place.shallow, place.deep) == (3, 5)
    with pytest.raises(KeepADError, match="routers must stand in order"):
        taught(plan_of(detector, data, weights, cache, out, shallow=6, deep=5))


def test_the_record_says_what_the_routers_do(
    detector: Path, data: Path, weights: Path, cache: Path, tmp_path: Path
) -> None:
    out = tmp_path / "routed.safetensors"
    given = {"--detector": detector, "--data": data, "--out": out, "--weights": weights, "--cache": cache}
    options = [part for name, value in given.items() for part in (name, str(value))]
    done = CliRunner().invoke(app, ["train", "routers", *options, "--epochs", "1", "--accelerator", "cpu"])
    assert done.exit_code == 0, done.output
    card = out.with_suffix(".md").read_text()
    assert "| prune70 |" in card
    assert "keepad train routers --detector dense.safetensors" in card
    assert out.with_suffix(".png").stat().st_size > 1000


def test_epochs_are_compared_by_lost_defects_first() -> None:
    safe = Survived(0.7, 0.8, 0.5, 0, 100, 0.18)
    sharp = Survived(0.9, 0.95, 0.9, 1, 100, 0.18)
    sharper = Survived(0.9, 0.95, 0.91, 1, 100, 0.18)
    assert safe.quality > sharper.quality > sharp.quality


def test_training_keeps_coverage_and_the_recipes_rescued_tokens() -> None:
    point = training_point(POINTS["paper70"], RouterRecipe("x", rescue=64), (37, 37))
    assert point.shallow is not None
    assert round(point.shallow.rho * 1369) == 361 + 64
    assert not point.early_exit
    with pytest.raises(KeepADError, match="cannot be trained at dense"):
        training_point(POINTS["dense"], RouterRecipe("x"), (37, 37))


def test_a_detector_of_other_weights_is_refused(
    detector: Path, data: Path, weights: Path, cache: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other.safetensors"
    shutil.copy(weights, other)
    content = bytearray(other.read_bytes())
    content[-1] ^= 1
    other.write_bytes(content)
    with pytest.raises(KeepADError, match="other weights"):
        taught(plan_of(detector, data, other, cache, tmp_path / "out.safetensors"))


def test_the_published_recipe_is_the_published_one() -> None:
    recipe = ROUTER_RECIPES["paper"]
    assert (recipe.epochs, recipe.batch, recipe.rate, recipe.decay, recipe.rescue) == (10, 4, 5e-5, 0.01, 64)
    assert dict(recipe.losses) == {"flops": 0.45, "preserve": 0.22, "teacher": 0.60, "mask": 0.25}
    assert not recipe.cues
