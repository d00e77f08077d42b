"""Stage 1: prototypes of the dense detector, trained on cached features of a frozen backbone."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import timm
import torch

from keepad.backbone import DEFAULT_BACKBONE, load_backbone
from keepad.checkpoint import CheckpointInfo, write_checkpoint
from keepad.data import Sample, licence_of
from keepad.loading import HELD_OUT, trained_tensors, with_fresh_parts
from keepad.network import KeepAD
from keepad.presets import Calibration, Placement, Reading
from keepad.training.calibration import HeldOut, Validation, calibrate, level_readings
from keepad.training.dataset import Say, check_source, fill, gather
from keepad.training.feature_cache import DEFAULT_LIMIT, FeatureCache
from keepad.training.fitting import Epoch, Fitting
from keepad.training.head_bank import head_from
from keepad.training.model_card import write_record
from keepad.training.recipe import RECIPES, DetectorRecipe
from keepad.training.selector_init import set_up_selectors
from keepad.version import __version__

if TYPE_CHECKING:
    from lightning_fabric import Fabric

Progress = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]


@dataclass(frozen=True)
class Plan:
    """What is trained, on what, and where it goes.

    Attributes:
        samples: Labelled images of the source.
        out: The checkpoint.
        recipe: How.
        backbone: Name of the backbone.
        weights: File with its weights instead of the cached or downloaded ones.
        image_size: Height and width of the network's input; the backbone's own if None.
        classes: Classes that were asked for; all if empty.
        seed: First values and order; the same seed gives the same bytes.
        cache: Folder of the feature cache; the user's own if None.
        cache_limit: Bytes that it may hold.
    """

    samples: Sequence[Sample]
    out: Path
    recipe: DetectorRecipe
    backbone: str = DEFAULT_BACKBONE
    weights: Path | None = None
    image_size: tuple[int, int] | None = None
    classes: Sequence[str] = ()
    seed: int = 42
    cache: Path | None = None
    cache_limit: int = DEFAULT_LIMIT


@dataclass(frozen=True)
class Trained:
    """A trained detector and how it came about.

    Attributes:
        model: The detector.
        validation: What held-out source images say about it.
        chosen: The epoch that was kept, counted from 0.
        seconds: Seconds spent on features and on training.
    """

    model: KeepAD
    validation: Validation
    chosen: int
    seconds: dict[str, float]


def train_detector(plan: Plan, fabric: Fabric, *, say: Say, progress: Progress) -> Trained:
    """Train a detector and write its checkpoint, with a model card and a picture of the losses beside it.

    An interrupted run goes on where it stopped when it is called again; what it needs for that lies beside the
    checkpoint until it is done.

    Raises:
        KeepADError: The source cannot be learned from, does not fit the cache, or something cannot be written.
    """
    started = time.perf_counter()
    samples, recipe = list(plan.samples), plan.recipe
    check_source(samples, say=say)
    backbone, spec, digest = load_backbone(plan.backbone, file=plan.weights, say=say)
    backbone.to(fabric.device)
    size = plan.image_size or spec.image_size
    grid, placement = backbone.grid_of(*size), recipe.placement(backbone.depth)
    cache = FeatureCache(backbone, digest, plan.cache, plan.cache_limit)
    with progress("source", len(samples)) as advance:
        source = gather(samples, views=recipe.views, size=size, grid=grid, advance=advance)
    with progress("features", len(samples)) as advance:
        share = (fabric.global_rank, fabric.world_size)
        fill(source, cache, recipe.layers(backbone.depth), share=share, advance=advance)
    fabric.barrier()
    prepared = time.perf_counter()

    fitting = Fitting(
        source,
        cache,
        recipe,
        placement=placement,
        norm=backbone.norm,
        judge=lambda held: _conclude(held, recipe, placement)[2],
        seed=plan.seed,
        fabric=fabric,
        state=plan.out.with_name(f"{plan.out.name}.state"),
        digest=digest,
    )
    fitting.run(say)
    chosen = max(range(len(fitting.epochs)), key=lambda number: fitting.epochs[number].validation.quality)
    epoch = fitting.epochs[chosen]
    held = fitting.held_out(epoch.patch, epoch.cls)
    readings, calibration, validation = _conclude(held, recipe, placement)
    say(f"epoch {chosen + 1} is kept: {validation}")

    model = with_fresh_parts(backbone, spec, seed=plan.seed, placement=placement, image_size=size)
    model.head = head_from(epoch.patch[-1], epoch.cls[-1], placement.head_layers, readings).to(fabric.device)
    model.to(fabric.device)
    model.calibration = calibration
    set_up_selectors(model, samples, seed=plan.seed)
    model.name, model.provenance = plan.out.stem, _provenance(plan, fitting.epochs, chosen, spec.name)
    info = CheckpointInfo(
        name=model.name,
        backbone=spec.name,
        backbone_digest=digest,
        image_size=size,
        mean=spec.mean,
        std=spec.std,
        antialias=spec.antialias,
        readings=readings,
        placement=placement,
        calibration=calibration,
        provenance=model.provenance,
    )
    if fabric.global_rank == 0:
        held_out = {f"{HELD_OUT}patch": epoch.patch[:-1], f"{HELD_OUT}cls": epoch.cls[:-1]}
        write_checkpoint(plan.out, {**trained_tensors(model), **held_out}, info)
        write_record(plan.out, info, fitting.epochs, chosen)
        fitting.forget()
    fabric.barrier()
    seconds = {"features": prepared - started, "training": time.perf_counter() - prepared}
    return Trained(model, validation, chosen, seconds)


def _conclude(
    held: HeldOut, recipe: DetectorRecipe, placement: Placement
) -> tuple[tuple[Reading, ...], Calibration, Validation]:
    """Readings, calibration and validation from held-out evidence."""
    plain = (Reading(),) * len(held.layers)
    readings = level_readings(held, recipe.unlike, recipe.entry, recipe.centre) if recipe.level else plain
    start = Calibration(smoothing=recipe.smoothing, top_fraction=recipe.top_fraction, top_of=recipe.top_of)
    return readings, *calibrate(held, readings, placement, start)


def _provenance(plan: Plan, epochs: Sequence[Epoch], chosen: int, backbone: str) -> dict[str, Any]:
    """Where a checkpoint comes from; nothing that differs between two runs of the same training."""
    suites = sorted({sample.suite for sample in plan.samples})
    validation = epochs[chosen].validation
    return {
        "what": f"dense detector trained on {', '.join(suites)}; selectors set up from a seed, not trained",
        "data": data_of(plan.samples),
        "licence": licence_line(suites),
        "command": (
            f"keepad train detector --data DATA --suites {','.join(suites)} "
            + (f"--classes {','.join(plan.classes)} " if plan.classes else "")
            + f"--backbone {backbone} "
            + (f"--image-size {plan.image_size[0]} " if plan.image_size else "")
            + (f"--epochs {plan.recipe.epochs} " if plan.recipe not in RECIPES.values() else "")
            + f"--recipe {plan.recipe.name} --seed {plan.seed} --out {plan.out.name}"
        ),
        "recipe": asdict(plan.recipe),
        "seed": plan.seed,
        "epoch": chosen + 1,
        "validation": asdict(validation),
        "versions": {
            "keepad": __version__,
            "torch": torch.__version__,
            "timm": timm.__version__,
            "python": platform.python_version(),
        },
    }


def data_of(samples: Sequence[Sample]) -> list[dict[str, Any]]:
    """What was learned from, suite by suite."""
    return [
        {
            "suite": suite,
            "split": "test",
            "classes": len({sample.cls for sample in samples if sample.suite == suite}),
            "images": sum(sample.suite == suite for sample in samples),
            "anomalous": sum(sample.suite == suite and sample.label for sample in samples),
            "licence": licence_of(suite),
        }
        for suite in sorted({sample.suite for sample in samples})
    ]


def licence_line(suites: Sequence[str]) -> str:
    """Licence of what was trained on these suites."""
    return f"Apache-2.0; trained on data under {', '.join(sorted({licence_of(suite) for suite in suites}))}"
