"""EngineNetwork: the network as OpenVINO or ONNX Runtime runs it, segment by segment. Runs without torch."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import TypeAlias

import numpy as np

from keepad.arrays import Array
from keepad.engines.folder import SUFFIXES, EngineInfo, read_description
from keepad.engines.sessions import MULTIPLES, PACKAGES, Session, available_threads, open_session
from keepad.errors import KeepADError
from keepad.inference import NO_REFERENCES, Inference, References, Routings, infer, route_all
from keepad.presets import Calibration, OperatingPoint
from keepad.routing import Grid, PixelRouting, is_landmark, relabel
from keepad.steps import WHOLE, HeadOutput, ReducedImage, Scope, Stages

FEWEST_PATCHES = 90  # fewer may leave fewer tokens than dissimilarity has neighbours
FEWEST_OF_TILE = 16  # budgets that tiles share leave at least twelve of them
_FEWEST_LANDMARKS = 3  # which the graph takes the nearest of
SCORES = "scores"  # segment of the shallow scores; always fp32, since it decides between tokens that differ little

Segments: TypeAlias = Callable[[str], Session]  # the session of a segment, by its name


def open_network(folder: str | Path, *, threads: int | None = None) -> EngineNetwork:
    """The network of a folder that `keepad export` wrote.

    Args:
        folder: The exported folder.
        threads: CPU threads, or None for all that this process may use.
    """
    return EngineNetwork(Path(folder), read_description(Path(folder)), threads)


@dataclass(frozen=True)
class EngineTokens:
    """Live tokens of one image; see `keepad.tokens.Tokens` and `Merge`.

    Attributes:
        x: (prefix + n, C) features.
        index: (n,) grid indices of the patches among them, ascending.
        cells: (m,) grid indices of the live cells, ascending.
        token: (m,) position of each cell's token among the patches.
        size: (n,) cells per patch.
        entry: (m,) dissimilarity where the cells entered the deep router, once it is known.
        risk: (m,) their risk there.
    """

    x: Array
    index: Array
    cells: Array
    token: Array
    size: Array
    entry: Array | None = None
    risk: Array | None = None

    def gather(self, keep: Sequence[Array]) -> EngineTokens:
        """The tokens that the cells at `keep[0]` need."""
        (kept,) = keep
        needed, token = relabel(self.token[kept])
        prefix = len(self.x) - len(self.index)
        rows = np.concatenate([np.arange(prefix), needed + prefix])
        size = np.bincount(token, minlength=len(needed)).astype(np.float32)
        entry = None if self.entry is None else self.entry[kept]
        return EngineTokens(self.x[rows], self.index[needed], self.cells[kept], token, size, entry)

    def indices(self) -> list[Array]:
        """(n,) grid indices of the live patches."""
        return [self.index]

    def inputs(self, multiple: int) -> dict[str, Array]:
        """Inputs of a segment, padded with tokens of size 0 to a multiple of rows.

        A token of size 0 receives no attention, enters no average, and belongs to no cell.
        """
        fields = {"tokens": self.x, "index": self.index, "size": self.size}
        padded = {name: pad_rows(values, -len(self.x) % multiple) for name, values in fields.items()}
        rest = {"cells": self.cells, "token": self.token}
        return {**padded, **rest, **({} if self.entry is None else {"entry": self.entry})}


class EngineNetwork:
    """A network that OpenVINO or ONNX Runtime runs.

    One image uses all threads. Of a batch, as many images run concurrently as there are threads, with sessions of
    their own: no thread waits for another, and decisions overlap with the computation of other images.

    Args:
        folder: The exported folder.
        info: Its description.
        threads: CPU threads, or None for all that this process may use.
    """

    fixed_size = True

    def __init__(self, folder: Path, info: EngineInfo, threads: int | None = None) -> None:
        self.info = info
        self.name, self.image_size = info.name, info.image_size
        self.placement, self.provenance = info.placement, info.provenance
        self.calibration: Calibration = info.calibration
        self.packages: tuple[str, ...] = (PACKAGES[info.engine],)
        self._folder, self._threads = folder, threads or available_threads()
        self._all_threads, self._lanes = self._sessions(self._threads), list[Segments]()
        self._all_threads("early")  # raises now if the engine is missing

    @property
    def backbone_name(self) -> str:
        return self.info.backbone

    @property
    def grid(self) -> Grid:
        return self.info.grid

    @property
    def patch(self) -> tuple[int, int]:
        return self.info.patch

    @property
    def runs_on(self) -> str:
        return f"{self.info.engine} {self.info.precision} on the CPU"

    @property
    def precision(self) -> str:
        return self.info.precision

    def digests(self) -> dict[str, str]:
        """Digests of checkpoint and backbone; engine, precision and exported files are part of the checkpoint's."""
        files = hashlib.sha256(json.dumps(self.info.files, sort_keys=True).encode()).hexdigest()[:12]
        checkpoint = f"{self.info.digests['checkpoint']} {self.info.engine} {self.info.precision} {files}"
        return {**self.info.digests, "checkpoint": checkpoint}

    def reopened(self) -> EngineNetwork:
        """The same network with sessions of its own, whose buffers are still empty."""
        return EngineNetwork(self._folder, self.info, self._threads)

    def infer(
        self,
        pixels: Array,
        points: Sequence[OperatingPoint],
        stages: Stages | None = None,
        references: References = NO_REFERENCES,
        record: bool = False,
        scope: Scope = WHOLE,
    ) -> dict[str, list[Inference]]:
        """The result of every image of a batch, (B, H, W, 3) uint8 at input size, at every operating point."""
        self._check(pixels, scope)
        stages = stages or Stages()
        run = partial(infer, points=points, references=references, record=record)
        if scope.corners is not None:
            return run(BatchSteps(self._steps(self._all_threads)), pixels, stages=stages, scope=scope)
        if len(pixels) == 1 or self._threads == 1:
            steps = self._steps(self._all_threads)
            results = [run(steps, image[None], stages=stages, scope=scope.of(i)) for i, image in enumerate(pixels)]
        else:
            results = self._infer_concurrently(pixels, points, stages, run, scope)
        return {point.name: [result[point.name][0] for result in results] for point in points}

    def _infer_concurrently(
        self,
        pixels: Array,
        points: Sequence[OperatingPoint],
        stages: Stages,
        infer_image: Callable[..., dict[str, list[Inference]]],
        scope: Scope,
    ) -> list[dict[str, list[Inference]]]:
        """Results of each image, as many at a time as there are threads."""
        lanes = min(self._threads, len(pixels))
        if len(self._lanes) < lanes:
            self._lanes = [self._sessions(self._threads // lanes) for _ in range(lanes)]
        free: SimpleQueue[Segments] = SimpleQueue()
        for lane in self._lanes:
            free.put(lane)

        routings = [route_all(image[None], self.info.patch, points, scope.of(i)) for i, image in enumerate(pixels)]
        stages.mark("routing")

        def run(number: int) -> tuple[dict[str, list[Inference]], Stages]:
            lane, own = free.get(), Stages()
            try:
                steps, image = self._steps(lane), pixels[number][None]
                return infer_image(steps, image, stages=own, routings=routings[number], scope=scope.of(number)), own
            finally:
                free.put(lane)

        # Longest first, so that no lane ends with a long image alone.
        order = sorted(range(len(pixels)), key=lambda number: -_patches(routings[number]))
        with ThreadPoolExecutor(len(self._lanes)) as pool:
            results = dict(zip(order, pool.map(run, order), strict=True))
        stages.mark_concurrent([own.seconds for _, own in results.values()])
        return [results[number][0] for number in range(len(pixels))]

    def _check(self, pixels: Array, scope: Scope) -> None:
        """Refuse inputs that the exported graphs cannot take."""
        if pixels.shape[1:3] != self.image_size:
            (rows, columns), (height, width) = self.image_size, pixels.shape[1:3]
            raise KeepADError(
                f"{self.name} was exported for inputs of {rows}x{columns}, not {height}x{width}; export it with "
                "--image-size, or use --engine torch, which takes any."
            )
        cells = self.grid[0] * self.grid[1]
        for number in range(len(pixels) if scope.inside is not None else 0):
            left = len(scope.cells(number, cells))
            if left < (FEWEST_PATCHES if scope.corners is None else FEWEST_OF_TILE):
                raise KeepADError(
                    f"only {left} of {cells} patches of the image count, and an exported network needs "
                    f"{FEWEST_PATCHES}, or {FEWEST_OF_TILE} of a tile; use --engine torch, or a larger region."
                )

    def _steps(self, segments: Segments) -> SegmentSteps:
        return SegmentSteps(self.info, segments, MULTIPLES[self.info.engine], self.calibration)

    def _sessions(self, threads: int) -> Segments:
        """Sessions of the segments, each opened at its first use."""
        opened: dict[str, Session] = {}

        def session(name: str) -> Session:
            if name not in opened:
                path = self._folder / f"{name}{SUFFIXES[self.info.engine]}"
                if path.name not in self.info.files:  # nobody vouches for its content
                    raise KeepADError(f"{self._folder} does not list {path.name} among its files; export it again.")
                precision = "fp32" if name == SCORES else self.info.precision
                opened[name] = open_session(self.info.engine, path, precision=precision, threads=threads)
            return opened[name]

        return session


class SegmentSteps:
    """The steps of a pass over one image, run by the sessions of segments.

    Args:
        info: Description of the network.
        segments: Session of each segment.
        multiple: Numbers of tokens are padded to multiples of it.
        calibration: Constants fitted on source data; the description's own if None.
    """

    def __init__(
        self, info: EngineInfo, segments: Segments, multiple: int = 1, calibration: Calibration | None = None
    ) -> None:
        self.placement, self.patch, self._grid = info.placement, info.patch, info.grid
        self.calibration = calibration or info.calibration
        self._prefix, self._segments, self._multiple = info.prefix, segments, multiple

    def early_step(self, pixels: Array, routings: Sequence[PixelRouting] | None, stages: Stages) -> EngineTokens:
        """Tokens that enter the shallow router, from (1, H, W, 3) uint8."""
        (image,) = pixels
        cells = index = token = np.arange(self._grid[0] * self._grid[1])
        if routings is None or routings[0].whole:
            patches, size = patches_of(image, self.patch), np.ones(len(index), dtype=np.float32)
        else:
            index, token, size, cells = routings[0].index, routings[0].token, routings[0].size, routings[0].cells
            patches = patches_of(image, self.patch, index)
        rows = self._prefix + len(index)
        fields = {"patches": patches, "index": index, "size": size}
        (x,) = self._segments("early")(**{n: pad_rows(v, -rows % self._multiple) for n, v in fields.items()})
        return EngineTokens(x[:rows], index, cells, token, size)

    def shallow_step(self, tokens: EngineTokens) -> list[Array]:
        """(m,) scores of the live cells."""
        landmarks = np.flatnonzero(is_landmark(tokens.cells, self._grid))
        if len(landmarks) < _FEWEST_LANDMARKS:  # a sliver of a tile, beside the lattice
            landmarks = np.linspace(0, len(tokens.cells) - 1, _FEWEST_LANDMARKS).round().astype(np.int64)
        (scores,) = self._segments(SCORES)(**tokens.inputs(self._multiple), landmarks=landmarks)
        return [scores]

    def middle_step(self, tokens: EngineTokens) -> EngineTokens:
        """Tokens that enter the deep router."""
        x, entry, risk = self._segments("middle")(**tokens.inputs(self._multiple))
        return replace(tokens, x=x[: len(tokens.x)], entry=entry, risk=risk)

    def risk_step(self, tokens: EngineTokens) -> list[Array]:
        """(m,) risks of the live cells, which the middle segment has computed already."""
        assert tokens.risk is not None
        return [tokens.risk]

    def entry_step(self, tokens: EngineTokens) -> list[Array]:
        """(m, C) tokens of the live cells, as they enter a router."""
        return [tokens.x[len(tokens.x) - len(tokens.index) + tokens.token]]

    def late_step(self, tokens: EngineTokens, last: int, stages: Stages, features: bool = False) -> HeadOutput:
        """Responses of the head layers up to `last`, and features of the match layers where these are asked for."""
        name = late_name(self.placement.exit, last)
        responses, cls, own = self._segments(name)(**tokens.inputs(self._multiple))
        return HeadOutput([responses], [cls], [own] if features else [])

    def reduce_step(self, pixels: Array, point: OperatingPoint, last: int, stages: Stages) -> list[ReducedImage]:
        """Refuses: no segment shortens the sequence inside a block."""
        raise KeepADError(f"{point.name} changes what happens inside blocks, so it runs in torch only: --engine torch.")


@dataclass(frozen=True)
class EngineBatch:
    """Live tokens of several images, whose budgets are shared."""

    images: list[EngineTokens]

    def gather(self, keep: Sequence[Array]) -> EngineBatch:
        """The tokens that the cells at `keep[b]` need."""
        return EngineBatch([own.gather([kept]) for own, kept in zip(self.images, keep, strict=True)])

    def indices(self) -> list[Array]:
        """(n,) grid indices of the live patches of each image."""
        return [own.index for own in self.images]


class BatchSteps:
    """The steps of a pass over several images: those of one, in turn; what a session gives is copied before its next.

    Args:
        single: The steps of one image.
    """

    def __init__(self, single: SegmentSteps) -> None:
        self.placement, self.calibration, self.patch, self._single = (
            single.placement,
            single.calibration,
            single.patch,
            single,
        )

    def early_step(self, pixels: Array, routings: Sequence[PixelRouting] | None, stages: Stages) -> EngineBatch:
        """Tokens that enter the shallow router, from (B, H, W, 3) uint8."""
        images = []
        for number, image in enumerate(pixels):
            own = self._single.early_step(image[None], routings and routings[number : number + 1], stages)
            images.append(replace(own, x=own.x.copy()))
        return EngineBatch(images)

    def shallow_step(self, tokens: EngineBatch) -> list[Array]:
        """(m,) scores of the live cells of each image."""
        return [self._single.shallow_step(own)[0].copy() for own in tokens.images]

    def middle_step(self, tokens: EngineBatch) -> EngineBatch:
        """Tokens that enter the deep router."""
        images = []
        for own in tokens.images:
            after = self._single.middle_step(own)
            assert after.entry is not None
            assert after.risk is not None
            images.append(replace(after, x=after.x.copy(), entry=after.entry.copy(), risk=after.risk.copy()))
        return EngineBatch(images)

    def risk_step(self, tokens: EngineBatch) -> list[Array]:
        """(m,) risks of the live cells of each image."""
        return [self._single.risk_step(own)[0] for own in tokens.images]

    def entry_step(self, tokens: EngineBatch) -> list[Array]:
        """(m, C) tokens of the live cells of each image, as they enter a router."""
        return [self._single.entry_step(own)[0] for own in tokens.images]

    def late_step(self, tokens: EngineBatch, last: int, stages: Stages, features: bool = False) -> HeadOutput:
        """Responses of the head layers up to `last`, and features of the match layers where these are asked for."""
        output = HeadOutput([], [], [])
        for own in tokens.images:
            one = self._single.late_step(own, last, stages, features)
            output.responses.append(one.responses[0].copy())
            output.cls.append(one.cls[0].copy())
            output.features.extend(part.copy() for part in one.features)
        return output

    def reduce_step(self, pixels: Array, point: OperatingPoint, last: int, stages: Stages) -> list[ReducedImage]:
        """Refuses, as for one image."""
        return self._single.reduce_step(pixels, point, last, stages)


def _patches(routings: Routings) -> int:
    """Patches that enter block 1, summed over the pixel budgets."""
    return sum(len(own[0].index) for own in routings.values() if own is not None)


def pad_rows(values: Array, rows: int) -> Array:
    """(n + rows, ...) with rows of zeros at the end."""
    return values if not rows else np.concatenate([values, np.zeros((rows, *values.shape[1:]), values.dtype)])


def late_name(exit_layer: int, last: int) -> str:
    """Name of the segment that runs up to block `last`."""
    return "late" if last == exit_layer else "late-whole"


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
