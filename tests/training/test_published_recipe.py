"""The published recipe of the routers: its switches, each against what it stands for."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from lightning_fabric import Fabric
from typer.testing import CliRunner

from keepad.assembly import with_fresh_parts
from keepad.backbone import build_backbone
from keepad.checkpoint import read_info
from keepad.cli import app
from keepad.console import progress
from keepad.data import read_dataset
from keepad.errors import KeepADError
from keepad.images import read_image, to_input
from keepad.network import Network
from keepad.training import dataset
from keepad.training.dataset import CachedImage
from keepad.training.epochs import EpochLoop, RunOptions
from keepad.training.losses import dice, focal, label_cross_entropy
from keepad.training.plan import DetectorPlan, RouterPlan
from keepad.training.recipe import RECIPES, ROUTER_RECIPES
from keepad.training.router_training import RouterLosses, training_point
from keepad.training.selector_init import scale_selectors
from keepad.training.stage1 import train_detector
from keepad.training.stage2 import train_routers
from keepad.training.student import sparse_pass
from random_weights import lively
from training_data import BACKBONE, SIZE

PAPER = ROUTER_RECIPES["paper"]


def quiet(line: str) -> None:
    pass


@pytest.fixture(scope="module")
def detector(data: Path, weights: Path, cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("detector") / "dense.safetensors"
    recipe = replace(RECIPES["paper"], epochs=1, views=0)
    plan = DetectorPlan(
        samples=read_dataset(data).samples,
        out=out,
        recipe=recipe,
        backbone=BACKBONE,
        weights=weights,
        sizes=(SIZE,),
        cache=cache,
    )
    train_detector(plan, Fabric(accelerator="cpu", devices=1), say=quiet, progress=progress)
    return out


def test_what_we_add_is_off_in_the_published_recipe_and_on_in_ours() -> None:
    ours = ROUTER_RECIPES["keepad"]
    assert (PAPER.cosine, PAPER.clip, PAPER.held_out, PAPER.pixel_loss) == (False, None, False, True)
    assert (PAPER.hard_choice, PAPER.start) == (True, "unit")
    assert (ours.cosine, ours.clip, ours.held_out, ours.pixel_loss, ours.hard_choice) == (True, 1.0, True, False, False)


def test_drawn_selectors_get_scores_that_deviate_by_one(data: Path) -> None:
    backbone, spec = build_backbone(BACKBONE, seed=1)
    network = with_fresh_parts(lively(backbone), spec, seed=3, image_size=SIZE)
    samples = read_dataset(data).samples
    assert spread(network, samples)[0] < 0.5  # as drawn
    scale_selectors(network, samples)
    assert spread(network, samples) == pytest.approx([1.0, 1.0], abs=0.05)


def spread(network: Network, samples: object) -> list[float]:
    """Deviation of shallow and of visual deep scores within an image, mean over images."""
    values = []
    for sample in samples:  # type: ignore[attr-defined]
        pixels = torch.from_numpy(to_input(read_image(sample.image), network.image_size))
        with torch.no_grad():
            early = network.encode(pixels.permute(2, 0, 1)[None].float() / 255)
            scores = network.shallow_scores(early)[0], network.deep.visual(network.middle(early).patches())
        values.append([float(own.std(correction=0)) for own in scores])
    return torch.tensor(values).mean(0).tolist()


def test_the_detection_loss_is_that_of_pixels(tiny: Network) -> None:
    point = training_point(PAPER, tiny.calibration, tiny.grid)
    images = torch.rand(1, 3, *tiny.image_size, generator=torch.Generator().manual_seed(0))
    mask = torch.zeros(tiny.image_size, dtype=torch.bool)
    mask[20:50, 30:75] = True
    defect = mask.view(9, 16, 11, 16).any(3).any(1).reshape(-1)
    packed = np.packbits(mask.numpy())
    with torch.no_grad():
        tokens = tiny.encode(images)
        losses = RouterLosses(tiny, PAPER, point)(
            tokens, [CachedImage("x", 1, defect.numpy(), packed)], [torch.rand(99)]
        )
        student = sparse_pass(tiny, tokens, point, hard_choice=True)
        grown = F.interpolate(student.maps.view(1, 1, 9, 11), tiny.image_size, mode="bilinear").flatten(1)
        cls = torch.stack(list(student.responses.cls.values()), dim=1)
        wanted = mask.flatten()[None].float()
        expected = focal(grown, wanted) + dice(grown, wanted) + label_cross_entropy(cls, torch.ones(1))
    assert float(losses["detection"]) == pytest.approx(float(expected), rel=1e-5)


def test_a_constant_rate_stays_and_a_cosine_falls(tmp_path: Path) -> None:
    class Losses(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(()))

        def forward(self) -> dict[str, torch.Tensor]:
            return {"loss": self.weight**2}

    fabric, rates = Fabric(accelerator="cpu", devices=1), []
    for cosine in (False, True):
        module = Losses()
        options = RunOptions(replace(PAPER, epochs=2), 0, fabric, tmp_path / f"{cosine}.state", [], cosine=cosine)
        loop = EpochLoop(module, module, torch.arange(8), options)
        loop._train(0, lambda images, draws: ())
        rates.append(loop._optimiser.param_groups[0]["lr"])
    assert rates[0] == PAPER.rate
    assert rates[1] < PAPER.rate


def test_views_of_trained_images_hold_no_held_out_pixels(data: Path) -> None:
    samples = read_dataset(data).samples
    held_out = {sample for sample, out in zip(samples, dataset._held_out(samples), strict=True) if out}
    assert len(held_out) == 6  # of each of three classes one normal and one anomalous image
    peers = dataset._peers(samples)
    assert Counter(map(len, peers.values())) == {8: 24, 10: 6}
    for sample, mates in peers.items():
        assert {mate.cls for mate in mates} == {sample.cls}
        assert sample in mates
        assert sample in held_out or not held_out & set(mates)


def test_all_of_the_source_is_trained_on_and_an_epoch_can_be_forced(
    detector: Path, data: Path, weights: Path, cache: Path, tmp_path: Path
) -> None:
    out, samples = tmp_path / "routed.safetensors", read_dataset(data).samples
    recipe = replace(PAPER, epochs=2, keep_epoch=1)
    plan = RouterPlan(detector=detector, samples=samples, out=out, recipe=recipe, weights=weights, cache=cache)
    trained = train_routers(plan, Fabric(accelerator="cpu", devices=1), say=quiet, progress=progress)
    assert trained.chosen == 0
    routers = read_info(out).provenance["routers"]
    assert "--keep-epoch 1" in routers["command"]
    assert [suite["suite"] for suite in routers["data"]] == [samples[0].suite]
    content = json.loads(out.with_suffix(".json").read_text())
    assert content["epochs"][0]["validation"]["anomalous"] == 15  # every one of them, trained on or not
    with pytest.raises(KeepADError, match="epoch 3 cannot be kept of 2"):
        train_routers(
            replace(plan, recipe=replace(recipe, keep_epoch=3)), Fabric(accelerator="cpu"), say=quiet, progress=progress
        )
    done = CliRunner().invoke(app, ["train", "routers", "--help"])
    assert "--keep-epoch" in done.output


def test_a_head_layer_before_the_deep_router_can_be_trained(
    detector: Path, data: Path, weights: Path, cache: Path, tmp_path: Path
) -> None:
    """The paper's L10/L14 in a backbone of half the depth; its first head layer is 6."""
    plan = RouterPlan(
        detector=detector,
        samples=read_dataset(data).samples,
        out=tmp_path / "later.safetensors",
        recipe=replace(PAPER, epochs=1, points=("paper70",)),
        weights=weights,
        cache=cache,
        shallow=5,
        deep=7,
    )
    trained = train_routers(plan, Fabric(accelerator="cpu", devices=1), say=quiet, progress=progress)
    assert trained.network.placement.early_head_layers == (6,)
