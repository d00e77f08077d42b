"""Training of the routers' selectors through hard-pruned passes: losses, validation and calibration of stage 2."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from keepad.console import Progress, Say
from keepad.errors import KeepADError
from keepad.head import PrototypeHead
from keepad.network import Network
from keepad.presets import Calibration, OperatingPoint, operating_point, resolved
from keepad.tokens import Tokens
from keepad.training.calibration import calibrate, with_thresholds
from keepad.training.dataset import CachedImage, Source, balanced, folds_of, masks_of
from keepad.training.epochs import EpochLoop, RunOptions
from keepad.training.evidence import fit_evidence
from keepad.training.feature_cache import FeatureCache
from keepad.training.losses import dice, focal, label_cross_entropy, mask_loss, preserve_loss, teacher_loss
from keepad.training.plan import RouterPlan
from keepad.training.recipe import RouterRecipe
from keepad.training.relaxation import BlockValues
from keepad.training.results import RouterValidation, Validation
from keepad.training.router_tuning import IMAGES, RouterTrial, tune_routers
from keepad.training.student import SparsePass, sparse_pass
from keepad.training.validation import ValidationSet, run_from_pixels, run_points

if TYPE_CHECKING:
    from lightning_fabric import Fabric

_CALIBRATED = 120  # source images that suffice to fit two thresholds
_VALIDATED = 120  # held-out images that compare epochs


class RouterLosses(nn.Module):
    """Losses of the selectors.

    Args:
        network: The network; everything but its selectors is frozen.
        recipe: Weights of the losses.
        point: Operating point of training.
    """

    def __init__(self, network: Network, recipe: RouterRecipe, point: OperatingPoint) -> None:
        super().__init__()
        self.network, self._weights, self._point = network, dict(recipe.losses), point
        self._recipe = recipe

    def forward(self, tokens: Tokens, images: Sequence[CachedImage], teacher: Sequence[Tensor]) -> dict[str, Tensor]:
        """Each loss, weighted, mean over the images that have it.

        Args:
            tokens: Tokens that enter the shallow router.
            images: Annotations of the batch.
            teacher: (N,) dense responses of each image.
        """
        student = sparse_pass(self.network, tokens, self._point, hard_choice=self._recipe.hard_choice)
        device = student.maps.device
        losses: dict[str, list[Tensor]] = {name: [] for name in ("detection", *self._weights)}
        for i, image in enumerate(images):
            defect = None if image.defect is None else torch.from_numpy(image.defect).to(device)
            losses["detection"].append(self._detection_loss(student, i, image))
            for name in self._weights:
                loss = self._router_loss(name, student, i, teacher[i].to(device), defect)
                if loss is not None:
                    losses[name].append(loss)
        return {
            name: self._weights.get(name, 1.0) * torch.stack(values).mean() for name, values in losses.items() if values
        }

    def _detection_loss(self, student: SparsePass, i: int, image: CachedImage) -> Tensor:
        """Loss of stage 1 on image `i` of the sparse pass; without known defects, of its label alone."""
        cls = torch.stack([values[i : i + 1] for values in student.responses.cls.values()], dim=1)  # (1, layers)
        loss = label_cross_entropy(cls, torch.tensor([float(image.label)], device=cls.device))
        if image.defect is not None:
            response, target = student.maps[i : i + 1], torch.from_numpy(image.defect)[None]
            if self._recipe.pixel_loss:
                size = self.network.image_size
                grown = F.interpolate(response.view(1, 1, *student.grid), size, mode="bilinear", align_corners=False)
                response, target = grown.flatten(1), masks_of([image], size).flatten(1)
            wanted = target.to(response.device).float()
            loss = loss + (focal(response, wanted) + dice(response, wanted))
        return loss.squeeze(0)

    def _router_loss(
        self, name: str, student: SparsePass, i: int, dense: Tensor, defect: Tensor | None
    ) -> Tensor | None:
        """The loss of that name for image `i`, or None where it is undefined."""
        assert self._point.shallow is not None
        shallow, deep = student.shallow[i], student.deep[i]
        if name == "flops":
            return deep.mean()
        if name == "preserve":
            return preserve_loss(deep, dense[student.entered[i]])
        blocks = BlockValues.of(np.arange(len(shallow)), student.grid, self._point.shallow.block, shallow.device)
        if name == "teacher":
            return teacher_loss(shallow, dense, blocks)
        return None if defect is None else mask_loss(shallow, defect, blocks)


class RouterTraining:
    """Trains the selectors and calibrates the pruned detector on the source.

    Args:
        network: The network with its initial selectors.
        source: The images.
        cache: Their features.
        heads: For every image, a head that was not trained on it.
        plan: Options of stage 2.
        fabric: Device, precision and processes.
    """

    def __init__(
        self,
        network: Network,
        source: Source,
        cache: FeatureCache,
        heads: Sequence[PrototypeHead],
        plan: RouterPlan,
        fabric: Fabric,
    ) -> None:
        self._network, self._source, self._cache, self._recipe = network, source, cache, plan.recipe
        self._validation = ValidationSet(source, [head.to(network.device) for head in heads], self._load)
        folds = folds_of(source, "images") if plan.recipe.held_out else None
        every = list(range(len(source.images)))
        out, rest = (every, every) if folds is None else (_where(folds >= 0), _where(folds < 0))
        self._held_out = balanced(source, out, _VALIDATED)
        self._trained = balanced(source, rest, plan.recipe.images)
        self._options = plan, fabric

    def tune(self, initialise: Callable[[], None]) -> list[RouterTrial]:
        """Choose the constants of the routers; `initialise` gives the network initial selectors for its placement."""
        indices = balanced(self._source, range(len(self._source.images)), IMAGES)
        return tune_routers(self._network, self._validation, indices, operating_point(self._recipe.point), initialise)

    @cached_property
    def loop(self) -> EpochLoop:
        """The epochs; made once the routers have their constants."""
        network, (plan, fabric) = self._network, self._options
        network.requires_grad_(False)
        for selector in (network.shallow, network.deep):
            selector.requires_grad_(True)
        detector = hashlib.sha256(plan.detector.read_bytes()).hexdigest()
        constants = [asdict(network.placement), asdict(network.calibration)]
        identity = [constants, self._cache.digest, detector, self._source.digest]
        recipe = plan.recipe
        options = RunOptions(
            *(recipe, plan.seed, fabric, plan.state, identity, RouterValidation),
            clip=recipe.clip,
            cosine=recipe.cosine,
            keep=recipe.keep_epoch,
        )
        losses = RouterLosses(network, plan.recipe, training_point(plan.recipe, network.calibration, network.grid))
        return EpochLoop(losses, network, torch.tensor(self._trained), options)

    def run(self, teacher: Sequence[Tensor], say: Say) -> int:
        """Run the epochs and return the best one, counted from 0, whose selectors the network then has.

        Args:
            teacher: (N,) dense responses of every image.
            say: Called with one line per epoch.
        """

        def inputs(indices: Tensor, draws: Tensor) -> tuple[Tokens, list[CachedImage], list[Tensor]]:
            chosen = indices.tolist()
            return self._load(chosen), [self._source.images[i] for i in chosen], [teacher[i] for i in chosen]

        chosen = self.loop.run(inputs, self._validate, say)
        self._network.requires_grad_(False)
        return chosen

    def calibrate(self, progress: Progress) -> dict[str, Validation]:
        """Fit what the recipe fits at its operating points, on the source; validation by operating point.

        Thresholds come from passes as users run them, pixel router included.
        """
        indices = balanced(self._source, range(len(self._source.images)), _CALIBRATED)
        points = [operating_point(name) for name in self._recipe.points]
        network = self._network
        if any(point.deep is not None and point.deep.evidence == "absolute" for point in points):
            normal = np.array([self._source.images[i].label == 0 for i in indices])
            rows = fit_evidence(network, [partial(self._load, [i]) for i in indices], normal, points)
            network.calibration = replace(network.calibration, evidence=rows)
        usual, start = min(1, len(points) - 1), network.calibration
        run = run_points if self._recipe.refit else run_from_pixels
        with progress("calibration", len(indices)) as advance:
            runs = run(self._network, self._validation, indices, points, advance=advance)
        listed = list(runs.values())
        if self._recipe.refit:
            calibration = calibrate(listed, start, usual=usual)
        else:
            scored = listed[usual]
            calibration = with_thresholds(start, scored.scores(start), scored.maps, scored.truth)
        self._network.calibration = calibration
        return {name: scored.validation(calibration) for name, scored in runs.items()}

    def _validate(self) -> RouterValidation:
        point = operating_point(self._recipe.point)
        run = run_points(self._network, self._validation, self._held_out, [point])[point.name]
        return run.validation(self._network.calibration)

    def _load(self, indices: Sequence[int]) -> Tokens:
        """Tokens that enter the shallow router, from the cache."""
        before = self._network.placement.shallow - 1
        rows = torch.stack([self._cache.load_all(self._source.images[i].key, before) for i in indices])
        return self._network.backbone.tokens_of(rows.to(self._network.device).float(), self._source.grid)


def _where(chosen: Tensor) -> list[int]:
    indices: list[int] = chosen.nonzero().squeeze(1).tolist()
    return indices


def training_point(recipe: RouterRecipe, calibration: Calibration, grid: tuple[int, int]) -> OperatingPoint:
    """The recipe's operating point without early exit, with its number of rescued tokens beyond coverage."""
    point = resolved(operating_point(recipe.point), calibration)
    if point.shallow is None or point.deep is None:
        raise KeepADError(f"routers cannot be trained at {point.name}, where one of them does not run.")
    if recipe.rescue is None:
        return replace(point, early_exit=False)
    side, (rows, columns) = point.shallow.block, grid
    blocks = -(-rows // side) * -(-columns // side)
    rho = min(1.0, (blocks + recipe.rescue) / (rows * columns))
    return replace(point, shallow=replace(point.shallow, rho=rho), early_exit=False)
