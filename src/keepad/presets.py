"""Constants of the method as frozen dataclasses: placement, budgets, operating points, calibration."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from keepad.errors import KeepADError

ENGINES = ("torch", "openvino", "onnx")

# Layers of the 24-block reference; other depths use the same fractions, rounded up.
_REFERENCE_DEPTH = 24
_REFERENCE_HEAD = (12, 15, 18, 21, 24)
_REFERENCE_SHALLOW, _REFERENCE_DEEP, _REFERENCE_EXIT = 8, 12, 21


@dataclass(frozen=True)
class Placement:
    """Blocks that feed the head, positions of the routers, and the exit of pruned passes. Counted from 1.

    Attributes:
        head_layers: Blocks whose output feeds the prototype head.
        shallow: The shallow router acts on the tokens that enter this block.
        deep: The deep router acts on the tokens that enter this block.
        exit: Last block of a pass with early exit.
        base_layers: Head layers of the base image score.
        mid_layers: Head layers of the mid image score.
    """

    head_layers: tuple[int, ...]
    shallow: int
    deep: int
    exit: int
    base_layers: tuple[int, ...]
    mid_layers: tuple[int, ...]

    def __post_init__(self) -> None:
        first = self.head_layers[0] if self.head_layers else 0
        if not self.head_layers or list(self.head_layers) != sorted(set(self.head_layers)):
            raise KeepADError(f"head layers must be ascending and distinct, not {list(self.head_layers)}.")
        if not (1 <= self.shallow < self.deep <= self.exit and self.shallow <= first):
            raise KeepADError(
                "routers must be in order, the shallow one at or before the first head layer and the deep one at or "
                f"before the exit, but shallow is {self.shallow}, deep {self.deep}, the first head layer {first} and "
                f"the exit {self.exit}."
            )
        if self.exit not in self.head_layers:
            raise KeepADError(f"the exit must follow a head layer, but {self.exit} is none.")
        for layers in (self.base_layers, self.mid_layers):
            if not layers or not set(layers) <= {layer for layer in self.head_layers if layer <= self.exit}:
                raise KeepADError(f"score layers must be head layers up to the exit, not {list(layers)}.")

    @property
    def early_head_layers(self) -> tuple[int, ...]:
        """Head layers whose output comes before the deep router; of these, only survivors count."""
        return tuple(layer for layer in self.head_layers if layer < self.deep)

    @property
    def match_layers(self) -> tuple[int, ...]:
        """Blocks whose output is matched with references: three, evenly spaced, the last one the exit."""
        step = max(1, self.exit // 6)
        return tuple(layer for layer in (self.exit - 2 * step, self.exit - step, self.exit) if layer >= self.deep)

    @staticmethod
    def for_depth(
        depth: int,
        *,
        head: tuple[int, ...] = _REFERENCE_HEAD,
        deep: int = _REFERENCE_DEEP,
        exit: int = _REFERENCE_EXIT,
    ) -> Placement:
        """The reference placement, scaled to a backbone of `depth` blocks.

        Args:
            depth: Blocks of the backbone.
            head: Blocks of the 24-block reference that feed the head.
            deep: Block of the reference that the deep router precedes.
            exit: Block of the reference after which pruned passes stop, or the last head layer before it.
        """

        def scaled(layer: int) -> int:
            return math.ceil(layer * depth / _REFERENCE_DEPTH)

        if depth < 5:
            raise KeepADError(f"a backbone of {depth} blocks is too shallow for two routers; five are needed.")
        last = scaled(max(layer for layer in head if layer <= exit))
        head = tuple(sorted({scaled(layer) for layer in head}))
        return Placement(
            head_layers=head,
            shallow=scaled(_REFERENCE_SHALLOW),
            deep=scaled(deep),
            exit=last,
            base_layers=tuple(sorted({head[0], last})),
            mid_layers=tuple(layer for layer in head if layer <= last),
        )


@dataclass(frozen=True)
class PixelBudget:
    """Which blocks of patches the pixel router treats as uniform.

    Attributes:
        blocks: Side in patches, largest first, and tolerance: the grey levels (of 255) within which all pixels of a
            uniform block lie, in every channel. One patch of such a block stays.
        noise: Multiple of the estimated sensor noise that is added to the tolerances.
    """

    blocks: tuple[tuple[int, float], ...] = ((8, 24), (4, 24), (2, 20))
    noise: float = 0.0

    def __post_init__(self) -> None:
        sides = [side for side, _ in self.blocks]
        if not sides or sides[-1] < 2 or any(large % small or large == small for large, small in pairwise(sides)):
            raise KeepADError(f"sides of pixel blocks must fall, divide each other and be at least 2, not {sides}.")
        if self.noise < 0 or any(tolerance < 0 for _, tolerance in self.blocks):
            raise KeepADError("the tolerance of the pixel router and its share of noise cannot be negative.")


@dataclass(frozen=True)
class ShallowBudget:
    """Budget of the shallow router.

    Attributes:
        rho: Share of all patch tokens to keep (rho8).
        strict: Keep one token of every block even where that exceeds `rho`.
        block: Side of the coverage blocks, in patches; 0 takes the checkpoint's.
        diversity: Rescue slots for the best token of distinct coarse cells.
        cells: Coarse cells along each side of the grid.
        seed: Rescue tokens at random, drawn from this seed and the image, instead of by score (a control); None is off.
    """

    rho: float
    strict: bool = True
    block: int = 2
    diversity: int = 16
    cells: int = 8
    seed: int | None = None


@dataclass(frozen=True)
class DeepBudget:
    """Controller of the deep router: from evidence to a token budget.

    Attributes:
        rho_min: Controller value without evidence.
        rho_max: Controller value with full evidence.
        centre: Evidence at which the controller is half-way (c).
        temperature: Width of its transition (T_b).
        kappa: Exponent that turns the controller value into a share of the live tokens; 0 takes the checkpoint's.
        tail: Share of the live tokens that forms the upper tail.
        block: Side of the blocks that are kept or dropped whole.
        evidence: "absolute", how unlike the rest of the image its most unusual tokens are, where the checkpoint has
            constants for it; else the published statistics of the risks: "both", or as controls "var" or "tail" alone.
        exact: Cut the last block to the budget, so that controls keep equally many tokens.
    """

    rho_min: float = 0.25
    rho_max: float = 0.50
    centre: float = 0.55
    temperature: float = 0.04
    kappa: float = 0.65
    tail: float = 0.03
    block: int = 2
    evidence: str = "both"
    exact: bool = False


REDUCERS = ("tome", "evit", "ats", "zerotprune")


@dataclass(frozen=True)
class ReducerBudget:
    """Budget of a token reducer of another work, which takes the place of both routers.

    Attributes:
        method: One of REDUCERS.
        namesake: Operating point whose counted FLOPs it gets.
        ratio: Share of the live tokens that each of its steps leaves; 0 until it was matched to the namesake.
    """

    method: str
    namesake: str
    ratio: float = 0.0


# Shares of the live tokens that stay without and with full absolute evidence; chosen on source products.
ABSOLUTE_SHARES = (0.4, 0.9)

# Controller where references give the evidence, in deviations from normal; chosen on source products.
REFERENCE_BUDGET = DeepBudget(rho_min=0.3, rho_max=1.0, centre=1.75, temperature=0.3, kappa=1.0)


@dataclass(frozen=True)
class OperatingPoint:
    """One trade-off of speed against accuracy; everything that differs between dense and prune70.

    Attributes:
        name: What users call it.
        shallow: Budget of the shallow router, or None to keep every token.
        deep: Budget of the deep router, or None to keep every token.
        early_exit: Stop after the exit block instead of the last head layer.
        active: Head layers that are read: "run" for all that ran, "exit" for those up to the exit even without early
            exit, so that this changes time and nothing else.
        recovery: "same_block_first", "nearest", "zero" or "graded".
        recovery_block: Side of the blocks of "same_block_first".
        score: "gated" (base and mid mixed by the gate), "base", "mid", or as controls "half" (both in equal parts)
            and "recovered_topk".
        smoothing: Sigma of a Gaussian on the map, in patches; 0 is off, None takes the checkpoint's.
        pixels: Budget of the pixel router, or None to embed every patch.
        reducer: Budget of a reducer that takes the place of all routers, or None.
        context: Let survivors attend to dropped tokens, where the checkpoint does so.
    """

    name: str
    shallow: ShallowBudget | None = None
    deep: DeepBudget | None = None
    early_exit: bool = False
    recovery: str = "same_block_first"
    recovery_block: int = 2
    score: str = "gated"
    smoothing: float | None = None
    pixels: PixelBudget | None = None
    active: str = "run"
    reducer: ReducerBudget | None = None
    context: bool = False


PIXELS = PixelBudget()


def _pruned(name: str, rho: float) -> OperatingPoint:
    """The adopted geometry, of which each checkpoint has its own constants."""
    return OperatingPoint(
        name,
        shallow=ShallowBudget(rho, block=0),
        deep=DeepBudget(kappa=0, evidence="absolute"),
        early_exit=True,
        recovery="graded",
        pixels=PIXELS,
        context=True,
    )


def _published(name: str, rho: float) -> OperatingPoint:
    """The published geometry: one token of every 2x2 block, no pixel router."""
    return OperatingPoint(name, shallow=ShallowBudget(rho), deep=DeepBudget(), early_exit=True)


def _reducing(method: str, prune: int) -> OperatingPoint:
    """A reducer of another work at the FLOPs of a prune point; dropped cells are recovered as the paper does."""
    return OperatingPoint(f"{method}{prune}", early_exit=True, reducer=ReducerBudget(method, namesake=f"prune{prune}"))


POINTS: dict[str, OperatingPoint] = {
    "dense": OperatingPoint("dense"),
    "prune30": _pruned("prune30", 0.70),
    "prune50": _pruned("prune50", 0.50),
    "prune70": _pruned("prune70", 0.30),
    "paper30": _published("paper30", 0.70),
    "paper50": _published("paper50", 0.50),
    "paper70": _published("paper70", 0.30),
}

# Points that exist for comparison. Their FLOPs are matched on the images of an evaluation or a benchmark.
REDUCER_POINTS: dict[str, OperatingPoint] = {
    point.name: point for prune in (30, 50, 70) for point in (_reducing(method, prune) for method in REDUCERS)
}


PIXEL_ROUTER = ("on", "off")


def with_pixel_router(point: str | OperatingPoint, choice: str | None) -> OperatingPoint:
    """The point with its pixel router "on" or "off", or as it is if None."""
    point = operating_point(point)
    if choice is None:
        return point
    if choice not in PIXEL_ROUTER:
        raise KeepADError(f"the pixel router is on or off, not {choice!r}.")
    if point.reducer is not None:  # takes the place of all routers
        return point
    return replace(point, pixels=PIXELS if choice == "on" else None)


LEAST_KEEP, MOST_KEEP = 0.12, 0.95  # below, one token of every 3x3 block stays anyway; above, dense is as fast
_KEEP_NAME = re.compile(r"keep([0-9]{1,2}(?:\.[0-9]{1,2})?)")


def operating_point(point: str | OperatingPoint) -> OperatingPoint:
    """The operating point of that name, keep25 and the like among them; an OperatingPoint is returned as it is."""
    if isinstance(point, OperatingPoint):
        return point
    known = {**POINTS, **REDUCER_POINTS}
    if point in known:
        return known[point]
    if between := _KEEP_NAME.fullmatch(point):
        return keep_point(float(between[1]) / 100)
    raise KeepADError(
        f"there is no operating point called {point!r}; choose one of {', '.join(known)}, or keep25 and the like."
    )


def keep_point(keep: float) -> OperatingPoint:
    """The operating point, by the name of keep25 for 0.25, whose shallow router keeps this share of the tokens.

    It lies between the named ones: prune30, prune50 and prune70 keep 0.7, 0.5 and 0.3. The deep router goes on from
    there, as at these.
    """
    if not LEAST_KEEP <= keep <= MOST_KEEP:
        raise KeepADError(
            f"a share of {keep:g} cannot be kept; choose one of {LEAST_KEEP} to {MOST_KEEP}, or the point dense."
        )
    share = round(keep, 4)  # 0.29 * 100 is 28.999999999999996
    return _pruned(f"keep{round(100 * share, 2):g}", share)


@dataclass(frozen=True)
class Calibration:
    """Constants fitted on source data; stored in a checkpoint.

    Attributes:
        patch_weight: Weight of the patch score in the image score (lambda).
        base_mean: Mean of the base score over the source images.
        base_std: Its deviation.
        gate_centre: Standardised base score at which base and mid weigh the same (theta).
        gate_temperature: Width of the gate.
        top_fraction: Share of the tokens whose highest responses form the patch score.
        top_of: Share of the "survivors" or of the whole "grid"; the latter does not depend on pruning.
        image_threshold: Score from which an image is called anomalous, or None if unknown.
        pixel_threshold: Map value from which a pixel is called anomalous, or None if unknown.
        smoothing: Sigma of a Gaussian on the patch map, in patches; 0 is off.
        grades: Logits that one deviation of the shallow score, and of the risk, moves a recovered response.
        coverage: Side of the coverage blocks, in patches, at points that name none.
        kappa: Exponent of the deep budget at points that name none.
        landmarks: One in how many cells is a landmark of the shallow router: 9 or 2 (see `routing.grid.is_landmark`).
        score_smoothing: Sigma of a Gaussian on the scores that rescue goes by, in patches; 0 is off.
        context: Whether survivors of the shallow router attend to what it dropped, until the deep router.
        evidence: Rows of (rho, centre, temperature): the controller of absolute evidence behind a shallow router with
            that rho, ascending; empty where the evidence is the published one.
    """

    patch_weight: float = 0.5
    base_mean: float = 0.5
    base_std: float = 0.25
    gate_centre: float = 0.0
    gate_temperature: float = 0.5
    top_fraction: float = 0.05
    top_of: str = "survivors"
    image_threshold: float | None = None
    pixel_threshold: float | None = None
    smoothing: float = 0.0
    grades: tuple[float, float] = (0.0, 0.0)
    coverage: int = 3
    kappa: float = 0.58
    landmarks: int = 9
    score_smoothing: float = 0.0
    context: bool = False
    evidence: tuple[tuple[float, float, float], ...] = ()


def resolved(point: OperatingPoint, calibration: Calibration) -> OperatingPoint:
    """The point with the checkpoint's constants wherever it names none of its own."""
    shallow, deep = point.shallow, point.deep
    if shallow is not None and not shallow.block:
        shallow = replace(shallow, block=calibration.coverage)
    if deep is not None:
        deep = _resolved_deep(deep, 1.0 if shallow is None else shallow.rho, calibration)
    smoothing = calibration.smoothing if point.smoothing is None else point.smoothing
    context = point.context and calibration.context
    return replace(point, shallow=shallow, deep=deep, smoothing=smoothing, context=context)


def _resolved_deep(deep: DeepBudget, rho: float, calibration: Calibration) -> DeepBudget:
    """The deep budget behind a shallow router that keeps a share `rho`, with the checkpoint's constants."""
    if deep.evidence == "absolute" and not calibration.evidence:
        deep = replace(deep, evidence="both")
    if deep.kappa:
        return deep
    if deep.evidence != "absolute":
        return replace(deep, kappa=calibration.kappa)
    rhos, centres, temperatures = (list(column) for column in zip(*calibration.evidence, strict=True))
    centre, temperature = (float(np.interp(rho, rhos, values)) for values in (centres, temperatures))
    low, high = ABSOLUTE_SHARES
    return replace(deep, rho_min=low, rho_max=high, centre=centre, temperature=temperature, kappa=1.0)


def with_tuples(fields: dict[str, Any]) -> dict[str, Any]:
    """Fields read from JSON, lists turned back into tuples."""
    return {key: _with_tuples(value) for key, value in fields.items()}


def _with_tuples(value: Any) -> Any:
    return tuple(map(_with_tuples, value)) if isinstance(value, list) else value
