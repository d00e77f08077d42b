"""Variants of the paper's controls: lists of operating points, some with a detector of their own."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from keepad.arrays import Array
from keepad.detector import Detector
from keepad.errors import KeepADError
from keepad.evaluate import Results, Variant
from keepad.network import Network
from keepad.presets import REDUCER_POINTS, REDUCERS, DeepBudget, OperatingPoint, operating_point, resolved
from keepad.routing.deep import token_budget
from keepad.routing.selectors import DeepSelector
from keepad.routing.shallow import shallow_target

FAMILIES = {"paper": "paper", "keepad": "prune"}  # names of the operating points of a recipe
SWEEP = (0, 10, 20, 30, 40, 50, 60, 70, 80, 85, 90)  # percent of the tokens that are pruned in the end
RANDOM_SEEDS = (11, 29, 47)
_SHALLOW_SHARE = 0.634  # exponent of the final keep that gives rho = 0.30 at the paper's 15 %
_MATCHED_KEEP, _RESCUE_KEEP = 0.1497, 0.1651  # final keep of the tables of blocks and of rescue
_NAMESAKE = {"dense": "dense", "prune30": "30", "prune50": "50", "prune70": "70"}


@dataclass(frozen=True)
class Base:
    """The full method of a checkpoint, which controls change one thing of.

    Attributes:
        recipe: "paper" or "keepad".
        point: prune70 or paper70 with the checkpoint's constants, without pixel router.
        network: The network in torch.
    """

    recipe: str
    point: OperatingPoint
    network: Network

    @staticmethod
    def of(detector: Detector, recipe: str) -> Base:
        """The full method of a detector."""
        return Base.of_network(torch_network(detector), recipe)

    @staticmethod
    def of_network(network: Network, recipe: str) -> Base:
        """The same from a network in torch."""
        point = resolved(operating_point(f"{FAMILIES[recipe]}70"), network.calibration)
        return Base(recipe, replace(point, name="full", pixels=None), network)

    @property
    def deep(self) -> DeepBudget:
        assert self.point.deep is not None
        return self.point.deep

    def named(self, name: str, **changes: Any) -> OperatingPoint:
        """The full method with some fields changed."""
        return replace(self.point, name=name, **changes)


def torch_network(detector: Detector) -> Network:
    """The network of a detector that runs in torch."""
    if not isinstance(detector.network, Network):
        raise KeepADError(f"{detector.name} runs on an engine; the tables of the paper are measured in torch.")
    return detector.network


def main_variants(base: Base) -> list[Variant]:
    """The detector without pruning and the three operating points, as users run them."""
    points = {name: operating_point(FAMILIES[base.recipe] + number) for name, number in list(_NAMESAKE.items())[1:]}
    # The paper's detector runs to the last block and reads the active layers only.
    dense = replace(operating_point("dense"), active="exit" if base.recipe == "paper" else "run")
    return [Variant("dense", dense), *(Variant(name, replace(point, name=name)) for name, point in points.items())]


def stage_variants(base: Base) -> list[Variant]:
    """Either router left out, and the early exit."""
    points = [
        base.point,
        base.named("no shallow router", shallow=None),
        base.named("no deep router", deep=None),
        base.named("no early exit", early_exit=False, active="exit"),
        OperatingPoint("dense to the last block", active="exit"),
    ]
    return [Variant(point.name, point) for point in points]


def core_variants(base: Base) -> list[Variant]:
    """Either router replaced by a simpler rule, and the deep one with a single cue."""
    assert base.point.shallow is not None
    top_k = replace(base.point.shallow, strict=False, block=1, diversity=0)
    middle = (base.deep.rho_min + base.deep.rho_max) / 2
    points = [
        base.named("shallow global top-k", shallow=top_k),
        base.named("deep token top-k", deep=replace(base.deep, block=1)),
        base.named("deep fixed budget", deep=replace(base.deep, rho_min=middle, rho_max=middle)),
    ]
    cues = {
        "deep visual only": (True, False, False),
        "deep anomaly only": (False, True, False),
    }
    if base.network.deep.dissimilarity is not None:
        cues["deep without dissimilarity"] = (True, True, False)
    detectors = {name: Detector(with_cues(base.network, *chosen)) for name, chosen in cues.items()}
    return [
        *(Variant(point.name, point) for point in points),
        *(Variant(name, base.named(name), detector=detector) for name, detector in detectors.items()),
    ]


@torch.no_grad()
def with_cues(network: Network, visual: bool, anomaly: bool, dissimilarity: bool) -> Network:
    """The network whose deep router sees some of its cues only; all else is shared."""
    deep = DeepSelector(network.backbone.width, cue=network.deep.dissimilarity is not None).to(network.device)
    deep.load_state_dict(network.deep.state_dict())
    if not visual:
        deep.visual.query.weight.zero_()
    if not anomaly:
        deep.gate.zero_()
    elif float(deep.gate) == 0:  # an untrained gate would leave nothing to rank by
        deep.gate.fill_(1.0)
    if not dissimilarity and deep.dissimilarity is not None:
        deep.dissimilarity.zero_()
    return Network(
        network.backbone,
        network.head,
        network.shallow,
        deep,
        placement=network.placement,
        calibration=network.calibration,
        image_size=network.image_size,
        name=network.name,
        provenance=network.provenance,
    )


def reducer_variants(base: Base) -> list[Variant]:
    """Reducers of other works at the FLOPs of prune70 of this recipe."""
    points = []
    for method in REDUCERS:
        point = REDUCER_POINTS[f"{method}70"]
        assert point.reducer is not None
        namesake = f"{FAMILIES[base.recipe]}70"
        points.append(replace(point, reducer=replace(point.reducer, namesake=namesake)))
    return [Variant(point.name, point) for point in points]


def recovery_variants(base: Base) -> list[Variant]:
    """Every recovery with the same survivors, and every image score."""
    recoveries = {"zero": "zero", "nearest": "nearest", "same block first": "same_block_first", "graded": "graded"}
    scores = {"base": "base", "half": "half", "gated": "gated", "recovered top-k": "recovered_topk"}
    points = [
        *(base.named(f"recovery {name}", recovery=mode) for name, mode in recoveries.items()),
        *(base.named(f"score {name}", score=kind) for name, kind in scores.items()),
    ]
    return [Variant(point.name, point) for point in points]


def block_variants(base: Base) -> list[Variant]:
    """Coverage, deep blocks and recovery of sides 1 to 4 at exactly the same final keep."""
    return [Variant(point.name, point) for point in (_in_blocks(base, side) for side in (1, 2, 3, 4))]


def _in_blocks(base: Base, side: int) -> OperatingPoint:
    assert base.point.shallow is not None
    shallow = replace(base.point.shallow, block=side, strict=side > 1)
    final = _MATCHED_KEEP * _cells(base)
    share = final / max(shallow_target(shallow.rho, base.network.grid), _blocks(base, side) if side > 1 else 0)
    deep = replace(base.deep, block=side, rho_min=share, rho_max=share, kappa=1.0, exact=True)
    return base.named(f"blocks of {side}", shallow=shallow, deep=deep, recovery="same_block_first", recovery_block=side)


def rescue_variants(base: Base) -> list[Variant]:
    """Rescued tokens at random (three draws), by score, by diversity and by both: as many, at the same final keep."""
    assert base.point.shallow is not None
    count = shallow_target(base.point.shallow.rho, base.network.grid)
    residual = max(1, count - _blocks(base, base.point.shallow.block))
    share = min(1.0, _RESCUE_KEEP * _cells(base) / max(count, _blocks(base, base.point.shallow.block)))
    deep = replace(base.deep, rho_min=share, rho_max=share, kappa=1.0, exact=True)
    # As many coarse cells as there are slots, so that diversity alone can fill them.
    cells = max(base.point.shallow.cells, math.isqrt(residual) + 1)
    budgets = {
        **{f"rescue random {seed}": replace(base.point.shallow, seed=seed) for seed in RANDOM_SEEDS},
        "rescue by score": replace(base.point.shallow, diversity=0),
        "rescue by diversity": replace(base.point.shallow, diversity=residual, cells=cells),
        "rescue by both": base.point.shallow,
    }
    return [Variant(name, base.named(name, shallow=budget, deep=deep)) for name, budget in budgets.items()]


def sweep_variants(base: Base) -> list[Variant]:
    """The pipeline at final keeps from all tokens to a tenth; scorers run even where nothing is dropped."""
    assert base.point.shallow is not None
    points = []
    for pruned in SWEEP:
        keep = 1 - pruned / 100
        rho = keep**_SHALLOW_SHARE
        shallow = replace(base.point.shallow, rho=rho, strict=False)
        deep = replace(base.deep, rho_min=keep / rho, rho_max=keep / rho, kappa=1.0, exact=True)
        points.append(base.named(f"{pruned} % pruned", shallow=shallow, deep=deep))
    return [Variant(point.name, point) for point in points]


def pareto_variants(base: Base) -> list[Variant]:
    """Block sides and shallow budgets, jointly; nothing is matched."""
    assert base.point.shallow is not None
    points = [
        base.named(
            f"blocks of {side}, rho {rho:.0%}",
            shallow=replace(base.point.shallow, block=side, rho=rho),
            deep=replace(base.deep, block=side),
            recovery_block=side,
        )
        for side in (2, 3, 4)
        for rho in (0.7, 0.5, 0.3)
    ]
    return [Variant(point.name, point) for point in points]


def budget_variants(base: Base, results: Results) -> list[Variant]:
    """The mean share of the deep router for every image, and the shares of the images dealt out anew."""
    shares = {row["key"]: _share(row["points"]["full"]) for row in results.images}
    mean = float(np.mean(list(shares.values())))
    keys = sorted(shares)
    dealt = dict(zip(keys, np.random.default_rng(0).permutation([shares[key] for key in keys]).tolist(), strict=True))
    fixed = replace(base.deep, rho_min=mean, rho_max=mean, kappa=1.0)
    return [
        Variant("fixed mean", base.named("fixed mean", deep=fixed)),
        Variant("shuffled", base.named("shuffled"), shares=dealt),
    ]


def _share(values: Mapping[str, Any]) -> float:
    return float(values["keep"] / values["keep_shallow"])


def evidence_centres(base: Base, images: Callable[[], Sequence[Array]]) -> dict[str, float]:
    """For either statistic alone, the centre at which its mean share on source images is that of the full method."""
    chosen = images()
    evidences, own = {}, base.deep.evidence
    for kind in (own, "var", "tail"):
        point = base.named(kind, deep=replace(base.deep, evidence=kind))
        evidences[kind] = _evidences(base.network, point, chosen)
    goal = _mean_share(evidences[own], base.deep)

    def centre(kind: str) -> float:
        # The share falls as the centre rises.
        return bisect(lambda c: -_mean_share(evidences[kind], replace(base.deep, centre=c)), -goal, (-1.0, 2.0))

    return {kind: centre(kind) for kind in ("var", "tail")}


def evidence_variants(base: Base, centres: Mapping[str, float]) -> list[Variant]:
    """Either statistic alone, with its centre."""
    points = [
        base.named(f"evidence {kind}", deep=replace(base.deep, evidence=kind, centre=centre))
        for kind, centre in centres.items()
    ]
    return [Variant(point.name, point) for point in points]


def matched_keep(base: Base, other: Network, images: Sequence[Array]) -> OperatingPoint:
    """The full method for another network, its exponent moved until the mean share on source images is the same."""
    goal = _mean_share(_evidences(base.network, base.point, images), base.deep)
    evidences = _evidences(other, base.point, images)
    kappa = bisect(lambda value: -_mean_share(evidences, replace(base.deep, kappa=value)), -goal, (0.02, 8.0))
    return base.named("matched", deep=replace(base.deep, kappa=kappa))


def _evidences(network: Network, point: OperatingPoint, images: Sequence[Array]) -> list[float]:
    found = [network.infer(image[None], [point])[point.name][0].evidence for image in images]
    return [value for value in found if value is not None]


def _mean_share(evidences: Sequence[float], deep: DeepBudget) -> float:
    """Mean share of the live tokens that these evidences are worth."""
    return float(np.mean([token_budget(value, 10_000, deep) / 10_000 for value in evidences]))


def bisect(function: Any, goal: float, interval: tuple[float, float]) -> float:
    """The argument at which an increasing function reaches `goal`, or the end of the interval nearest to that."""
    low, high = interval
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if function(middle) < goal else (low, middle)
    return (low + high) / 2


def _cells(base: Base) -> int:
    return base.network.grid[0] * base.network.grid[1]


def _blocks(base: Base, side: int) -> int:
    rows, columns = base.network.grid
    return -(-rows // side) * -(-columns // side)
