"""EngineDetector: a pruned pass with its segments in an engine and its decisions in NumPy. Runs without torch."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue

import numpy as np

from keepad.arrays import Array
from keepad.detector import Detector, Finding, ImageSource, Stages
from keepad.engines.decisions import (
    Enlarger,
    Known,
    image_score,
    keep_deep,
    keep_shallow,
    numbered,
    recover,
    standardised,
)
from keepad.engines.folder import SUFFIXES, EngineInfo, read_description
from keepad.engines.sessions import MULTIPLES, PACKAGES, Session, available_threads, open_session
from keepad.errors import KeepADError
from keepad.prediction import Prediction
from keepad.presets import OperatingPoint, PixelBudget, operating_point
from keepad.routing.pixel import PixelRouting, route_pixels


def load_engine(
    folder: str | Path, point: str | OperatingPoint = "prune50", *, threads: int | None = None
) -> EngineDetector:
    """A detector that `keepad export` wrote, ready to be called.

    Args:
        folder: What `keepad export` wrote.
        point: Operating point: dense, prune30, prune50, prune70, or one made by hand.
        threads: CPU threads, or None for all that this process may use.
    """
    return EngineDetector(Path(folder), read_description(Path(folder)), operating_point(point), threads)


SCORES = "scores"  # segment of the shallow router's scores, which is in single precision whatever the others are

_Choices = dict[PixelBudget | None, PixelRouting | None]  # what the pixel router decided for one image, by its budget


@dataclass(frozen=True)
class _Live:
    """Live tokens and cells of one image; see `Tokens` and `Shares`.

    Attributes:
        tokens: (prefix + n, C) features.
        index: (n,) grid indices of the patches among them, ascending.
        cells: (m,) grid indices of the live cells, ascending.
        place: (m,) which of the patches each cell has.
        mass: (n,) cells that share each patch.
    """

    tokens: Array
    index: Array
    cells: Array
    place: Array
    mass: Array

    def gather(self, keep: Array) -> _Live:
        """What the cells at these positions need, and the prefix."""
        needed, place = numbered(self.place[keep])
        prefix = len(self.tokens) - len(self.index)
        rows = np.concatenate([np.arange(prefix), needed + prefix])
        mass = np.bincount(place, minlength=len(needed)).astype(np.float32)
        return _Live(self.tokens[rows], self.index[needed], self.cells[keep], place, mass)

    def filled(self, multiple: int) -> dict[str, Array]:
        """The same as inputs of a segment, with tokens that count for nothing up to a multiple."""
        return filled(multiple, len(self.tokens), **vars(self))


class _Segments:
    """Sessions of the segments, each opened when it is first asked for.

    Args:
        folder: Where the segments are.
        info: What the folder says about itself.
        threads: CPU threads of each session.
    """

    def __init__(self, folder: Path, info: EngineInfo, threads: int) -> None:
        self._folder, self._info, self._threads = folder, info, threads
        self._open: dict[str, Session] = {}

    def __call__(self, name: str) -> Session:
        if name not in self._open:
            info, path = self._info, self._folder / f"{name}{SUFFIXES[self._info.engine]}"
            precision = "fp32" if name == SCORES else info.precision
            self._open[name] = open_session(info.engine, path, precision=precision, threads=self._threads)
        return self._open[name]


class EngineDetector(Detector):
    """A detector that OpenVINO or ONNX Runtime runs.

    One image has all threads for itself. Of several, as many pass at a time as there are threads, and share them out:
    no thread waits for another then, and decisions are made while other images compute.

    Args:
        folder: Where its segments are.
        info: What the folder says about itself.
        point: Operating point used where none is given.
        threads: CPU threads, or None for all that this process may use.
    """

    def __init__(self, folder: Path, info: EngineInfo, point: OperatingPoint, threads: int | None) -> None:
        self.info, self.point = info, point
        self.name, self.image_size = info.name, info.image_size
        self.calibration, self.provenance = info.calibration, info.provenance
        self.packages = (PACKAGES[info.engine],)  # type: ignore[misc]
        self._folder, self._threads = folder, threads or available_threads()
        self._multiple = MULTIPLES[info.engine]
        self._enlargers: dict[float, Enlarger] = {}
        self._whole = np.arange(self.grid[0] * self.grid[1])
        self._alone, self._lanes = _Segments(folder, info, self._threads), list[_Segments]()
        self._alone("prefix")  # a missing engine is told of now

    @property
    def backbone_name(self) -> str:
        return self.info.backbone

    @property
    def grid(self) -> tuple[int, int]:
        return self.info.grid

    @property
    def runs_on(self) -> str:
        return f"{self.info.engine} {self.info.precision} on the CPU"

    def __call__(self, image: ImageSource) -> Prediction:
        return self.forward(image)

    def digests(self) -> dict[str, str]:
        """Digests of what it was exported from; the engine and its precision are part of the checkpoint's."""
        found = self.info.digests
        return {**found, "checkpoint": f"{found['checkpoint']} {self.info.engine} {self.info.precision}"}

    def reopened(self) -> EngineDetector:
        """The same detector with sessions of its own, which hold nothing yet of what they have computed."""
        return EngineDetector(self._folder, self.info, self.point, self._threads)

    def find(
        self, pixels: Array, points: Sequence[OperatingPoint], stages: Stages | None = None
    ) -> dict[str, list[Finding]]:
        """What each operating point finds in each image of a batch, (B, H, W, 3) uint8 at input size."""
        stages = stages or Stages()
        budgets = dict.fromkeys(point.pixels for point in points)
        thinned: list[_Choices] = [
            {one: None if one is None else route_pixels(image, self.info.patch, one) for one in budgets}
            for image in pixels
        ]
        stages.mark("routing")
        if len(pixels) == 1 or self._threads == 1:
            each = [self._find_one(*one, points, stages, self._alone) for one in zip(pixels, thinned, strict=True)]
        else:
            each = self._find_side_by_side(pixels, thinned, points, stages)
        return {point.name: [found[point.name] for found in each] for point in points}

    def _find_side_by_side(
        self, pixels: Array, thinned: Sequence[_Choices], points: Sequence[OperatingPoint], stages: Stages
    ) -> list[dict[str, Finding]]:
        """What `_find_one` finds in each image, as many at a time as there are threads."""
        lanes = min(self._threads, len(pixels))
        if len(self._lanes) < lanes:
            self._lanes = [_Segments(self._folder, self.info, self._threads // lanes) for _ in range(lanes)]
        free: SimpleQueue[_Segments] = SimpleQueue()
        for lane in self._lanes:
            free.put(lane)

        def find(number: int) -> tuple[dict[str, Finding], Stages]:
            lane, own = free.get(), Stages()
            try:
                return self._find_one(pixels[number], thinned[number], points, own, lane), own
            finally:
                free.put(lane)

        # Those with the most tokens first, so that no lane is left alone with a long one in the end.
        order = sorted(range(len(pixels)), key=lambda number: -_tokens(thinned[number]))
        with ThreadPoolExecutor(len(self._lanes)) as pool:
            each = dict(zip(order, pool.map(find, order), strict=True))
        stages.mark_in_parts([own.seconds for _, own in each.values()])
        return [each[number][0] for number in range(len(pixels))]

    def _find_one(
        self,
        image: Array,
        thinned: _Choices,
        points: Sequence[OperatingPoint],
        stages: Stages,
        segments: _Segments,
    ) -> dict[str, Finding]:
        found = {}
        for budget, choice in thinned.items():
            live, scores = self._prefix(image, choice, segments)
            stages.mark("before")
            for point in (point for point in points if point.pixels == budget):
                found[point.name] = self._finish(live, scores, point, choice, stages, segments)
        return found

    def _prefix(self, image: Array, thinned: PixelRouting | None, segments: _Segments) -> tuple[_Live, Array]:
        cells = index = place = self._whole
        if thinned is None or thinned.whole:
            patches, mass = patches_of(image, self.info.patch), np.ones(len(index), dtype=np.float32)
        else:
            index, place, mass = thinned.index, thinned.place, thinned.mass
            patches = patches_of(image, self.info.patch, index)
        rows = self.info.prefix + len(index)
        inputs = filled(self._multiple, rows, patches=patches, index=index, place=place, mass=mass)
        (x,) = segments("prefix")(**inputs)
        (scores,) = segments(SCORES)(tokens=x, **inputs)
        return _Live(x[:rows], index, cells, place, mass), scores

    def _finish(
        self,
        live: _Live,
        scores: Array,
        point: OperatingPoint,
        thinned: PixelRouting | None,
        stages: Stages,
        segments: _Segments,
    ) -> Finding:
        known_scores = risks = evidence = None
        if point.shallow is not None:
            known_scores = standardised(scores)
            live = live.gather(keep_shallow(scores, live.cells, self.grid, point.shallow))
        entered, known_cells = live.index, live.cells
        stages.mark("routing")
        x, entry, risk = segments("middle")(**live.filled(self._multiple))
        live = replace(live, tokens=x[: len(live.tokens)])
        stages.mark("between")
        if point.deep is not None:
            keep, evidence = keep_deep(risk, live.cells, self.grid, point.deep)
            risks, live, entry = standardised(risk), live.gather(keep), entry[keep]
        stages.mark("routing")

        place = self.info.placement
        last = place.exit if point.early_exit else place.head_layers[-1]
        read, cls = segments(tail_name(place.exit, last))(**live.filled(self._multiple), entry=entry)
        stages.mark("after")
        known = Known(known_scores, known_cells, risks)
        patch_map = recover(read.mean(0), live.cells, self.grid, point, known, self.calibration.grades)
        pixel_map = self._enlarger(point)(patch_map)
        stages.mark("recovery")
        layers = [layer for layer in place.head_layers if layer <= last]
        score = image_score(
            dict(zip(layers, read, strict=True)),
            dict(zip(layers, cls.tolist(), strict=True)),
            patch_map,
            point,
            place,
            self.calibration,
        )
        stages.mark("scoring")
        return Finding(score, patch_map, pixel_map, entered, live.index, evidence, thinned)

    def _enlarger(self, point: OperatingPoint) -> Enlarger:
        smoothing = self.calibration.smoothing if point.smoothing is None else point.smoothing
        if smoothing not in self._enlargers:
            self._enlargers[smoothing] = Enlarger(self.grid, self.image_size, smoothing)
        return self._enlargers[smoothing]


def _tokens(thinned: _Choices) -> int:
    """Patches that enter block 1, over all choices; a choice that was not made counts as none."""
    return sum(len(choice.index) for choice in thinned.values() if choice is not None)


def filled(multiple: int, rows: int, **inputs: Array) -> dict[str, Array]:
    """Inputs of a segment with tokens that count for nothing, so that it has a multiple of rows.

    No one attends to a token without mass, no average counts it, and no cell has it.

    Args:
        multiple: What the number of rows shall be a multiple of.
        rows: Tokens that there are, prefix included.
        inputs: What the segment takes; what is said of cells stays as it is.
    """
    more = -rows % multiple
    if not more:
        return inputs
    of_tokens = {name for name in ("tokens", "patches", "index", "mass") if name in inputs}
    return {
        name: np.concatenate([value, np.zeros((more, *value.shape[1:]), value.dtype)]) if name in of_tokens else value
        for name, value in inputs.items()
    }


def tail_name(exit_layer: int, last: int) -> str:
    """Segment that runs up to block `last`."""
    return "tail" if last == exit_layer else "tail-whole"


def patches_of(image: Array, patch: tuple[int, int], index: Array | None = None) -> Array:
    """(n, 3 * height * width) pixels of the patches at `index`, or of all, channel by channel, from (H, W, 3)."""
    height, width, channels = image.shape
    if channels != 3 or height % patch[0] or width % patch[1]:
        raise KeepADError(f"the input must be (H, W, 3) in whole patches of {patch[0]}x{patch[1]}, not {image.shape}.")
    cut = image.reshape(height // patch[0], patch[0], width // patch[1], patch[1], channels)
    by_patch = cut.transpose(0, 2, 4, 1, 3)
    if index is not None:
        by_patch = by_patch[index // by_patch.shape[1], index % by_patch.shape[1]]
    return np.ascontiguousarray(by_patch).reshape(-1, channels * patch[0] * patch[1])
