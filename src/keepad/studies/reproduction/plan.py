"""What a reproduction will cost, said before it starts: trainings, disk, passes, time and memory."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from keepad.assembly import untrained
from keepad.errors import KeepADError
from keepad.evaluate.selection import groups_of
from keepad.network import Network
from keepad.presets import operating_point
from keepad.studies.reproduction.checkpoints import FULL, existing, folder_of
from keepad.studies.reproduction.settings import Direction, Settings
from keepad.studies.reproduction.tables import TABLES, needs_of, variants_of
from keepad.studies.reproduction.variants import Base
from keepad.training.recipe import RECIPES, ROUTER_RECIPES

_STATE_MB = 12  # pixel metrics of one variant while a class is evaluated
_PRUNED = 0.5  # of a dense pass: a variant from the tokens that enter the shallow router
_BACKWARD = 2.5  # of a dense pass: a training step of the routers, per image
_WARM = 1e9  # bytes of the process itself


@dataclass(frozen=True)
class Cost:
    """What is left to do in one direction.

    Attributes:
        title: Of the direction.
        trainings: Names of what is trained.
        features: Bytes of the feature cache.
        images: Images that are evaluated.
        variants: Variants of each.
        seconds: Estimated time.
    """

    title: str
    trainings: tuple[str, ...]
    features: int
    images: int
    variants: int
    seconds: float


def costs(settings: Settings) -> list[Cost]:
    """The cost of either direction, from one timed pass of the backbone with random weights."""
    network = untrained(settings.backbone, image_size=settings.image_size)
    seconds = _seconds(network)
    variants = len(variants_of(settings.tables, Base.of_network(network, settings.recipe)))
    return [_cost(settings, direction, network, variants, seconds) for direction in settings.directions()]


def _cost(settings: Settings, direction: Direction, network: Network, variants: int, seconds: float) -> Cost:
    needs = [FULL, *needs_of(settings.tables, settings.seeds)]
    missing = [need for need in needs if settings.train and existing(settings, direction, need) is None]
    source = len(settings.dataset.select(suites=list(direction.source), split="test").samples)
    suites = [*direction.targets, *direction.others]
    groups = groups_of(settings.dataset.select(suites=suites), settings.limit)
    images = sum(map(len, groups.values()))
    variants += len(needs) - 1 + sum(len(TABLES[name].later) for name in settings.tables) * 2
    recipe, routers = RECIPES[settings.recipe], ROUTER_RECIPES[settings.recipe]
    tokens = network.backbone.prefix + network.grid[0] * network.grid[1]
    stage1 = not (folder_of(settings, direction) / "detector.safetensors").is_file()
    stage1 = stage1 and direction.name not in settings.checkpoints and bool(missing)
    layers = len(recipe.layers(network.backbone.depth)) if stage1 else 0
    per_layer = tokens * network.backbone.width * 2
    # Stage 2 adds the blocks before either router.
    features = (source * (1 + recipe.views) * layers + (source * 6 if missing else 0)) * per_layer
    epochs = 1 if settings.quick else routers.epochs
    per_epoch = min(8 if settings.quick else routers.images or source, source)
    training = seconds * (source * (1 + recipe.views) * bool(missing) + len(missing) * epochs * per_epoch * _BACKWARD)
    evaluating = images * seconds * (1 + _PRUNED * variants)
    names = (*(("detector",) if stage1 else ()), *(need.name for need in missing))
    return Cost(direction.title, names, features, images, variants, training + evaluating)


def _seconds(network: Network) -> float:
    """Seconds of a dense pass of one image on this machine, now."""
    pixels = np.random.default_rng(0).integers(0, 255, (1, *network.image_size, 3), dtype=np.uint8)
    times = []
    for _ in range(2):
        started = time.perf_counter()
        network.infer(pixels, [operating_point("dense")])
        times.append(time.perf_counter() - started)
    return min(times)


def plan_lines(settings: Settings, planned: Sequence[Cost]) -> list[str]:
    """The plan in words.

    Raises:
        KeepADError: The features do not fit the limit of the cache.
    """
    total, disk = sum(cost.seconds for cost in planned), max(cost.features for cost in planned)
    if disk > settings.cache_limit:
        raise KeepADError(
            f"the features of one direction need {disk / 1e9:.1f} GB, more than --cache-limit allows "
            f"({settings.cache_limit / 1e9:.1f} GB); raise it, or name fewer suites."
        )
    variants = max(cost.variants for cost in planned)
    memory = (_STATE_MB * 1e6 * variants + _WARM) / 1e9
    lines = [f"tables: {', '.join(settings.tables)}"]
    for cost in planned:
        trained = f"train {', '.join(cost.trainings)}" if cost.trainings else "nothing to train"
        lines.append(
            f"{cost.title}: {trained}; {cost.images} images x {cost.variants} variants; features "
            f"{cost.features / 1e9:.1f} GB"
        )
    device = "GPU" if torch.cuda.is_available() else f"{torch.get_num_threads()} CPU threads"
    lines.append(
        f"about {math.ceil(total / 60)} minutes on {device} if nothing is done yet, {disk / 1e9:.1f} GB of features, "
        f"{variants * 0.3:.0f} MB of states for each class, {memory:.1f} GB of memory"
    )
    return lines
