"""EngineDetector: a pruned pass with its segments in an engine and its decisions in NumPy. Runs without torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from keepad.budgets import on_lattice, shallow_target
from keepad.detector import Detector, Finding, ImageSource, Stages
from keepad.engines.decisions import Enlarger, Known, image_score, keep_deep, keep_shallow, recover, standardised
from keepad.engines.folder import SUFFIXES, EngineInfo, read_description
from keepad.engines.sessions import PACKAGES, Session, open_session
from keepad.errors import KeepADError
from keepad.pixels import Thinned, thin
from keepad.prediction import Prediction
from keepad.presets import OperatingPoint, operating_point


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


@dataclass(frozen=True)
class _Live:
    """Live tokens of one image: (prefix + n, C) features, (n,) grid indices, (n,) cells that each stands for."""

    x: np.ndarray
    index: np.ndarray
    mass: np.ndarray
    prefix: int

    def gather(self, keep: np.ndarray) -> _Live:
        """The patches at these positions, and the prefix; where some go, the others count alike (see `Tokens`)."""
        if len(keep) == len(self.index):
            return self
        rows = np.concatenate([np.arange(self.prefix), keep + self.prefix])
        return _Live(self.x[rows], self.index[keep], np.ones_like(self.mass[keep]), self.prefix)


class EngineDetector(Detector):
    """A detector that OpenVINO or ONNX Runtime runs, image by image.

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
        self._folder, self._threads = folder, threads
        self._sessions: dict[str, Session] = {}
        self._enlargers: dict[float, Enlarger] = {}
        self._whole = np.arange(self.grid[0] * self.grid[1])
        self._session("prefix")  # a missing engine is told of now

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

    def find(
        self, pixels: np.ndarray, points: Sequence[OperatingPoint], stages: Stages | None = None
    ) -> dict[str, list[Finding]]:
        """What each operating point finds in each image of a batch, (B, H, W, 3) uint8 at input size."""
        stages = stages or Stages()
        found: dict[str, list[Finding]] = {point.name: [] for point in points}
        for image in pixels:
            for budget in dict.fromkeys(point.pixels for point in points):
                thinned = None if budget is None else thin(image, self.info.patch, budget)
                stages.mark("routing")
                live, scores = self._prefix(image, thinned)
                stages.mark("before")
                for point in (point for point in points if point.pixels == budget):
                    found[point.name].append(self._finish(live, scores, point, thinned, stages))
        return found

    def _prefix(self, image: np.ndarray, thinned: Thinned | None) -> tuple[_Live, np.ndarray]:
        patches, index = patches_of(image, self.info.patch), self._whole
        if thinned is None or thinned.whole:
            landmarks, mass = np.flatnonzero(on_lattice(index, self.grid)), np.ones(len(index), dtype=np.float32)
        else:
            index, landmarks, mass = thinned.index, thinned.landmarks(self.grid), thinned.mass
            patches = patches[index]
        x, scores = self._session("prefix")(patches, index, landmarks, mass)
        return _Live(x, index, mass, self.info.prefix), scores

    def _finish(
        self, live: _Live, scores: np.ndarray, point: OperatingPoint, thinned: Thinned | None, stages: Stages
    ) -> Finding:
        known_scores = risks = evidence = None
        owner = None if thinned is None else thinned.owner
        if point.shallow is not None:
            known_scores = standardised(scores, live.mass)
            if owner is not None:
                known_scores = known_scores[np.searchsorted(live.index, owner)]
            live = live.gather(keep_shallow(scores, live.index, self.grid, point.shallow))
        entered = live.index
        stages.mark("routing")
        x, entry, risk = self._session("middle")(live.x, live.index, live.mass)
        live = replace(live, x=x)
        stages.mark("between")
        if point.deep is not None:
            planned = 0 if point.shallow is None else shallow_target(point.shallow.rho, self.grid)
            keep, evidence = keep_deep(risk, live.index, self.grid, point.deep, planned)
            risks, live, entry = standardised(risk), live.gather(keep), entry[keep]
        stages.mark("routing")

        place = self.info.placement
        last = place.exit if point.early_exit else place.head_layers[-1]
        read, cls = self._session(tail_name(place.exit, last))(live.x, live.index, live.mass, entry)
        stages.mark("after")
        known = Known(known_scores, entered, risks, owner)
        patch_map = recover(read.mean(0), live.index, self.grid, point, known, self.calibration.grades)
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

    def _session(self, name: str) -> Session:
        if name not in self._sessions:
            path = self._folder / f"{name}{SUFFIXES[self.info.engine]}"
            precision = "fp32" if name in self.info.floating else self.info.precision
            self._sessions[name] = open_session(self.info.engine, path, precision=precision, threads=self._threads)
        return self._sessions[name]

    def _enlarger(self, point: OperatingPoint) -> Enlarger:
        smoothing = self.calibration.smoothing if point.smoothing is None else point.smoothing
        if smoothing not in self._enlargers:
            self._enlargers[smoothing] = Enlarger(self.grid, self.image_size, smoothing)
        return self._enlargers[smoothing]


def tail_name(exit_layer: int, last: int) -> str:
    """Segment that runs up to block `last`."""
    return "tail" if last == exit_layer else "tail-whole"


def patches_of(image: np.ndarray, patch: tuple[int, int]) -> np.ndarray:
    """(N, 3 * height * width) pixels of each patch, channel by channel, from (H, W, 3)."""
    height, width, channels = image.shape
    if channels != 3 or height % patch[0] or width % patch[1]:
        raise KeepADError(f"the input must be (H, W, 3) in whole patches of {patch[0]}x{patch[1]}, not {image.shape}.")
    cut = image.reshape(height // patch[0], patch[0], width // patch[1], patch[1], channels)
    return np.ascontiguousarray(cut.transpose(0, 2, 4, 1, 3)).reshape(-1, channels * patch[0] * patch[1])
