"""Stage 2: selectors of both routers, trained through hard-pruned passes from the cached prefix."""

from __future__ import annotations

import hashlib
import json
import platform
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import timm
import torch
from torch import Tensor, nn

from keepad.backbone import load_backbone
from keepad.checkpoint import CheckpointInfo, read_checkpoint, write_checkpoint
from keepad.data import Sample
from keepad.errors import KeepADError
from keepad.head import PrototypeHead
from keepad.loading import HELD_OUT, assemble, trained_tensors
from keepad.network import KeepAD
from keepad.presets import OperatingPoint, Placement, operating_point
from keepad.routing import DeepSelector, ShallowSelector
from keepad.tokens import Tokens
from keepad.training.dataset import Entry, Say, Source, check_source, fill, folds_of, gather
from keepad.training.feature_cache import DEFAULT_LIMIT, FeatureCache
from keepad.training.head_bank import head_from
from keepad.training.losses import cover, dice, focal, label_entropy, preserve, teach
from keepad.training.model_card import write_record
from keepad.training.recipe import ROUTER_RECIPES, RouterRecipe
from keepad.training.relaxation import BlockValues
from keepad.training.selector_init import set_up_selectors
from keepad.training.stage1 import Progress, data_of, licence_line
from keepad.training.state import RunState
from keepad.training.student import SparsePass, sparse_pass
from keepad.training.validation import Survived, calibrate_pruned, survived, try_out
from keepad.version import __version__

if TYPE_CHECKING:
    from lightning_fabric import Fabric

_STRIDE = 1_000_003  # added to the seed for each epoch, so that an order does not depend on where a run was interrupted
_CLIP = 1.0  # largest norm of a step's gradient
_CALIBRATED = 800  # source images that are enough to fit a handful of numbers


@dataclass(frozen=True)
class RouterPlan:
    """What is trained, on what, and where it goes.

    Attributes:
        detector: Checkpoint of stage 1.
        samples: Labelled images of the source.
        out: The checkpoint.
        recipe: How.
        shallow: The shallow router stands before this block; where the detector says if None.
        deep: The same for the deep router.
        weights: File with the backbone's weights instead of the cached or downloaded ones.
        classes: Classes that were asked for; all if empty.
        seed: First values and order; the same seed gives the same bytes.
        cache: Folder of the feature cache; the user's own if None.
        cache_limit: Bytes that it may hold.
    """

    detector: Path
    samples: Sequence[Sample]
    out: Path
    recipe: RouterRecipe
    shallow: int | None = None
    deep: int | None = None
    weights: Path | None = None
    classes: Sequence[str] = ()
    seed: int = 42
    cache: Path | None = None
    cache_limit: int = DEFAULT_LIMIT


@dataclass(frozen=True)
class RouterEpoch:
    """What one pass over the source did, and the selectors after it."""

    losses: dict[str, float]
    validation: Survived
    selectors: dict[str, Tensor]


@dataclass(frozen=True)
class TrainedRouters:
    """A detector with trained routers and how it came about; `after` is by operating point, once calibrated."""

    model: KeepAD
    chosen: int
    after: dict[str, Survived]
    seconds: dict[str, float]


