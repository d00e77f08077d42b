"""Stage 1: prototypes of the dense detector, trained on cached features of a frozen backbone."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from keepad.assembly import HELD_OUT, with_fresh_parts
from keepad.backbone import load_backbone
from keepad.backbone.identity import fingerprint_of
from keepad.checkpoint import CheckpointInfo, write_checkpoint
from keepad.console import Progress, Say
from keepad.network import trained_tensors
from keepad.training.dataset import check_source, prepare_source
from keepad.training.feature_cache import FeatureCache
from keepad.training.head_bank import head_from
from keepad.training.head_training import HeadTraining
from keepad.training.model_card import write_model_card
from keepad.training.plan import DetectorPlan
from keepad.training.provenance import detector_provenance
from keepad.training.results import Trained
from keepad.training.selector_init import init_selectors

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
    backbone, spec, origin = load_backbone(plan.backbone, file=plan.weights, say=say)
    fingerprint = fingerprint_of(backbone)
    backbone.to(fabric.device)
    size, placement = plan.image_size or spec.image_size, recipe.placement(backbone.depth)
    cache = FeatureCache(backbone, origin.digest, plan.cache, plan.cache_limit)
    layers = recipe.layers(backbone.depth)
    source = prepare_source(plan, cache, layers, size=size, fabric=fabric, progress=progress)
    prepared = time.perf_counter()

    training = HeadTraining(source, cache, plan, fabric)
    chosen = training.run(say)
    fitted, bank = training.fit(), training.bank
    say(f"epoch {chosen + 1} is kept: {fitted.validation}")

    network = with_fresh_parts(backbone, spec, seed=plan.seed, placement=placement, image_size=size)
    network.head = head_from(bank.patch[-1], bank.cls[-1], placement.head_layers, fitted.scales)
    network.to(fabric.device)
    network.calibration, network.name = fitted.calibration, plan.out.stem
    init_selectors(network, plan.samples, seed=plan.seed)
    network.provenance = detector_provenance(replace(plan, backbone=spec.name), training.loop.epochs, chosen)
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
        held_out = {f"{HELD_OUT}patch": bank.patch[:-1], f"{HELD_OUT}cls": bank.cls[:-1]}
        write_checkpoint(plan.out, {**trained_tensors(network), **held_out}, info)
        write_model_card(plan.out, info, training.loop.epochs, chosen)
        training.loop.forget()
    fabric.barrier()
    seconds = {"features": prepared - started, "training": time.perf_counter() - prepared}
    return Trained(network, chosen, {"dense": fitted.validation}, seconds)
