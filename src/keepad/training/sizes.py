"""Choice of the input size: the detector is tuned at each candidate, on a part of the source, smallest first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from keepad.console import Progress, Say
from keepad.data import Sample
from keepad.training.dataset import prepare_source
from keepad.training.feature_cache import FeatureCache
from keepad.training.head_training import HeadTraining
from keepad.training.plan import DetectorPlan
from keepad.training.tuning import Trial, pruned_flops, tune

if TYPE_CHECKING:
    from lightning_fabric import Fabric

_PART = 4  # one image in four of each class and label: sizes are compared on the same images, so few suffice


def choose_size(
    plan: DetectorPlan, cache: FeatureCache, fabric: Fabric, *, say: Say, progress: Progress
) -> tuple[tuple[int, int], list[dict[str, Any]]]:
    """The size after which the next larger one is not worth its compute, and the record of every size tried.

    Args:
        plan: Options of stage 1; its sizes are the candidates.
        cache: Features of the backbone.
        fabric: Device, precision and processes.
        say: Called with one line per size.
        progress: Shows how far the features are.
    """
    samples, backbone = part_of(plan.samples), cache.backbone
    best: tuple[Trial, tuple[int, int]] | None = None
    records = []
    for size in sorted(plan.sizes):
        name = f"{plan.out.stem}-{size[0]}{plan.out.suffix}"
        own = replace(plan, samples=samples, sizes=(size,), out=plan.out.with_name(name))
        layers = own.recipe.layers(backbone.depth)
        source = prepare_source(own, cache, layers, size=size, fabric=fabric, progress=progress)
        training = HeadTraining(source, cache, own, fabric)
        training.run(lambda line: None)
        flops = partial(pruned_flops, backbone, source.grid)
        trial = tune(training.held_out(), own.recipe, backbone.depth, flops)[-1]
        if fabric.global_rank == 0:
            training.loop.forget()
        records.append({"image_size": list(size), **trial.record(backbone.depth)})
        say(f"{size[0]} x {size[1]}: {trial.validation}, {trial.flops / 1e9:.1f} GFLOPs pruned")
        if best is not None and trial.value <= best[0].value:
            break
        best = trial, size
    assert best is not None
    return best[1], records


def part_of(samples: Sequence[Sample]) -> tuple[Sample, ...]:
    """Every fourth image of each class and label."""
    seen, part = Counter[tuple[str, str, int]](), []
    for sample in samples:
        key = sample.suite, sample.cls, sample.label
        if seen[key] % _PART == 0:
            part.append(sample)
        seen[key] += 1
    return tuple(part)
