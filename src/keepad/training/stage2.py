"""Stage 2: selectors of both routers, trained through hard-pruned passes that start from cached features."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from keepad.arrays import Array
from keepad.assembly import HELD_OUT, assemble, backbone_of
from keepad.checkpoint import CheckpointInfo, read_checkpoint, write_checkpoint
from keepad.console import Progress, Say
from keepad.errors import KeepADError
from keepad.head import PrototypeHead
from keepad.network import Network, trained_tensors
from keepad.routing.selectors import DeepSelector, ShallowSelector
from keepad.training.dataset import Source, check_held_out, check_source, folds_of, prepare_source
from keepad.training.feature_cache import FeatureCache
from keepad.training.head_bank import head_from
from keepad.training.model_card import write_model_card
from keepad.training.plan import RouterPlan
from keepad.training.provenance import router_provenance
from keepad.training.results import Trained
from keepad.training.router_training import RouterTraining
from keepad.training.router_tuning import shallow_layers
from keepad.training.selector_init import init_selectors, scale_selectors

if TYPE_CHECKING:
    from lightning_fabric import Fabric


def train_routers(plan: RouterPlan, fabric: Fabric, *, say: Say, progress: Progress) -> Trained:
    """Train the selectors of a detector and write its checkpoint, with card, loss curves and metrics beside it.

    An interrupted run resumes when it is called again, from a state file beside the checkpoint.

    Raises:
        KeepADError: The source cannot be trained on, the detector does not fit, or a file cannot be written.
    """
    started = time.perf_counter()
    check_source(plan.samples, say=say)
    if plan.recipe.held_out:
        check_held_out(plan.samples)
    if plan.recipe.keep_epoch is not None and not 1 <= plan.recipe.keep_epoch <= plan.recipe.epochs:
        raise KeepADError(
            f"epoch {plan.recipe.keep_epoch} cannot be kept of {plan.recipe.epochs}; choose one that is trained."
        )
    info, tensors = read_checkpoint(plan.detector)
    backbone, origin = backbone_of(info, file=plan.weights, source=plan.detector.name, say=say)
    placement = info.placement
    placement = replace(placement, shallow=plan.shallow or placement.shallow, deep=plan.deep or placement.deep)
    info = replace(info, placement=placement, name=plan.out.stem)
    network = assemble(backbone, info, tensors, source=plan.detector.name).to(fabric.device)
    fresh_selectors(network, plan)
    recipe = plan.recipe
    network.calibration = replace(
        network.calibration,
        grades=recipe.grades,
        landmarks=recipe.landmarks,
        score_smoothing=recipe.score_smoothing,
        context=recipe.context,
    )
    tuned = plan.recipe.tuned and plan.shallow is None

    cache = FeatureCache(backbone, origin.digest, plan.cache, plan.cache_limit)
    layers = {placement.shallow - 1, placement.head_layers[0]}
    if tuned:
        layers.update(layer - 1 for layer in shallow_layers(placement.deep))
    if network.head.uses_entry:
        layers.add(placement.deep - 1)
    source = prepare_source(plan, cache, sorted(layers), size=info.image_size, fabric=fabric, progress=progress)
    with progress("teacher", len(plan.samples)) as advance:
        teacher = []
        for image in source.images:
            teacher.append(dense_responses(network, cache, image.key))
            advance(1)
    prepared = time.perf_counter()

    heads = held_out_heads(tensors, info, source, say)
    training = RouterTraining(network, source, cache, heads, plan, fabric)
    trials = training.tune(lambda: fresh_selectors(network, plan)) if tuned else []
    if tuned:
        say(f"tuned on the source: {trials[-1].choice}; {trials[-1].validation}")
    chosen = training.run(teacher, say)
    epochs = training.loop.epochs
    say(f"epoch {chosen + 1} is kept: {epochs[chosen].validation}")
    calibrated = training.calibrate(progress)

    network.provenance = router_provenance(plan, info, epochs, chosen, calibrated)
    if tuned:
        network.provenance["routers"]["tuning"] = [trial.record() for trial in trials]
    if fabric.global_rank == 0:
        info = replace(
            info, placement=network.placement, calibration=network.calibration, provenance=network.provenance
        )
        write_checkpoint(plan.out, trained_tensors(network), info)
        write_model_card(plan.out, info, epochs, chosen)
        training.loop.forget()
    fabric.barrier()
    seconds = {"features": prepared - started, "training": time.perf_counter() - prepared}
    return Trained(network, chosen, calibrated, seconds)


def fresh_selectors(network: Network, plan: RouterPlan) -> None:
    """Give the network initial selectors of the recipe's form."""
    recipe, width = plan.recipe, network.backbone.width
    with torch.random.fork_rng():
        torch.manual_seed(plan.seed)
        network.shallow = ShallowSelector(width, cue=recipe.cues).to(network.device)
        network.deep = DeepSelector(width, cue=recipe.cues).to(network.device)
    if recipe.start == "dissimilar":
        init_selectors(network, plan.samples, seed=plan.seed)
    elif recipe.start == "unit":
        scale_selectors(network, plan.samples)


@torch.no_grad()
def dense_responses(network: Network, cache: FeatureCache, key: str) -> Tensor:
    """(N,) dense responses of a cached image in the first head layer."""
    first, head, grid, device = network.placement.head_layers[0], network.head, network.grid, network.device
    features = cache.load(key, [first])[0, 1:].float().to(device)
    own = entry = None
    if head.uses_dissimilarity(first):
        own = cache.dissimilarity(key, [first], grid)[0].to(device)
    if head.uses_entry:
        entry = cache.dissimilarity(key, [network.placement.deep - 1], grid)[0].to(device)
    return head.patch_response(first, network.backbone.norm(features), own, entry).cpu()


def held_out_heads(tensors: dict[str, Array], info: CheckpointInfo, source: Source, say: Say) -> list[PrototypeHead]:
    """For every image, the head of stage 1 that was not trained on it, or the detector's own if there is none.

    Args:
        tensors: Content of the checkpoint of stage 1.
        info: Its description.
        source: The images.
        say: Called if there are no such heads.
    """

    def head(patch: Array, cls: Array) -> PrototypeHead:
        return head_from(torch.as_tensor(patch), torch.as_tensor(cls), info.placement.head_layers, info.scales)

    own = head(tensors["head.patch"], tensors["head.cls"])
    patch, cls = (tensors.get(f"{HELD_OUT}{name}") for name in ("patch", "cls"))
    folds = folds_of(source, info.provenance.get("recipe", {}).get("validation", "images"))
    if patch is None or cls is None or len(patch) != int(folds.max()) + 1:
        say("the detector has no heads for held-out images: validation uses its own head and is optimistic.")
        return [own] * len(folds)
    heads = [head(patch[fold], cls[fold]) for fold in range(len(patch))]
    return [heads[fold] if fold >= 0 else own for fold in folds.tolist()]
