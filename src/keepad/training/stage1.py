"""Stage 1: prototypes of the dense detector, trained on cached features of a frozen backbone."""

from __future__ import annotations

import time
from dataclasses import fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from keepad.assembly import HELD_OUT, with_fresh_parts
from keepad.backbone import load_backbone
from keepad.backbone.identity import fingerprint_of
from keepad.checkpoint import CheckpointInfo, write_checkpoint
from keepad.console import Progress, Say
from keepad.errors import KeepADError
from keepad.network import trained_tensors
from keepad.training.dataset import Source, check_source, prepare_source
from keepad.training.feature_cache import FeatureCache
from keepad.training.head_bank import head_from
from keepad.training.head_training import HeadTraining
from keepad.training.model_card import write_model_card
from keepad.training.plan import DetectorPlan
from keepad.training.provenance import detector_provenance
from keepad.training.recipe import DetectorRecipe
from keepad.training.results import Trained
from keepad.training.selector_init import init_selectors
from keepad.training.sizes import choose_size
from keepad.training.tuning import pruned_flops, tune

if TYPE_CHECKING:
    from lightning_fabric import Fabric


def train_detector(plan: DetectorPlan, fabric: Fabric, *, say: Say, progress: Progress) -> Trained:
    """Train a detector and write its checkpoint, with a model card, loss curves and metrics beside it.

    An interrupted run resumes when it is called again, from a state file beside the checkpoint.

    Raises:
        KeepADError: The source cannot be trained on or does not fit the cache, or a file cannot be written.
    """
    started, recipe = time.perf_counter(), plan.recipe
    check_source(plan.samples, say=say)
    if len(plan.sizes) > 1 and not recipe.tuned:
        raise KeepADError(f"the recipe {recipe.name} is not tuned, so that it needs one image size, not several.")
    backbone, spec, origin = load_backbone(plan.backbone, file=plan.weights, say=say)
    fingerprint = fingerprint_of(backbone)
    backbone.to(fabric.device)
    cache = FeatureCache(backbone, origin.digest, plan.cache, plan.cache_limit)
    size, tuning = (plan.sizes or (spec.image_size,))[0], dict[str, Any]()
    if len(plan.sizes) > 1:
        size, tuning["sizes"] = choose_size(plan, cache, fabric, say=say, progress=progress)
    layers = recipe.layers(backbone.depth)
    source = prepare_source(plan, cache, layers, size=size, fabric=fabric, progress=progress)
    prepared = time.perf_counter()

    training = HeadTraining(source, cache, plan, fabric)
    chosen = training.run(say)
    if recipe.tuned:
        recipe, tuning["trials"] = _tuned(training, recipe, cache, source)
        say(f"tuned on held-out source images: {_differences(plan.recipe, recipe, backbone.depth)}")
    fitted, placement = training.fit(recipe), recipe.placement(backbone.depth)
    say(f"epoch {chosen + 1} is kept: {fitted.validation}")

    network = with_fresh_parts(backbone, spec, seed=plan.seed, placement=placement, image_size=size)
    patch, cls = training.prototypes(placement.head_layers)
    network.head = head_from(patch[-1], cls[-1], placement.head_layers, fitted.scales)
    network.to(fabric.device)
    network.calibration, network.name = fitted.calibration, plan.out.stem
    init_selectors(network, plan.samples, seed=plan.seed)
    plan = replace(plan, backbone=spec.name)
    network.provenance = detector_provenance(plan, recipe, training.loop.epochs, chosen, fitted.validation, tuning)
    if fabric.global_rank == 0:
        info = CheckpointInfo(
            name=network.name,
            backbone=spec.name,
            backbone_digest=origin.digest,
            backbone_source=origin.source,
            backbone_fingerprint=fingerprint,
            image_size=size,
            mean=spec.mean,
            std=spec.std,
            antialias=spec.antialias,
            scales=fitted.scales,
            placement=placement,
            calibration=fitted.calibration,
            provenance=network.provenance,
        )
        held_out = {f"{HELD_OUT}patch": patch[:-1], f"{HELD_OUT}cls": cls[:-1]}
        write_checkpoint(plan.out, {**trained_tensors(network), **held_out}, info)
        write_model_card(plan.out, info, training.loop.epochs, chosen)
        training.loop.forget()
    fabric.barrier()
    seconds = {"features": prepared - started, "training": time.perf_counter() - prepared}
    return Trained(network, chosen, {"dense": fitted.validation}, seconds)


def _tuned(
    training: HeadTraining, recipe: DetectorRecipe, cache: FeatureCache, source: Source
) -> tuple[DetectorRecipe, list[dict[str, Any]]]:
    """The recipe that tuning chose, and the record of every trial."""
    depth = cache.backbone.depth
    trials = tune(training.held_out(), recipe, depth, partial(pruned_flops, cache.backbone, source.grid))
    return trials[-1].recipe, [trial.record(depth) for trial in trials]


def _differences(before: DetectorRecipe, after: DetectorRecipe, depth: int) -> str:
    """What tuning chose, in words."""
    names = [field.name for field in fields(after) if getattr(before, field.name) != getattr(after, field.name)]
    chosen = [f"{name} {getattr(after, name):g}" for name in names if name != "head"]
    return ", ".join([f"head layers {' '.join(map(str, after.placement(depth).head_layers))}", *chosen])
