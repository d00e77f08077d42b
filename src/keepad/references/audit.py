"""Audit: a folder of unlabelled images is its own reference. For archives, not for a line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from keepad.arrays import Array
from keepad.console import Progress, Say, no_progress
from keepad.detector import Detector
from keepad.errors import KeepADError
from keepad.images import InputImage, read_image, spread, to_input
from keepad.inference import Inference, References
from keepad.presets import OperatingPoint
from keepad.references.bank import Bank, ImageTokens, Match, matched, nearest_by_group, normal_level, spread_rows
from keepad.references.parts import Part
from keepad.references.teaching import record
from keepad.steps import Stages

FEWEST_IMAGES = 8
SAMPLE = 24  # images that every other one is compared with: bounds the cost of an archive
_ROUTER_TOKENS = 1024  # of the sample, at each router
_CLOSEST = 0.3  # share of the sample that a token must resemble; defects are rarer than that


@dataclass(frozen=True)
class Crowd(Bank):
    """Tokens of unlabelled images, some maybe defective: a token is normal if it resembles those of several images."""

    def match(self, features: Array, deep: Array, cells: Array) -> Match:
        """The match of survivors: distances to the closest third of the images, not to the closest token of all."""
        pairs = [
            nearest_by_group(own, rows, self.image) for own, rows in zip(features, self.layers, strict=True)
        ]  # per layer: (k, images) distances, and positions of the nearest tokens of all
        count = max(1, round(_CLOSEST * pairs[0][0].shape[1]))
        distances = [np.sort(distance, axis=1)[:, :count].mean(1) for distance, _ in pairs]
        return Match(matched(distances, deep), pairs[-1][1], cells)


class Auditor(Detector):
    """A detector that judges every image by a fixed sample of the same folder, itself left out.

    Args:
        detector: Zero-shot detector.
        paths: The images of the folder.
        say: Called with a line for every image of the sample that cannot be used.
        progress: Progress bar.

    Raises:
        KeepADError: There are too few images.
    """

    def __init__(self, detector: Detector, paths: Sequence[Path], say: Say, progress: Progress = no_progress) -> None:
        super().__init__(detector.network, detector.point)
        if len(paths) < FEWEST_IMAGES:
            raise KeepADError(
                f"an audit compares images with each other and needs at least {FEWEST_IMAGES}, not {len(paths)}; "
                "use keepad predict, or keepad teach with good images."
            )
        self._sample: dict[Path, ImageTokens] = {}
        with progress("sample", min(SAMPLE, len(paths))) as advance:
            for path in spread(paths, min(SAMPLE, len(paths))):
                try:
                    pixels = to_input(read_image(path), self.image_size)
                    self._sample[path] = record(detector, Part("", pixels, None), self.point)
                except KeepADError as error:
                    say(f"left out of the sample: {error}")
                advance()
        if len(self._sample) < FEWEST_IMAGES:
            raise KeepADError(f"only {len(self._sample)} images of the sample can be read; an audit needs 8.")
        self._level = (0.0, 1.0)
        everyone = self._crowd()
        tokens = list(self._sample.values())
        share = _ROUTER_TOKENS // len(tokens)
        of_deep = np.repeat(range(len(tokens)), [min(share, len(own.deep)) for own in tokens])
        self._level = normal_level(tokens, range(len(tokens)), self.grid[0] * self.grid[1], everyone.deep, of_deep)
        self._everyone = self._crowd()

    @property
    def thresholds(self) -> tuple[float | None, float | None]:
        """Unknown: a verdict that depends on the neighbours is a rank, not a label."""
        return None, None

    def _crowd(self, left_out: Path | None = None) -> Crowd:
        tokens = [own for path, own in self._sample.items() if path != left_out]
        return Crowd(
            np.concatenate([spread_rows(own.shallow, _ROUTER_TOKENS // len(tokens)) for own in tokens]),
            np.concatenate([spread_rows(own.deep, _ROUTER_TOKENS // len(tokens)) for own in tokens]),
            np.concatenate([own.layers for own in tokens], axis=1),
            np.repeat(np.arange(len(tokens)), [len(own.cells) for own in tokens]),
            np.concatenate([own.cells for own in tokens]),
            *self._level,
        )

    def infer_images(
        self,
        images: Sequence[InputImage],
        points: Sequence[OperatingPoint],
        stages: Stages | None = None,
        references: References | None = None,
    ) -> dict[str, list[Inference]]:
        """Raw results of images, each compared with the sample without itself; other references play no part."""
        results: dict[str, list[Inference]] = {point.name: [] for point in points}
        for image in images:
            crowd = self._crowd(image.path) if image.path in self._sample else self._everyone
            crowds = {point.name: crowd for point in points}
            for name, (result,) in self.infer(image.pixels[None], points, stages, crowds).items():
                results[name].append(result)
        return results