def train_routers(plan: RouterPlan, fabric: Fabric, *, say: Say, progress: Progress) -> TrainedRouters:
    """Train the selectors of a detector and write its checkpoint, with card, picture and numbers beside it.

    An interrupted run goes on where it stopped when it is called again.

    Raises:
        KeepADError: The source cannot be learned from, the detector does not fit, or something cannot be written.
    """
    started = time.perf_counter()
    samples, recipe = list(plan.samples), plan.recipe
    check_source(samples, say=say)
    info, tensors = read_checkpoint(plan.detector)
    backbone, _, digest = load_backbone(info.backbone, file=plan.weights, say=say)
    if info.backbone_digest not in (None, digest):
        raise KeepADError(f"{plan.detector.name} was trained on other weights of {info.backbone}; train it anew.")
    info = replace(info, placement=_placement(info, plan), name=plan.out.stem)
    model = assemble(backbone, info, tensors, source=plan.detector.name).to(fabric.device)
    fresh_selectors(model, recipe, samples, seed=plan.seed)
    model.calibration = replace(model.calibration, grades=recipe.grades)

    grid = backbone.grid_of(*info.image_size)
    cache = FeatureCache(backbone, digest, plan.cache, plan.cache_limit)
    before, first = info.placement.shallow - 1, info.placement.head_layers[0]
    layers = sorted({before, first, *([info.placement.deep - 1] if model.head.reads_entry else [])})
    with progress("source", len(samples)) as advance:
        source = gather(samples, views=0, size=info.image_size, grid=grid, advance=advance)
    with progress("features", len(samples)) as advance:
        fill(source, cache, layers, share=(fabric.global_rank, fabric.world_size), advance=advance)
    fabric.barrier()
    with progress("teacher", len(samples)) as advance:
        teacher = _teacher(model, source, cache, advance)
    prepared = time.perf_counter()

    lessons = Lessons(
        model, source, cache, teacher, heads=held_out_heads(tensors, info, source, say), plan=plan, fabric=fabric
    )
    lessons.run(say, digest)
    chosen = max(range(len(lessons.epochs)), key=lambda number: lessons.epochs[number].validation.quality)
    model.load_state_dict(lessons.epochs[chosen].selectors, strict=False)
    say(f"epoch {chosen + 1} is kept: {lessons.epochs[chosen].validation}")
    after = lessons.calibrate(progress)

    info = replace(
        info, calibration=model.calibration, provenance=_provenance(plan, info, lessons.epochs, chosen, after)
    )
    model.provenance = info.provenance
    if fabric.global_rank == 0:
        write_checkpoint(plan.out, trained_tensors(model), info)
        write_record(plan.out, info, lessons.epochs, chosen)
        lessons.forget()
    fabric.barrier()
    seconds = {"features": prepared - started, "training": time.perf_counter() - prepared}
    return TrainedRouters(model, chosen, after, seconds)


class Lesson(nn.Module):
    """Losses of one step; a module, so that several processes share its gradients.

    Args:
        model: The detector; everything but its selectors is frozen.
        recipe: Weights of the losses.
        point: Budgets of the training.
    """

    def __init__(self, model: KeepAD, recipe: RouterRecipe, point: OperatingPoint) -> None:
        super().__init__()
        self.model, self._weights, self._point = model, dict(recipe.losses), point

    def forward(self, tokens: Tokens, entries: Sequence[Entry], teacher: Sequence[Tensor]) -> dict[str, Tensor]:
        """Each loss, weighted, mean over the images that it can be asked of; "detection" is the first."""
        student = sparse_pass(self.model, tokens, self._point)
        device = student.maps.device
        found: dict[str, list[Tensor | None]] = {name: [] for name in ("detection", *self._weights)}
        for place, entry in enumerate(entries):
            label = torch.tensor([float(entry.label)], device=device)
            loss = label_entropy(student.cls[place : place + 1], label).squeeze(0)
            defect = None if entry.defect is None else torch.from_numpy(entry.defect).to(device)
            if defect is not None:
                response, target = student.maps[place : place + 1], defect[None].float()
                loss = loss + (focal(response, target) + dice(response, target)).squeeze(0)
            found["detection"].append(loss)
            dense = teacher[place].to(device)
            for name in self._weights:
                found[name].append(self._ask(name, student, place, dense, defect, tokens.grid))
        losses = {}
        for name, values in found.items():
            known = [value for value in values if value is not None]
            if known:
                losses[name] = self._weights.get(name, 1.0) * torch.stack(known).mean()
        return losses

    def _ask(
        self,
        name: str,
        student: SparsePass,
        place: int,
        dense: Tensor,
        defect: Tensor | None,
        grid: tuple[int, int],
    ) -> Tensor | None:
        """One of the losses beside detection for one image, or None where it has nothing to say."""
        assert self._point.shallow is not None
        shallow, deep = student.shallow[place], student.deep[place]
        if name == "flops":
            return deep.mean()
        if name == "preserve":
            return preserve(deep, dense[student.entered[place]])
        blocks = BlockValues.of(torch.arange(len(shallow), device=shallow.device), grid, self._point.shallow.block)
        if name == "teacher":
            return teach(shallow, dense, blocks)
        return None if defect is None else cover(shallow, defect, blocks)


