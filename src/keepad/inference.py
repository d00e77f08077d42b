"""One pruned pass: encode, route, respond, recover, score. Written once for every network that can run the steps.

A network (torch or an engine) computes features and scores; every decision between its steps is made here in NumPy, so
that no engine can disagree with torch about which tokens stay.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Protocol, TypeAlias

import numpy as np

from keepad.arrays import Array
from keepad.errors import KeepADError
from keepad.fusion import fused_risks, fused_scores, unusual_evidence
from keepad.presets import REFERENCE_BUDGET, Calibration, OperatingPoint, PixelBudget, Placement, resolved
from keepad.recovery import RouterScores, Upsampler, on_grid, recover, smooth_scores
from keepad.references.bank import Bank, ImageTokens, Match, blend, nearest, top_distance, unit
from keepad.routing import (
    Grid,
    PixelRouting,
    keep_deep,
    keep_shallow,
    route_pixels,
    share_deep,
    share_shallow,
    standardise,
)
from keepad.scoring import image_score
from keepad.steps import WHOLE, HeadOutput, LiveTokens, Scope, Stages, Steps
from keepad.tiles import TileReport


@dataclass(frozen=True)
class Inference:
    """The result of one image, from the network to its Prediction.

    Attributes:
        score: Image score.
        patch_map: (rows, columns) recovered responses.
        anomaly_map: (H, W) the same at input size, float32.
        survivors_shallow: Grid indices alive after the shallow router, ascending.
        survivors: Grid indices alive after the deep router, ascending.
        evidence: E(I), or None where the deep router did not run.
        pixel_routing: Decision of the pixel router, or None where it did not run.
        match: How the survivors match the references, or None without references.
        tokens: What the image would leave behind as a reference, where that was asked for.
        alone: Survivors whose token was averaged with no other; None where no reducer merges tokens.
        work: Tokens in each block of a pass with a reducer (see `ReducedImage`); None for other passes.
        inside: (N,) bool, the cells that count, or None where all do.
        tiles: What the tiles cost into which the photograph was cut, or None; grid indices are then those of the
            photograph.
        extent: Share of the map's height and width that the photograph takes.
        context: Dropped tokens that survivors attended to between the routers.
    """

    score: float
    patch_map: Array
    anomaly_map: Array
    survivors_shallow: Array
    survivors: Array
    evidence: float | None
    pixel_routing: PixelRouting | None = None
    match: Match | None = None
    tokens: ImageTokens | None = None
    alone: Array | None = None
    work: tuple[tuple[int, int, int, int], ...] | None = None
    inside: Array | None = None
    tiles: TileReport | None = None
    extent: tuple[float, float] = (1.0, 1.0)
    context: int = 0

    @property
    def counted(self) -> int:
        """Number of cells that count."""
        return self.patch_map.size if self.inside is None else int(self.inside.sum())


Routings: TypeAlias = dict[PixelBudget | None, list[PixelRouting] | None]
References: TypeAlias = Mapping[str, Bank]  # by name of operating point; points without one run zero-shot
NO_REFERENCES: References = MappingProxyType({})


def route_all(
    pixels: Array, patch: tuple[int, int], points: Sequence[OperatingPoint], scope: Scope = WHOLE
) -> Routings:
    """Decisions of the pixel router for each image of a batch, by pixel budget; None where every patch stays."""
    inside = scope.inside or [None] * len(pixels)
    rows, columns = _grid_of(pixels, patch)
    routings: Routings = {}
    for budget in dict.fromkeys(point.pixels for point in points):
        if budget is not None:
            both = zip(pixels, inside, strict=True)
            routings[budget] = [route_pixels(image, patch, budget, own) for image, own in both]
        elif all(own is None for own in inside):
            routings[budget] = None
        else:
            every = np.ones(rows * columns, dtype=bool)
            routings[budget] = [PixelRouting.of_all(every if own is None else own) for own in inside]
    return routings


def _grid_of(pixels: Array, patch: tuple[int, int]) -> Grid:
    """Rows and columns of the grid of (B, H, W, 3) pixels."""
    return pixels.shape[1] // patch[0], pixels.shape[2] // patch[1]


def infer(
    steps: Steps,
    pixels: Array,
    points: Sequence[OperatingPoint],
    stages: Stages,
    routings: Routings | None = None,
    references: References = NO_REFERENCES,
    record: bool = False,
    scope: Scope = WHOLE,
) -> dict[str, list[Inference]]:
    """The result of every image of a batch, (B, H, W, 3) uint8, at every operating point, by its name.

    Points with the same pixel budget share the blocks before the shallow router.

    Args:
        steps: The network.
        pixels: The images, in whole patches.
        points: Operating points.
        stages: Timer.
        routings: Decisions of the pixel router, where they were made already.
        references: Normal tokens of the product.
        record: Also give the tokens that each image would leave behind as a reference.
        scope: Which cells count, and whether the images share their budgets.
    """
    results: dict[str, list[Inference]] = {}
    for point in points:
        if point.reducer is not None:
            if record or point.name in references:
                raise KeepADError(f"{point.name} runs zero-shot only; take references with another point.")
            if scope is not WHOLE:
                raise KeepADError(f"{point.name} takes whole images only; leave --tiles, --roi and --fit pad out.")
            results[point.name] = _reduce(steps, pixels, resolved(point, steps.calibration), stages)
    routed_points = [point for point in points if point.reducer is None]
    if routings is None:
        routings = route_all(pixels, steps.patch, routed_points, scope)
        stages.mark("routing")
    for budget, routing in routings.items():
        group = [point for point in routed_points if point.pixels == budget]
        tokens = steps.early_step(pixels, routing, stages)
        stages.mark("early")
        scores = steps.shallow_step(tokens) if any(point.shallow for point in group) else None
        matched = record or any(point.name in references for point in group)
        shared = scope.corners is not None and any(point.shallow or point.deep for point in group)
        entry = steps.entry_step(tokens) if matched or shared else None
        early = _Early(tokens, scores, entry, routing, _grid_of(pixels, steps.patch), scope, matched)
        stages.mark("routing")
        unrouted: dict[bool, _Routed] = {}  # by early exit: what does not depend on the references runs once
        for point in group:
            bank, routed = references.get(point.name), unrouted.get(point.early_exit)
            if routed is None or point.shallow is not None or point.deep is not None:
                routed = _route(steps, early, resolved(point, steps.calibration), bank, stages)
            if point.shallow is None and point.deep is None:
                unrouted[point.early_exit] = routed
            results[point.name] = _read(steps, early, routed, point, bank, record, stages)
    return {point.name: results[point.name] for point in points}


@dataclass(frozen=True)
class _Early:
    """A batch where it enters the shallow router, shared by operating points.

    Attributes:
        tokens: Live tokens.
        scores: (m,) scores of the shallow router per image, or None where no point needs them.
        entry: (m, C) tokens of all cells that count per image, or None where nothing needs them.
        routings: Decisions of the pixel router, or None where every patch stays.
        grid: Rows and columns.
        scope: Which cells count, and whether the images share their budgets.
        matched: Whether references are matched, or tokens recorded as such.
    """

    tokens: LiveTokens
    scores: list[Array] | None
    entry: list[Array] | None
    routings: Sequence[PixelRouting] | None
    grid: Grid
    scope: Scope
    matched: bool

    def cells(self) -> list[Array]:
        """Grid indices of the cells of each image that count."""
        return [self.scope.cells(image, self.grid[0] * self.grid[1]) for image in range(len(self.tokens.indices()))]


@dataclass(frozen=True)
class _Routed:
    """A batch behind its last block.

    Attributes:
        live: (k,) grid indices of the cells that survived, per image.
        kept: (k,) their positions among the cells that entered the deep router.
        traces: Scores of the routers.
        evidence: E(I), or None where the deep router did not run.
        entering: Grid indices of the tokens that entered the deep router.
        survivors: Grid indices of the tokens that left it.
        entry: (m, C) tokens of the cells that entered the deep router, as unit vectors; empty unless asked for.
        far: (k,) distances of the survivors at the deep router, where it knows references.
        context: Dropped tokens that survivors attended to between the routers, per image.
        output: What the late blocks gave.
    """

    live: list[Array]
    kept: list[Array]
    traces: list[RouterScores[Array]]
    evidence: Sequence[float | None]
    entering: Sequence[Array]
    survivors: Sequence[Array]
    entry: list[Array]
    far: list[Array] | None
    context: Sequence[int]
    output: HeadOutput


def _route(steps: Steps, early: _Early, point: OperatingPoint, bank: Bank | None, stages: Stages) -> _Routed:
    """Run a batch at one point, from the tokens that enter the shallow router to the last block."""
    tokens, grid, corners, live = early.tokens, early.grid, early.scope.corners, early.cells()
    counted, sigma = [len(cells) for cells in live], steps.calibration.score_smoothing
    fused = early.entry is not None and (bank is not None or corners is not None)  # more is known than the scores
    traces = [RouterScores[Array](None, cells, None) for cells in live]
    evidence: Sequence[float | None] = [None] * len(live)
    if point.shallow is not None and early.scores is not None:
        scores = fused_scores(early.scores, live, early.entry or [], grid, bank, corners) if fused else early.scores
        smoothed = [smooth_scores(*each, grid, sigma) for each in zip(scores, live, strict=True)]
        if corners is None:
            own = zip(scores, live, counted, smoothed, strict=True)
            keep = [keep_shallow(score, cells, grid, point.shallow, n, rest) for score, cells, n, rest in own]
        else:
            count = sum(len(index) for index in tokens.indices())
            keep = share_shallow(smoothed, live, grid, point.shallow, corners, count)
        tokens, every = tokens.gather(keep, point.context), live
        live = [cells[own] for cells, own in zip(live, keep, strict=True)]
        rows = zip(scores, every, live, strict=True)
        traces = [RouterScores(on_grid(standardise(own), all_of, left, grid), left, None) for own, all_of, left in rows]
    entering, around = tokens.indices(), tokens.around()
    stages.mark("routing")
    tokens = steps.middle_step(tokens)
    stages.mark("middle")
    entry = [] if early.entry is None else [unit(own) for own in steps.entry_step(tokens)]
    kept, far = [np.arange(len(cells)) for cells in live], None
    if point.deep is not None:
        risks, budget, known = steps.risk_step(tokens), point.deep, evidence
        if budget.evidence == "absolute" and bank is None:
            known = unusual_evidence(steps.unusual_step(tokens), counted, budget.tail, corners)
        if fused:
            more = fused_risks(risks, live, entry, counted, grid, bank, corners)
            risks, far = more.risks, more.distances
            known = known if bank is None else more.evidence
            budget = budget if bank is None else replace(REFERENCE_BUDGET, block=budget.block)
        if corners is None:
            each = zip(risks, live, known, strict=True)
            choices = [keep_deep(risk, cells, grid, budget, own) for risk, cells, own in each]
        else:
            choices = share_deep(risks, live, grid, budget, corners, known[0])
        kept, evidence = [choice.keep for choice in choices], [choice.evidence for choice in choices]
        far = None if far is None else [own[keep] for own, keep in zip(far, kept, strict=True)]
        tokens = tokens.gather(kept)
        traces = [replace(trace, risk=standardise(risk)) for trace, risk in zip(traces, risks, strict=True)]
        live = [cells[keep] for cells, keep in zip(live, kept, strict=True)]
    survivors = tokens.indices()
    stages.mark("routing")
    last = steps.placement.exit if point.early_exit else steps.placement.head_layers[-1]
    output = steps.late_step(tokens, last, stages, features=early.matched)
    if early.matched:  # an engine's outputs are valid until its next pass only
        output = HeadOutput(*([own.copy() for own in part] for part in (output.responses, output.cls, output.features)))
    stages.mark("late")
    return _Routed(live, kept, traces, evidence, entering, survivors, entry, far, around, output)


def _read(
    steps: Steps, early: _Early, routed: _Routed, point: OperatingPoint, bank: Bank | None, record: bool, stages: Stages
) -> list[Inference]:
    """Results of a batch at one point, from the responses of its survivors."""
    point = resolved(point, steps.calibration)
    images, output = len(routed.live), _active(steps, routed.output, point)
    counted = [len(cells) for cells in early.cells()]
    matches: Sequence[Match | None] = [None] * images
    if bank is not None:
        far = routed.far or [nearest(own, bank.deep)[0] for own in routed.entry]
        matches = [bank.match(*each) for each in zip(output.features, far, routed.live, strict=True)]
    readings = [
        own.mean(0) if match is None else blend(match.distance, own.mean(0))
        for own, match in zip(output.responses, matches, strict=True)
    ]
    stages.mark("scoring")
    maps = [
        _recover(steps, early.grid, *each, point) for each in zip(readings, routed.live, routed.traces, strict=True)
    ]
    stages.mark("recovery")
    zero_shot = [
        _score(steps, own, own_cls, patch_map.reshape(-1)[cells], point)
        for own, own_cls, (patch_map, _), cells in zip(output.responses, output.cls, maps, early.cells(), strict=True)
    ]
    scores = [
        own if match is None else float(blend(top_distance(match.distance, cells), own))
        for own, match, cells in zip(zero_shot, matches, counted, strict=True)
    ]
    recorded: Sequence[ImageTokens | None] = [None] * images
    if record and early.entry is not None:
        means = [own.mean(0) for own in output.responses]
        parts = zip(early.entry, routed.entry, output.features, routed.live, routed.kept, means, zero_shot, strict=True)
        recorded = [ImageTokens(unit(first), *rest) for first, *rest in parts]
    stages.mark("scoring")
    decisions: Sequence[PixelRouting | None] = early.routings or [None] * images
    inside = early.scope.inside or [None] * images
    columns = (routed.entering, routed.survivors, routed.evidence, decisions, matches, recorded)
    results = [Inference(score, *both, *rest) for score, both, *rest in zip(scores, maps, *columns, strict=True)]
    limits = zip(results, inside, routed.context, strict=True)
    return [replace(result, inside=own, context=around) for result, own, around in limits]


def _active(steps: Steps, output: HeadOutput, point: OperatingPoint) -> HeadOutput:
    """The output at the head layers that the point reads."""
    if point.active == "run":
        return output
    count = sum(layer <= steps.placement.exit for layer in steps.placement.head_layers)
    return replace(output, responses=[own[:count] for own in output.responses], cls=[own[:count] for own in output.cls])


def _reduce(steps: Steps, pixels: Array, point: OperatingPoint, stages: Stages) -> list[Inference]:
    """Results of a batch at a point with a reducer."""
    grid = _grid_of(pixels, steps.patch)
    results, whole = [], np.arange(grid[0] * grid[1])
    last = steps.placement.exit if point.early_exit else steps.placement.head_layers[-1]
    for own in steps.reduce_step(pixels, point, last, stages):
        trace = RouterScores[Array](None, whole, None)
        both = _recover(steps, grid, own.responses.mean(0), own.live, trace, point)
        stages.mark("recovery")
        score = _score(steps, own.responses, own.cls, both[0], point)
        stages.mark("scoring")
        results.append(Inference(score, *both, own.entering, own.survivors, None, alone=own.alone, work=own.work))
    return results


def _recover(
    steps: Steps, grid: Grid, readings: Array, live: Array, trace: RouterScores[Array], point: OperatingPoint
) -> tuple[Array, Array]:
    """Patch map and anomaly map of one image, from the (m,) readings of its live cells."""
    grades = steps.calibration.grades
    block = point.recovery_block
    patch_map = recover(readings, live, grid, mode=point.recovery, block=block, scores=trace, grades=grades)
    size = grid[0] * steps.patch[0], grid[1] * steps.patch[1]
    return patch_map, Upsampler(grid, size, point.smoothing or 0.0)(patch_map)


def _score(steps: Steps, responses: Array, cls: Array, patch_map: Array, point: OperatingPoint) -> float:
    """Score of one image, from (layers, m) responses of its live cells and (layers,) of its CLS token and its map."""
    placement, calibration = steps.placement, steps.calibration
    layers = placement.head_layers[: len(responses)]
    patch, token = dict(zip(layers, responses, strict=True)), dict(zip(layers, cls.tolist(), strict=True))
    return image_score(patch, token, patch_map, kind=point.score, placement=placement, calibration=calibration)


class AnyNetwork(Protocol):
    """What a detector needs of a network: torch's or an engine's."""

    name: str
    image_size: tuple[int, int]
    placement: Placement
    calibration: Calibration
    provenance: dict[str, Any]
    packages: tuple[str, ...]
    fixed_size: bool
    lanes: int  # calls of infer that may run at once

    @property
    def backbone_name(self) -> str: ...

    @property
    def patch(self) -> tuple[int, int]: ...

    @property
    def grid(self) -> tuple[int, int]: ...

    @property
    def runs_on(self) -> str: ...

    @property
    def precision(self) -> str: ...

    def infer(
        self,
        pixels: Array,
        points: Sequence[OperatingPoint],
        stages: Stages | None = None,
        references: References = NO_REFERENCES,
        record: bool = False,
        scope: Scope = WHOLE,
    ) -> dict[str, list[Inference]]: ...

    def digests(self) -> dict[str, str]: ...
