"""Photographs of any shape and size: whole or in tiles, where plain ones drop out and the others share one budget."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from keepad.arrays import Array
from keepad.framing import Framing, Shape, cropped
from keepad.images import InputImage
from keepad.inference import Inference, References
from keepad.presets import Calibration, OperatingPoint, PixelBudget, resolved
from keepad.recovery import Upsampler, smooth
from keepad.references.bank import Match
from keepad.roi import within_reach
from keepad.routing import PixelRouting, route_pixels
from keepad.steps import WHOLE, Scope, Stages
from keepad.tiles import Tile, TilePlan, TileReport, blended, cut, sampled
from keepad.views import Infer, in_views

TOGETHER = 64  # tiles that share a batch and a budget; what bounds memory
MAP_PIXELS = 50_000_000  # of a map that is kept at the size of the photograph; larger ones stay on the grid of patches
_PLAIN = 16  # cells per token from which a tile is plain


@dataclass(frozen=True)
class Photographs:
    """Inference of photographs as `framed` gives them.

    Attributes:
        infer_batch: `infer` of a network.
        framing: How photographs became inputs.
        shape: What an input may look like.
        calibration: Constants fitted on source data.
    """

    infer_batch: Infer
    framing: Framing
    shape: Shape
    calibration: Calibration

    def infer(
        self, images: Sequence[InputImage], points: Sequence[OperatingPoint], stages: Stages, references: References
    ) -> dict[str, list[Inference]]:
        """The result of every image at every operating point; images of one size share a batch."""
        infer = in_views(self.infer_batch, self.framing.views) if self.framing.views > 1 else self.infer_batch
        results: dict[str, dict[int, Inference]] = {point.name: {} for point in points}
        for numbers in _alike(images):
            first = images[numbers[0]]
            if first.plan is not None:
                one = infer_tiled(infer, first, points, stages, references, self.calibration)
                some = {name: [own] for name, own in one.items()}
            else:
                inside = [images[number].inside for number in numbers]
                scope = WHOLE if all(own is None for own in inside) else Scope(inside)
                some = infer(
                    np.stack([images[number].pixels for number in numbers]), points, stages, references, scope=scope
                )
            for name, every in some.items():
                for number, result in zip(numbers, every, strict=True):
                    results[name][number] = self._looked_at(result, images[number])
        return {name: [listed[number] for number in range(len(images))] for name, listed in results.items()}

    def _looked_at(self, result: Inference, image: InputImage) -> Inference:
        """The result without padding, and without a map where the image is not looked at."""
        if image.picture is None:
            result = cropped(result, image.content, self.shape.patch)
        if image.roi is None:
            return result
        reach = within_reach(image.roi, result.anomaly_map.shape)
        return replace(result, anomaly_map=np.where(reach, result.anomaly_map, 0).astype(np.float32))


def _alike(images: Sequence[InputImage]) -> list[list[int]]:
    """Numbers of the images that can share a batch, those of one shape; images in tiles have their own."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for number, image in enumerate(images):
        alone = (number,) if image.picture is not None else ()
        groups.setdefault((*image.pixels.shape, *alone), []).append(number)
    return list(groups.values())


def infer_tiled(
    infer: Infer,
    image: InputImage,
    points: Sequence[OperatingPoint],
    stages: Stages,
    references: References,
    calibration: Calibration,
) -> dict[str, Inference]:
    """The result of one photograph at every operating point.

    Args:
        infer: `infer` of a network, possibly averaged over views.
        image: The photograph, its thumbnail at input size, and its tiles.
        points: Operating points.
        stages: Timer.
        references: Banks by name of operating point.
        calibration: Constants fitted on source data.
    """
    plan = image.plan
    assert plan is not None
    inside = None if image.inside is None else [image.inside]
    whole = infer(image.pixels[None], points, stages, references, scope=Scope(inside))
    results: dict[str, Inference] = {}
    for budget in dict.fromkeys(point.pixels for point in points):
        group = [point for point in points if point.pixels == budget]
        parts: dict[str, list[_Part]] = {point.name: [] for point in group}
        for batch in _batches(image, plan, budget):
            computed = [each for each in batch if not each.plain]
            for point in group:
                parts[point.name] += [_Part(each) for each in batch if each.plain]
            if not computed:
                continue
            pixels = np.stack([each.tile.pixels for each in computed])
            scope = Scope([each.tile.inside for each in computed], [each.tile.corner for each in computed])
            stages.mark("embed")
            for name, own in infer(pixels, group, stages, references, scope=scope).items():
                slim = [replace(one, anomaly_map=np.zeros((0, 0), np.float32)) for one in own]
                bare = [replace(each, tile=_without_pixels(each.tile)) for each in computed]
                parts[name] += [_Part(*pair) for pair in zip(bare, slim, strict=True)]
        for point in group:
            sigma = resolved(point, calibration).smoothing or 0.0
            results[point.name] = _joined(plan, parts[point.name], whole[point.name][0], sigma)
        stages.mark("recovery")
    return {point.name: results[point.name] for point in points}


@dataclass(frozen=True)
class _Cut:
    """A tile, what the pixel router decides about it, and whether it is plain."""

    tile: Tile
    routing: PixelRouting | None
    plain: bool


@dataclass(frozen=True)
class _Part:
    """A tile and its result; None where it is plain."""

    cut: _Cut
    result: Inference | None = None


def _without_pixels(tile: Tile) -> Tile:
    return replace(tile, pixels=np.empty((0, 0, 3), np.uint8))  # a view would keep them all alive