class Lessons:
    """The epochs of a training, with validation, state and resumption.

    Args:
        model: The detector with its first selectors.
        source: The pictures.
        cache: Their features.
        teacher: (N,) dense responses of every picture.
        heads: The head that judges every picture in validation.
        plan: What to do.
        fabric: Device, precision and processes.
    """

    def __init__(
        self,
        model: KeepAD,
        source: Source,
        cache: FeatureCache,
        teacher: Sequence[Tensor],
        *,
        heads: Sequence[PrototypeHead],
        plan: RouterPlan,
        fabric: Fabric,
    ) -> None:
        self.epochs: list[RouterEpoch] = []
        self._model, self._source, self._cache, self._teacher = model, source, cache, teacher
        self._heads = [head.to(fabric.device) for head in heads]
        self._plan, self._recipe, self._fabric = plan, plan.recipe, fabric
        self._point = operating_point(plan.recipe.point)
        folds = folds_of(source, "images")
        self._held = (folds >= 0).nonzero().squeeze(1).tolist()
        self._taught = (folds < 0).nonzero().squeeze(1)
        model.requires_grad_(False)
        for part in (model.shallow, model.deep):
            part.requires_grad_(True)
        lesson = Lesson(model, self._recipe, training_point(self._point, self._recipe, source.grid))
        trainable = [value for value in model.parameters() if value.requires_grad]
        optimiser = torch.optim.AdamW(trainable, lr=self._recipe.rate, weight_decay=self._recipe.decay)
        steps = self._recipe.epochs * len(self._steps(self._taught))
        self._schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, max(1, steps))
        self._lesson, self._optimiser = fabric.setup(lesson, optimiser)
        self._state: RunState | None = None

    def run(self, say: Say, digest: str) -> None:
        """All epochs that are not done yet."""
        self._state = RunState(self._plan.out.with_name(f"{self._plan.out.name}.state"), self._identity(digest))
        self._resume(say)
        for number in range(len(self.epochs), self._recipe.epochs):
            losses = self._train(number)
            epoch = RouterEpoch(losses, self._validate(), _selectors_of(self._model))
            self.epochs.append(epoch)
            told = ", ".join(f"{name} {value:.3f}" for name, value in losses.items())
            say(f"epoch {number + 1} of {self._recipe.epochs}: {told}; {epoch.validation}")
            if self._fabric.global_rank == 0:
                self._save()
        self._model.requires_grad_(False)

    def forget(self) -> None:
        """Drop what a later run would resume from."""
        assert self._state is not None
        self._state.forget()

    def calibrate(self, progress: Progress) -> dict[str, Survived]:
        """Fit lambda, gate and thresholds on the source, and say what each operating point then does to it."""
        every = -(-len(self._source.images) // _CALIBRATED)
        places = list(range(0, len(self._source.images), every))
        points = [operating_point(name) for name in self._recipe.points]
        with progress("calibration", len(places)) as advance:
            heads = [self._heads[place] for place in places]
            trials = try_out(self._model, heads, self._source, places, self._load_one, points, advance=advance)
        self._model.calibration = calibrate_pruned(
            list(trials.values()), self._source, places, self._model.calibration, usual=min(1, len(points) - 1)
        )
        calibration = self._model.calibration
        return {name: survived(trial, self._source, places, calibration) for name, trial in trials.items()}

    # -- one epoch ---------------------------------------------------------------------------------------------------

    def _train(self, number: int) -> dict[str, float]:
        sums: dict[str, list[float]] = {}
        for places in self._batches(number):
            entries = [self._source.images[place] for place in places]
            losses = self._lesson(self._load(places), entries, [self._teacher[place] for place in places])
            self._optimiser.zero_grad()
            self._fabric.backward(torch.stack(list(losses.values())).sum())
            self._fabric.clip_gradients(self._lesson, self._optimiser, max_norm=_CLIP)
            self._optimiser.step()
            self._schedule.step()
            for name, loss in losses.items():
                sums.setdefault(name, []).append(float(loss.detach()))
        return {name: float(np.mean(values)) for name, values in sums.items()}

    def _validate(self) -> Survived:
        heads = [self._heads[place] for place in self._held]
        trial = try_out(self._model, heads, self._source, self._held, self._load_one, [self._point])[self._point.name]
        return survived(trial, self._source, self._held, self._model.calibration)

    def _load(self, places: Sequence[int]) -> Tokens:
        """Tokens of whole images as they enter the shallow router."""
        before = self._model.placement.shallow - 1
        rows = torch.stack([self._cache.load_all(self._source.images[place].key, before) for place in places])
        return self._model.backbone.tokens_of(rows.to(self._fabric.device).float(), self._source.grid)

    def _load_one(self, place: int) -> Tokens:
        return self._load([place])

    def _batches(self, epoch: int) -> Iterator[list[int]]:
        """Places of this process's images in each step."""
        generator = torch.Generator().manual_seed(self._plan.seed + _STRIDE * (epoch + 1))
        order = self._taught[torch.randperm(len(self._taught), generator=generator)]
        for step in self._steps(order):
            yield step[self._fabric.global_rank :: self._fabric.world_size].tolist()

    def _steps(self, order: Tensor) -> list[Tensor]:
        """The order cut into steps of all processes together; a rest that would leave one idle is left out."""
        world = self._fabric.world_size
        return [step for step in order.split(self._recipe.batch * world) if len(step) >= world]

    # -- state -------------------------------------------------------------------------------------------------------

    def _identity(self, digest: str) -> str:
        keys = hashlib.sha256("".join(self._source.keys()).encode()).hexdigest()
        detector = hashlib.sha256(self._plan.detector.read_bytes()).hexdigest()
        place = asdict(self._model.placement)
        seed, world = self._plan.seed, self._fabric.world_size
        return json.dumps([asdict(self._recipe), place, seed, digest, detector, keys, world, __version__])

    def _save(self) -> None:
        assert self._state is not None
        self._state.save(
            {
                "epochs": [
                    {"losses": one.losses, "validation": asdict(one.validation), "selectors": one.selectors}
                    for one in self.epochs
                ],
                "optimiser": self._optimiser.state_dict(),
                "schedule": self._schedule.state_dict(),
            }
        )

    def _resume(self, say: Say) -> None:
        assert self._state is not None
        content = self._state.load(self._fabric.device, say)
        if content is None:
            return
        try:
            for one in content["epochs"]:
                selectors = {name: tensor.cpu() for name, tensor in one["selectors"].items()}
                self.epochs.append(RouterEpoch(one["losses"], Survived(**one["validation"]), selectors))
            self._optimiser.load_state_dict(content["optimiser"])
            self._schedule.load_state_dict(content["schedule"])
            self._model.load_state_dict(self.epochs[-1].selectors, strict=False)
        except Exception as error:
            raise self._state.damaged() from error
        say(f"going on after epoch {len(self.epochs)} of {self._recipe.epochs}")


def training_point(point: OperatingPoint, recipe: RouterRecipe, grid: tuple[int, int]) -> OperatingPoint:
    """The point that training runs at: coverage and so many rescued tokens as the recipe says."""
    if point.shallow is None or point.deep is None:
        raise KeepADError(f"routers cannot be trained at {point.name}, where one of them does not run.")
    if recipe.rescue is None:
        return replace(point, early_exit=False)
    side = point.shallow.block
    blocks = -(-grid[0] // side) * -(-grid[1] // side)
    share = min(1.0, (blocks + recipe.rescue) / (grid[0] * grid[1]))
    return replace(point, shallow=replace(point.shallow, rho=share), early_exit=False)


def _placement(info: CheckpointInfo, plan: RouterPlan) -> Placement:
    place = info.placement
    return replace(place, shallow=plan.shallow or place.shallow, deep=plan.deep or place.deep)


def fresh_selectors(model: KeepAD, recipe: RouterRecipe, samples: Sequence[Sample], *, seed: int) -> None:
    """Fresh selectors of the recipe's form."""
    width = model.backbone.width
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model.shallow = ShallowSelector(width, cue=recipe.cues).to(model.device)
        model.deep = DeepSelector(width, cue=recipe.cues).to(model.device)
    if recipe.start == "unlike":
        set_up_selectors(model, samples, seed=seed)


def _selectors_of(model: KeepAD) -> dict[str, Tensor]:
    parts = (("shallow", model.shallow), ("deep", model.deep))
    return {
        f"{name}.{key}": value.detach().cpu().clone()
        for name, part in parts
        for key, value in part.state_dict().items()
    }


@torch.no_grad()
def _teacher(model: KeepAD, source: Source, cache: FeatureCache, advance: Any) -> list[Tensor]:
    """(N,) dense responses of every image in the first head layer."""
    place, found = model.placement, []
    for entry in source.images:
        features = cache.load(entry.key, [place.head_layers[0]])[0, 1:].float().to(model.device)
        first = place.head_layers[0]
        unlike = early = None
        if model.head.reads_dissimilarity(first):
            unlike = cache.dissimilarity(entry.key, [first], source.grid)[0].to(model.device)
        if model.head.reads_entry:
            early = cache.dissimilarity(entry.key, [place.deep - 1], source.grid)[0].to(model.device)
        found.append(model.head.patch_response(first, model.backbone.norm(features), unlike, early).cpu())
        advance(1)
    return found


def held_out_heads(tensors: dict[str, Tensor], info: CheckpointInfo, source: Source, say: Say) -> list[PrototypeHead]:
    """For every image the head that has not seen it, where stage 1 left one; else the detector's own."""
    layers, readings = info.placement.head_layers, info.readings
    own = head_from(tensors["head.patch"], tensors["head.cls"], layers, readings)
    patch, cls = (tensors.get(f"{HELD_OUT}{name}") for name in ("patch", "cls"))
    folds = folds_of(source, info.provenance.get("recipe", {}).get("validation", "images"))
    if patch is None or cls is None or len(patch) != int(folds.max()) + 1:
        say("the detector holds no heads for images that it has not seen: its own head judges, and flatters itself.")
        return [own] * len(folds)
    heads = [head_from(patch[fold], cls[fold], layers, readings) for fold in range(len(patch))]
    return [heads[fold] if fold >= 0 else own for fold in folds.tolist()]


def _provenance(
    plan: RouterPlan, info: CheckpointInfo, epochs: Sequence[RouterEpoch], chosen: int, after: dict[str, Survived]
) -> dict[str, Any]:
    """Where a checkpoint comes from; nothing that differs between two runs of the same training."""
    suites = sorted({sample.suite for sample in plan.samples})
    detector = info.provenance
    known = [name for name, _ in ROUTER_RECIPES[plan.recipe.name].losses]
    left_out = [name for name in known if name not in dict(plan.recipe.losses)]
    standard = replace(ROUTER_RECIPES[plan.recipe.name], losses=plan.recipe.losses)
    return {
        **detector,
        "what": f"{detector['what'].split(';')[0]}; routers trained on {', '.join(suites)}",
        "data": detector.get("data") or data_of(plan.samples),
        "licence": licence_line(sorted({*suites, *(one["suite"] for one in detector.get("data", []))})),
        "routers": {
            "command": (
                f"keepad train routers --detector {plan.detector.name} --data DATA --suites {','.join(suites)} "
                + (f"--classes {','.join(plan.classes)} " if plan.classes else "")
                + (f"--shallow {plan.shallow} " if plan.shallow else "")
                + (f"--deep {plan.deep} " if plan.deep else "")
                + (f"--epochs {plan.recipe.epochs} " if plan.recipe != standard else "")
                + "".join(f"--without {name} " for name in left_out)
                + f"--recipe {plan.recipe.name} --seed {plan.seed} --out {plan.out.name}"
            ),
            "recipe": asdict(plan.recipe),
            "data": data_of(plan.samples),
            "seed": plan.seed,
            "epoch": chosen + 1,
            "validation": asdict(epochs[chosen].validation),
            "source": {name: asdict(one) for name, one in after.items()},
        },
        "versions": {
            "keepad": __version__,
            "torch": torch.__version__,
            "timm": timm.__version__,
            "python": platform.python_version(),
        },
    }
