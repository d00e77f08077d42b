"""Tuning of the routers: place and smoothing of the shallow router, coverage, kappa and grades, chosen on the source.

The rule, the same for every backbone and source: a choice is worth the mean of image AUROC, patch AUROC and DTR on
source images whose product the head was not trained on, less the share of defects that it loses whole and what its
compute costs. It is measured with selectors as they are before training. One constant after the other is tried, once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from keepad.benchmark.flops import backbone_flops, patches_entering, shape_of
from keepad.network import Network
from keepad.presets import OperatingPoint, Placement
from keepad.routing.shallow import shallow_target
from keepad.training.results import RouterValidation
from keepad.training.tuning import PRICE
from keepad.training.validation import ValidationSet, run_points

IMAGES = 120  # source images of a trial
_LARGEST_KEEP = 0.20  # of prune70; a choice that keeps more is not the point that its name promises
_LARGEST_COST = 0.46  # the same for its FLOPs, as a share of the dense pass: a saving of nearly 2.2 times
_SHALLOW = (3, 4, 5, 6)  # blocks that the shallow router may precede


@dataclass(frozen=True)
class RouterChoice:
    """Constants of the routers that tuning chooses.

    Attributes:
        shallow: Block that the shallow router precedes.
        score_smoothing: Sigma of a Gaussian on the scores that rescue goes by, in patches.
        coverage: Side of the coverage blocks, in patches.
        kappa: Exponent of the deep budget.
        grades: Change of a recovered response per deviation of the shallow score and of the risk, in logits.
    """

    shallow: int
    score_smoothing: float
    coverage: int
    kappa: float
    grades: tuple[float, float]


_CANDIDATES: dict[str, tuple[Any, ...]] = {
    "score_smoothing": (0.0, 0.7, 1.0, 1.5),
    "coverage": (2, 3),
    "kappa": (0.5, 0.58, 0.65),
    "grades": ((0.0, 0.0), (0.25, 0.5), (0.25, 1.0)),
}


@dataclass(frozen=True)
class RouterTrial:
    """One choice and its worth: validation on source images, and FLOPs of a pass and of a dense one."""

    choice: RouterChoice
    validation: RouterValidation
    flops: float
    dense: float

    @property
    def value(self) -> float:
        """What trials are compared by; only differences mean anything."""
        if self.validation.keep > _LARGEST_KEEP or self.flops > _LARGEST_COST * self.dense:
            return -math.inf
        lost = self.validation.missed / max(1, self.validation.anomalous)
        return self.validation.quality[-1] - lost - PRICE * math.log2(self.flops)

    def record(self) -> dict[str, Any]:
        """The choice and its worth in plain numbers, for the model card."""
        return {**asdict(self.choice), **asdict(self.validation), "gflops": round(self.flops / 1e9, 2)}


def shallow_layers(deep: int) -> list[int]:
    """Blocks that the shallow router may precede."""
    return [layer for layer in _SHALLOW if layer < deep] or [deep - 1]


def tune_routers(
    network: Network,
    data: ValidationSet,
    indices: Sequence[int],
    point: OperatingPoint,
    initialise: Callable[[], None],
) -> list[RouterTrial]:
    """All trials of the search, the choice last; the network is left with it and with initial selectors.

    Args:
        network: The network.
        data: Images of the source, with heads that were not trained on them.
        indices: Which of them.
        point: Operating point of the trials.
        initialise: Gives the network initial selectors for its placement.
    """
    calibration, trials = network.calibration, list[RouterTrial]()
    dense = float(sum(_backbone_flops(network.placement, network, 1.0, 1.0)))
    start = RouterChoice(
        network.placement.shallow,
        calibration.score_smoothing,
        calibration.coverage,
        calibration.kappa,
        calibration.grades,
    )

    def attempt(choice: RouterChoice) -> RouterTrial:
        known = next((trial for trial in trials if trial.choice == choice), None)
        if known is None:
            adopt(network, choice, initialise)
            run = run_points(network, data, indices, [point])[point.name]
            validation = run.validation(network.calibration)
            known = RouterTrial(choice, validation, _flops(network, point, validation.keep), dense)
            trials.append(known)
        return known

    places = affordable(network, point)
    best = max((attempt(replace(start, shallow=layer)) for layer in places), key=lambda trial: trial.value)
    for name, values in _CANDIDATES.items():
        choices = (replace(best.choice, **{name: value}) for value in values)
        best = max([best, *map(attempt, choices)], key=lambda trial: trial.value)
    adopt(network, best.choice, initialise)
    return [*trials, best]


def affordable(network: Network, point: OperatingPoint) -> list[int]:
    """Blocks that the shallow router may precede without making the pass too dear; the first one if all do."""
    dense = sum(_backbone_flops(network.placement, network, 1.0, 1.0))
    rho = point.shallow.rho if point.shallow is not None else 1.0
    costs = {
        layer: sum(_backbone_flops(replace(network.placement, shallow=layer), network, rho, _LARGEST_KEEP))
        for layer in shallow_layers(network.placement.deep)
    }
    return [layer for layer, cost in costs.items() if cost <= _LARGEST_COST * dense] or [min(costs)]


def adopt(network: Network, choice: RouterChoice, initialise: Callable[[], None]) -> None:
    """Give the network the constants of a choice, and new initial selectors where its placement changes."""
    moved = network.placement.shallow != choice.shallow
    network.placement = replace(network.placement, shallow=choice.shallow)
    network.calibration = replace(
        network.calibration,
        score_smoothing=choice.score_smoothing,
        coverage=choice.coverage,
        kappa=choice.kappa,
        grades=choice.grades,
    )
    if moved:
        initialise()


def _flops(network: Network, point: OperatingPoint, keep: float) -> float:
    """FLOPs of the backbone in a pass that ends with a share `keep` of the tokens."""
    rho = point.shallow.rho if point.shallow is not None else 1.0
    return float(sum(_backbone_flops(network.placement, network, rho, keep)))


def _backbone_flops(placement: Placement, network: Network, rho: float, keep: float) -> tuple[int, int, int]:
    cells = network.grid[0] * network.grid[1]
    shallow, deep = shallow_target(rho, network.grid), round(keep * cells)
    entering = patches_entering(placement, cells, shallow, deep, early_exit=True)
    left = cells - shallow if network.calibration.context else 0
    around = patches_entering(placement, 0, left, 0, early_exit=True)
    return backbone_flops(shape_of(network.backbone), cells, entering, around)
