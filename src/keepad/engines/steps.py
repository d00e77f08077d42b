"""The steps of a pass as the sessions of exported segments run them. Runs without torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from keepad.arrays import Array
from keepad.engines.folder import EngineInfo
from keepad.engines.sessions import Session
from keepad.errors import KeepADError
from keepad.presets import Calibration, OperatingPoint
from keepad.routing import PixelRouting, is_landmark, relabel
from keepad.steps import HeadOutput, ReducedImage, Stages

_FEWEST_LANDMARKS = 3  # which the graph takes the nearest of
SCORES = "scores"  # segment of the shallow scores; always fp32, since it decides between tokens that differ little

Segments: TypeAlias = Callable[[str], Session]  # the session of a segment, by its name


@dataclass(frozen=True)
class EngineContext:
    """Dropped tokens of one image; see `keepad.context.Context`.

    Attributes:
        x: (m, C) features.
        index: (m,) grid indices of the patches that they grew from.
        cells: (k,) grid indices of the dropped cells.
        token: (k,) position of each cell's token among the m.
        size: (m,) cells per token.
    """

    x: Array
    index: Array
    cells: Array
    token: Array
    size: Array

    @staticmethod
    def none(width: int) -> EngineContext:
        """No context: a single token that stands for no cell, since engines do not take empty arrays."""
        zero = np.zeros(1, dtype=np.int64)
        return EngineContext(np.zeros((1, width), dtype=np.float32), zero, zero, zero, np.zeros(1, dtype=np.float32))

    def inputs(self, multiple: int) -> dict[str, Array]:
        """Inputs of a segment, padded with tokens of size 0 to a multiple of rows."""
        fields = {"context": self.x, "context_index": self.index, "context_size": self.size}
        # Coarser than the live tokens: what was dropped differs from image to image, and every new shape costs time.
        padded = {name: pad_rows(values, -len(self.x) % (4 * multiple)) for name, values in fields.items()}
        return {**padded, "context_cells": self.cells, "context_token": self.token}


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
        context: Dropped tokens that these attend to, or None.
    """

    x: Array
    index: Array
    cells: Array
    token: Array
    size: Array
    entry: Array | None = None
    risk: Array | None = None
    context: EngineContext | None = None

    def gather(self, keep: Sequence[Array], context: bool = False) -> EngineTokens:
        """The tokens that the cells at `keep[0]` need; with `context`, the others are left behind."""
        (kept,) = keep
        needed, token = relabel(self.token[kept])
        prefix = len(self.x) - len(self.index)
        rows = np.concatenate([np.arange(prefix), needed + prefix])
        size = np.bincount(token, minlength=len(needed)).astype(np.float32)
        entry = None if self.entry is None else self.entry[kept]
        left = self._left_behind(kept) if context and len(kept) < len(self.cells) else None
        return EngineTokens(self.x[rows], self.index[needed], self.cells[kept], token, size, entry, context=left)

    def _left_behind(self, kept: Array) -> EngineContext:
        """What becomes context when the cells at `kept` stay."""
        dropped = np.ones(len(self.cells), dtype=bool)
        dropped[kept] = False
        used, token = relabel(self.token[dropped])
        size = np.bincount(token, minlength=len(used)).astype(np.float32)
        x = self.x[len(self.x) - len(self.index) + used]
        return EngineContext(x, self.index[used], self.cells[dropped], token, size)

    def around(self) -> list[int]:
        """Tokens in the context."""
        return [0 if self.context is None else len(self.context.x)]

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
        landmarks = np.flatnonzero(is_landmark(tokens.cells, self._grid, self.calibration.landmarks))
        if len(landmarks) < _FEWEST_LANDMARKS:  # a sliver of a tile, beside the lattice
            landmarks = np.linspace(0, len(tokens.cells) - 1, _FEWEST_LANDMARKS).round().astype(np.int64)
        (scores,) = self._segments(SCORES)(**tokens.inputs(self._multiple), landmarks=landmarks)
        return [scores]

    def middle_step(self, tokens: EngineTokens) -> EngineTokens:
        """Tokens that enter the deep router."""
        around = (tokens.context or EngineContext.none(tokens.x.shape[1])).inputs(self._multiple)
        x, entry, risk = self._segments("middle")(**tokens.inputs(self._multiple), **around)
        return replace(tokens, x=x[: len(tokens.x)], entry=entry, risk=risk)

    def risk_step(self, tokens: EngineTokens) -> list[Array]:
        """(m,) risks of the live cells, which the middle segment has computed already."""
        assert tokens.risk is not None
        return [tokens.risk]

    def unusual_step(self, tokens: EngineTokens) -> list[Array]:
        """(m,) dissimilarity of the live cells, which the middle segment has computed already."""
        assert tokens.entry is not None
        return [tokens.entry]

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

    def gather(self, keep: Sequence[Array], context: bool = False) -> EngineBatch:
        """The tokens that the cells at `keep[b]` need; with `context`, the others are left behind."""
        return EngineBatch([own.gather([kept], context) for own, kept in zip(self.images, keep, strict=True)])

    def around(self) -> list[int]:
        """Tokens in the context of each image."""
        return [own.around()[0] for own in self.images]

    def indices(self) -> list[Array]:
        """(n,) grid indices of the live patches of each image."""
        return [own.index for own in self.images]


class BatchSteps:
    """The steps of a pass over several images: those of one, in turn; what a session gives is copied before its next.

    Args:
        single: The steps of one image.
    """

    def __init__(self, single: SegmentSteps) -> None:
        self.placement, self.calibration, self.patch = single.placement, single.calibration, single.patch
        self._single = single

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

    def unusual_step(self, tokens: EngineBatch) -> list[Array]:
        """(m,) dissimilarity of the live cells of each image."""
        return [self._single.unusual_step(own)[0] for own in tokens.images]

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
        """Refuses, as the steps of one image do."""
        return self._single.reduce_step(pixels, point, last, stages)


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
