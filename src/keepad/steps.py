"""What a pass is made of: the steps that a network runs, what they give, and how long they take."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import numpy as np

from keepad.arrays import Array
from keepad.presets import Calibration, OperatingPoint, Placement
from keepad.routing import PixelRouting


@dataclass(frozen=True)
class Scope:
    """Which cells of a batch count, and whether its images share their budgets.

    Attributes:
        inside: (N,) bool per image, the cells that count, or None where all do; None if all do in every image. The
            others are never computed.
        corners: Row and column of each image's first cell on the grid of the photograph whose tiles these are, so that
            the tiles share one budget; None where every image has its own.
    """

    inside: Sequence[Array | None] | None = None
    corners: Sequence[tuple[int, int]] | None = None

    def of(self, image: int) -> Scope:
        """The scope of one image alone."""
        return Scope(None if self.inside is None else [self.inside[image]])

    def cells(self, image: int, count: int) -> Array:
        """Grid indices of the cells of an image that count, of `count` in all."""
        inside = None if self.inside is None else self.inside[image]
        return np.arange(count) if inside is None else np.flatnonzero(inside)


WHOLE = Scope()


@dataclass
class Stages:
    """Seconds spent in each stage of a pass, in the order of the pass.

    Attributes:
        wait: Called at every mark to let the device finish; only timing needs it, and it would slow a GPU down.
    """

    NAMES: ClassVar[tuple[str, ...]] = ("embed", "early", "routing", "middle", "late", "recovery", "scoring")

    wait: Callable[[], None] | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    _last: float = field(default_factory=time.perf_counter)

    def mark(self, stage: str) -> None:
        """Add the time since the last mark to `stage`."""
        if self.wait is not None:
            self.wait()
        now = time.perf_counter()
        self._add(stage, now - self._last)
        self._last = now

    def mark_concurrent(self, parts: Sequence[dict[str, float]]) -> None:
        """Share the time since the last mark among stages that ran concurrently, in proportion to their seconds."""
        now = time.perf_counter()
        total = sum(sum(seconds.values()) for seconds in parts) or 1.0
        for stage, seconds in (item for part in parts for item in part.items()):
            self._add(stage, seconds / total * (now - self._last))
        self._last = now

    def _add(self, stage: str, seconds: float) -> None:
        self.seconds[stage] = self.seconds.get(stage, 0.0) + seconds


class LiveTokens(Protocol):
    """Live tokens of a batch, in whatever form the network holds them."""

    def gather(self, keep: Sequence[Array], context: bool = False) -> Any:
        """The tokens that the cells at `keep[b]` need, positions among the live cells of image b.

        With `context`, the others are left behind for these to attend to.
        """

    def around(self) -> Sequence[int]:
        """Tokens in the context of each image."""

    def indices(self) -> Sequence[Array]:
        """(n,) grid indices of the live patches of each image, ascending."""


@dataclass(frozen=True)
class HeadOutput:
    """What the late blocks give, per image.

    Attributes:
        responses: (layers, m) responses of the live cells.
        cls: (layers,) responses of the CLS token.
        features: (match layers, m, C) normed features of the live cells as unit vectors; empty unless asked for.
    """

    responses: list[Array]
    cls: list[Array]
    features: list[Array] = field(default_factory=list)


@dataclass(frozen=True)
class ReducedImage:
    """What a pass with a reducer gives for one image.

    Attributes:
        responses: (layers, m) responses of the cells that have a token.
        cls: (layers,) responses of the CLS token.
        live: (m,) grid indices of these cells.
        entering: Grid indices that the tokens at the place of the deep router grew from.
        survivors: Grid indices that the tokens at the end grew from.
        alone: Those of the latter whose token was averaged with no other; None where the reducer merges nothing.
        work: For each block, tokens with keys, with queries and in the MLP, and FLOPs of the reducer.
    """

    responses: Array
    cls: Array
    live: Array
    entering: Array
    survivors: Array
    alone: Array | None
    work: tuple[tuple[int, int, int, int], ...]


class Steps(Protocol):
    """The steps of a pass that need a network; what they return is per image, as NumPy arrays."""

    placement: Placement
    calibration: Calibration

    @property
    def patch(self) -> tuple[int, int]: ...

    def early_step(self, pixels: Array, routings: Sequence[PixelRouting] | None, stages: Stages) -> Any:
        """Tokens that enter the shallow router, from (B, H, W, 3) uint8."""

    def shallow_step(self, tokens: Any) -> list[Array]:
        """(m,) scores of the live cells."""

    def middle_step(self, tokens: Any) -> Any:
        """Tokens that enter the deep router."""

    def risk_step(self, tokens: Any) -> list[Array]:
        """(m,) risks of the live cells that enter the deep router."""

    def unusual_step(self, tokens: Any) -> list[Array]:
        """(m,) dissimilarity of the live cells to the rest of their image, as they enter the deep router."""

    def entry_step(self, tokens: Any) -> list[Array]:
        """(m, C) tokens of the live cells, as they enter a router."""

    def late_step(self, tokens: Any, last: int, stages: Stages, features: bool = False) -> HeadOutput:
        """Responses of the head layers up to `last`, and features of the match layers where these are asked for."""

    def reduce_step(self, pixels: Array, point: OperatingPoint, last: int, stages: Stages) -> list[ReducedImage]:
        """The whole pass up to block `last` with the reducer of a point, from (B, H, W, 3) uint8."""