def _batches(image: InputImage, plan: TilePlan, budget: PixelBudget | None) -> Iterator[list[_Cut]]:
    """Tiles in the order of their corners, so many at a time that share a budget."""
    assert image.picture is not None
    batch: list[_Cut] = []
    computed = 0
    for corner in sorted(plan.corners):
        tile = cut(image.picture, plan, corner, image.roi)
        if tile is None:
            continue
        routing = None if budget is None else route_pixels(tile.pixels, plan.patch, budget, tile.inside)
        plain = routing is not None and is_plain(routing)
        batch.append(_Cut(_without_pixels(tile) if plain else tile, routing, plain))
        computed += not plain
        if computed == TOGETHER:
            yield batch
            batch, computed = [], 0
    if batch:
        yield batch


def is_plain(routing: PixelRouting) -> bool:
    """Whether the pixels prove a whole tile uniform: every token stands for others, and each for many on average."""
    tokens, cells = len(routing.index), len(routing.cells)
    return _PLAIN * tokens <= cells and bool((routing.size > 1).all())


def _joined(plan: TilePlan, parts: Sequence[_Part], whole: Inference, sigma: float) -> Inference:
    """The result of a photograph from those of its tiles; the map of the thumbnail fills the plain ones."""
    context = sampled(whole.patch_map, plan)
    maps = []
    for part in parts:
        corner = part.cut.tile.corner
        if part.result is not None:
            maps.append((corner, part.result.patch_map))
            continue
        maps.append((corner, context[plan.window(corner)]))
    patch_map = blended(plan, maps)
    pixels = plan.grid[0] * plan.patch[0], plan.grid[1] * plan.patch[1]
    if pixels[0] * pixels[1] <= MAP_PIXELS:
        anomaly_map = Upsampler(plan.grid, pixels, sigma)(patch_map)[: plan.size[0], : plan.size[1]]
        extent = 1.0, 1.0
    else:
        anomaly_map = smooth(patch_map, sigma)
        extent = plan.size[0] / pixels[0], plan.size[1] / pixels[1]
    done = [part.result for part in parts if part.result is not None]
    evidence = [own.evidence for own in (*done, whole) if own.evidence is not None]
    return Inference(
        score=max(own.score for own in (*done, whole)),
        patch_map=patch_map,
        anomaly_map=anomaly_map,
        survivors_shallow=_on_photograph(plan, parts, "survivors_shallow"),
        survivors=_on_photograph(plan, parts, "survivors"),
        evidence=max(evidence) if evidence else None,
        pixel_routing=_routing(plan, parts),
        match=_match(plan, parts),
        inside=_inside(plan, parts),
        tiles=_report(plan, parts),
        extent=extent,
    )


def _on_photograph(plan: TilePlan, parts: Sequence[_Part], name: str) -> Array:
    """Grid indices on the photograph of survivors of any tile, ascending."""
    own = [plan.cells(part.cut.tile.corner)[getattr(part.result, name)] for part in parts if part.result is not None]
    return np.unique(np.concatenate([*own, np.zeros(0, np.int64)]))


def _inside(plan: TilePlan, parts: Sequence[_Part]) -> Array | None:
    """(N,) bool, the cells of the photograph that count in any tile; None where all do."""
    counted = np.zeros(plan.grid[0] * plan.grid[1], dtype=bool)
    for part in parts:
        cells, inside = plan.cells(part.cut.tile.corner), part.cut.tile.inside
        counted[cells[cells >= 0] if inside is None else cells[inside]] = True
    return None if counted.all() else counted


def _routing(plan: TilePlan, parts: Sequence[_Part]) -> PixelRouting | None:
    """What the pixel router decided, on the grid of the photograph: a cell stays where any tile keeps it."""
    if any(part.cut.routing is None for part in parts):
        return None
    count = plan.grid[0] * plan.grid[1]
    owner, bound = np.full(count, -1), np.zeros(count, dtype=np.int16)
    kept = np.zeros(count, dtype=bool)
    for part in parts:
        routing = part.cut.routing
        assert routing is not None
        cells = plan.cells(part.cut.tile.corner)
        own = routing.cells
        owner[cells[own]], bound[cells[own]] = cells[routing.owner[own]], routing.bound[own]
        kept[cells[routing.index]] = True
    owner[kept], bound[kept] = np.flatnonzero(kept), 0
    return PixelRouting(np.flatnonzero(kept), owner, bound)


def _match(plan: TilePlan, parts: Sequence[_Part]) -> Match | None:
    """How the survivors of all tiles match the references."""
    own = [(part.result.match, plan.cells(part.cut.tile.corner)) for part in parts if part.result and part.result.match]
    if not own:
        return None
    return Match(
        np.concatenate([match.distance for match, _ in own]),
        np.concatenate([match.nearest for match, _ in own]),
        np.concatenate([cells[match.cells] for match, cells in own]),
    )


def _report(plan: TilePlan, parts: Sequence[_Part]) -> TileReport:
    full = plan.tile[0] * plan.tile[1]
    done = [part for part in parts if part.result is not None]

    def held(part: _Part) -> int:
        """Cells of a tile that count."""
        return full if part.cut.tile.inside is None else int(part.cut.tile.inside.sum())

    def entered(part: _Part) -> int:
        return held(part) if part.cut.routing is None else len(part.cut.routing.index)

    return TileReport(
        tiles=len(parts),
        plain=len(parts) - len(done),
        scale=plan.scale,
        tile=plan.tile,
        cells=sum(map(held, parts)),
        entered=sum(map(entered, done)),
        shallow=sum(len(part.result.survivors_shallow) for part in done if part.result),
        final=sum(len(part.result.survivors) for part in done if part.result),
    )
