"""Checkpoints of a reproduction: which ones its tables need, and their training where they are missing."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from pathlib import Path

from keepad.checkpoint import read_info
from keepad.errors import KeepADError
from keepad.loading import resolve_checkpoint
from keepad.studies.reproduction.settings import Direction, Settings

LAYER_PAIRS = {"L6 / L10": (6, 10), "L10 / L14": (10, 14)}  # of 24 blocks
LOSSES = ("flops", "preserve", "mask", "teacher")


@dataclass(frozen=True)
class Need:
    """Routers that are trained anew.

    Attributes:
        name: Name of the variant.
        without: Loss that is left out, or None.
        layers: Blocks of both routers, as 24ths of the depth, or None for the recipe's own.
        seed: Seed.
    """

    name: str
    without: str | None = None
    layers: tuple[int, int] | None = None
    seed: int = 42


FULL = Need("full")


def loss_needs() -> list[Need]:
    """Each loss left out."""
    return [Need(f"without {loss}", without=loss) for loss in LOSSES]


def layer_needs() -> list[Need]:
    """Other places of both routers."""
    return [Need(name, layers=layers) for name, layers in LAYER_PAIRS.items()]


def seed_needs(seeds: tuple[int, ...]) -> list[Need]:
    """The full method and that without teacher from the seeds after the first, which other tables train."""
    needs = [Need("without teacher", without="teacher")]
    for seed in seeds[1:]:
        needs += [Need(f"full, seed {seed}", seed=seed), Need(f"without teacher, seed {seed}", "teacher", seed=seed)]
    return needs


def folder_of(settings: Settings, direction: Direction) -> Path:
    """Folder of the checkpoints that are trained for a direction."""
    return settings.out / "checkpoints" / f"{direction.name}-{settings.recipe}"


def existing(settings: Settings, direction: Direction, need: Need) -> Path | None:
    """The checkpoint of a need, if it is there."""
    given = settings.checkpoints.get(direction.name)
    if given is not None and need == FULL:
        path = resolve_checkpoint(given)
        seen = {entry["suite"] for entry in read_info(path).provenance.get("data", [])}
        clash = sorted(seen & {*direction.targets, *direction.others})
        if clash:
            raise KeepADError(
                f"{path.name} was trained on {', '.join(clash)}, which it would be tested on; name another checkpoint."
            )
        return path
    path = folder_of(settings, direction) / f"{_file_name(need.name)}.safetensors"
    return path if path.is_file() else None


def obtain(settings: Settings, direction: Direction, need: Need) -> Path | None:
    """The checkpoint of a need, trained if that is allowed; None if it is missing."""
    found = existing(settings, direction, need)
    if found is not None or not settings.train:
        return found
    folder = folder_of(settings, direction)
    folder.mkdir(parents=True, exist_ok=True)
    given = settings.checkpoints.get(direction.name)
    detector = resolve_checkpoint(given) if given is not None else _detector(settings, direction)
    settings.say(f"{direction.title}: training routers, {need.name}")
    from lightning_fabric import Fabric

    from keepad.training.plan import RouterPlan
    from keepad.training.recipe import ROUTER_RECIPES
    from keepad.training.stage2 import train_routers

    recipe = ROUTER_RECIPES[settings.recipe].without([need.without] if need.without else [])
    if settings.quick:
        recipe = replace(recipe, epochs=1, images=8, tuned=False, points=(recipe.points[-1],))
    shallow, deep = (None, None) if need.layers is None else _scaled(need.layers, detector)
    out = folder / f"{_file_name(need.name)}.safetensors"
    plan = RouterPlan(
        detector=detector,
        samples=settings.dataset.select(suites=list(direction.source), split="test").samples,
        out=out,
        recipe=recipe,
        weights=settings.weights,
        seed=need.seed,
        cache=settings.cache,
        cache_limit=settings.cache_limit,
        shallow=shallow,
        deep=deep,
    )
    train_routers(plan, Fabric(accelerator="auto", devices=1), say=settings.say, progress=settings.progress)
    return out


def _detector(settings: Settings, direction: Direction) -> Path:
    """The dense detector of a direction, trained if it is missing."""
    out = folder_of(settings, direction) / "detector.safetensors"
    if out.is_file():
        return out
    settings.say(f"{direction.title}: training the dense detector")
    from lightning_fabric import Fabric

    from keepad.training.plan import DetectorPlan
    from keepad.training.recipe import RECIPES
    from keepad.training.stage1 import train_detector

    recipe = RECIPES[settings.recipe]
    if settings.quick:
        recipe = replace(recipe, epochs=1, tuned=False, views=min(1, recipe.views))
    plan = DetectorPlan(
        samples=settings.dataset.select(suites=list(direction.source), split="test").samples,
        out=out,
        recipe=recipe,
        backbone=settings.backbone,
        weights=settings.weights,
        sizes=() if settings.image_size is None else (settings.image_size,),
        cache=settings.cache,
        cache_limit=settings.cache_limit,
    )
    train_detector(plan, Fabric(accelerator="auto", devices=1), say=settings.say, progress=settings.progress)
    return out


def _scaled(layers: tuple[int, int], detector: Path) -> tuple[int, int]:
    """Blocks of a pair in the detector's own depth."""
    from keepad.backbone import build_backbone

    depth = build_backbone(read_info(detector).backbone, seed=0)[0].depth
    shallow, deep = (math.ceil(layer * depth / 24) for layer in layers)
    return shallow, deep


def _file_name(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
