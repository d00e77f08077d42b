"""Detector: images in, Predictions out. It holds a network, torch's or an engine's. Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from keepad.arrays import Array
from keepad.console import Progress, Say, no_progress, say_on_stderr
from keepad.errors import KeepADError
from keepad.framing import SQUASHED, Framing, Shape, check_input, framed
from keepad.images import InputImage, read_image, to_input
from keepad.inference import NO_REFERENCES, AnyNetwork, Inference, References
from keepad.prediction import Prediction
from keepad.prefetch import prefetch
from keepad.presets import Calibration, OperatingPoint, operating_point
from keepad.references.profile import Profile, read_profile
from keepad.sources import ImageSource, sources_of
from keepad.steps import Stages
from keepad.tiling import Photographs

_PREFETCHED = 3  # batches that are read and resized while the network runs


class Detector:
    """An anomaly detector: call it with one image, or give `predict` many. Zero-shot until it is given a profile.

    Args:
        network: Runs the passes.
        point: Operating point used where a call names none.
        profile: References and calibration of one product; the detector then only runs at the profile's own operating
            point.
        framing: How photographs become inputs; squashed to the network's input size if nothing is said.

    Example:
        >>> detector = keepad.load()
        >>> prediction = detector("part.jpg", point="prune70")
        >>> prediction.pred_score
        0.31
    """

    def __init__(
        self,
        network: AnyNetwork,
        point: str | OperatingPoint = "prune50",
        profile: Profile | None = None,
        framing: Framing = SQUASHED,
    ) -> None:
        self.network = network
        self._point = operating_point(point)
        self.profile = profile
        self.framing = framing
        if profile is not None and profile.bank is not None and framing.views > 1:
            raise KeepADError(f"references show the product one way up, so {framing.views} views cannot be averaged.")

    @property
    def point(self) -> OperatingPoint:
        """Operating point used where a call names none; set it by name or by an OperatingPoint."""
        return self._point

    @point.setter
    def point(self, point: str | OperatingPoint) -> None:
        self._point = self._chosen(operating_point(point))

    @property
    def name(self) -> str:
        """Name of the checkpoint."""
        return self.network.name

    @property
    def backbone_name(self) -> str:
        """Name of the backbone."""
        return self.network.backbone_name

    @property
    def image_size(self) -> tuple[int, int]:
        """Height and width of the network's input."""
        return self.network.image_size

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of the patch grid."""
        return self.network.grid

    @property
    def calibration(self) -> Calibration:
        """Constants fitted on source data, thresholds among them."""
        return self.network.calibration

    @property
    def provenance(self) -> dict[str, Any]:
        """Origin of the trained parts: data, command, versions."""
        return self.network.provenance

    @property
    def runs_on(self) -> str:
        """Engine and device, for people."""
        return self.network.runs_on

    @property
    def precision(self) -> str:
        """Precision of the network: fp32, or as it was exported."""
        return self.network.precision

    @property
    def packages(self) -> tuple[str, ...]:
        """Packages whose versions belong in a record of its numbers."""
        return self.network.packages

    def digests(self) -> dict[str, str]:
        """Digests of everything that determines its numbers: "checkpoint" and "backbone"."""
        return self.network.digests()

    def set_threshold(self, image: float, pixel: float | None = None) -> None:
        """Label an image anomalous from the score `image` on, and a pixel from the map value `pixel` (or the same).

        It takes the place of a calibration, and promises nothing.
        """
        pixel = image if pixel is None else pixel
        for value in (image, pixel):
            if not 0 <= value <= 1:
                raise KeepADError(f"a threshold must lie between 0 and 1, not at {value}.")
        if self.profile is not None:
            self.profile = self.profile.with_thresholds(image, pixel)
            return
        self.network.calibration = replace(self.calibration, image_threshold=image, pixel_threshold=pixel)

    @property
    def thresholds(self) -> tuple[float | None, float | None]:
        """Score of an image and map value of a pixel from which these are called anomalous; None where unknown."""
        if self.profile is not None:
            return self.profile.thresholds
        return self.calibration.image_threshold, self.calibration.pixel_threshold

    def __call__(self, image: ImageSource, point: str | OperatingPoint | None = None) -> Prediction:
        """The Prediction of one image: a path, a PIL image, an array or a tensor.

        Example:
            >>> detector("part.jpg").pred_score
            0.31
        """
        if getattr(image, "ndim", None) == 4:
            raise KeepADError("one image is expected, but a batch was given; use predict() for several.")
        return self._predict_batch([self.prepare(image)], self._chosen(point))[0]

    def prepare(self, image: ImageSource) -> InputImage:
        """The image read and made an input; `predict` takes it as any other source and does neither again.

        For programs that read images in threads of their own.

        Raises:
            KeepADError: It cannot be used.

        Example:
            ```python
            inputs = pool.map(detector.prepare, paths)
            scores = [prediction.pred_score for prediction in detector.predict(inputs, batch_size=8)]
            ```
        """
        if isinstance(image, InputImage):
            check_input(image, self.framing, self._shape)
            return image
        path = Path(image) if isinstance(image, str | Path) else None
        upright = read_image(image)
        if not self.framing.plain:
            return framed(upright, self.framing, self._shape, path)
        size = upright.height, upright.width
        return InputImage(to_input(upright, self.image_size), size, self.image_size, path)

    def predict(
        self,
        source: ImageSource | Iterable[ImageSource],
        *,
        point: str | OperatingPoint | None = None,
        batch_size: int = 1,
        on_error: Callable[[ImageSource, KeepADError], None] | None = None,
    ) -> Iterator[Prediction]:
        """Predictions one by one, in order: of a folder (with all folders below it), a file, or an iterable of images.

        Images of a list or folder are prefetched in a thread; those of a generator are not, so that the results of a
        camera are never held back.

        Args:
            source: Images to predict.
            point: Operating point; the detector's own if None.
            batch_size: Images per forward pass; the results do not depend on it.
            on_error: Called for every image that cannot be used; without it, the first such image raises.

        Example:
            >>> for prediction in detector.predict("photos/", batch_size=8):
            ...     print(prediction.path, prediction.pred_score)
        """
        if batch_size < 1:
            raise KeepADError(f"the batch size must be at least 1, not {batch_size}.")
        return self._predict_all(sources_of(source), self._chosen(point), batch_size, on_error)

    def _predict_all(
        self,
        sources: Iterable[ImageSource],
        point: OperatingPoint,
        batch_size: int,
        on_error: Callable[[ImageSource, KeepADError], None] | None,
    ) -> Iterator[Prediction]:
        batch: list[InputImage] = []
        depth = _PREFETCHED * batch_size if isinstance(sources, Sequence) else 0
        with closing(prefetch(self._try_to_read, sources, depth)) as inputs:
            for source, image in inputs:
                if isinstance(image, InputImage):
                    batch.append(image)
                elif on_error is None:
                    raise image
                else:
                    on_error(source, image)
                if len(batch) == batch_size:
                    yield from self._predict_batch(batch, point)
                    batch = []
        if batch:
            yield from self._predict_batch(batch, point)

    def infer(
        self,
        pixels: Array,
        points: Sequence[OperatingPoint],
        stages: Stages | None = None,
        references: References | None = None,
        record: bool = False,
    ) -> dict[str, list[Inference]]:
        """Raw results of a batch, (B, H, W, 3) uint8 at input size, at several points that share their first blocks.

        Args:
            pixels: The images.
            points: Operating points.
            stages: Timer.
            references: Banks by name of operating point; that of the profile if None.
            record: Also give the tokens that each image would leave behind as a reference.
        """
        return self.network.infer(
            pixels, points, stages, self._references(points) if references is None else references, record
        )

    def teach(
        self,
        good: ImageSource | Iterable[ImageSource],
        *,
        point: str | OperatingPoint | None = None,
        rotate: str = "auto",
        size: int | None = None,
        on_error: Callable[[ImageSource, KeepADError], None] | None = None,
        say: Say = say_on_stderr,
        progress: Progress = no_progress,
    ) -> Profile:
        """The profile of a product, from good images of it: a folder, a file, or an iterable of images.

        Args:
            good: Images without defects; one to sixteen are plenty.
            point: Operating point that the profile is for; the detector's own if None.
            rotate: Also take rotated copies of the images: "on", "off", or "auto" where that helps.
            size: Bound on the tokens of the profile.
            on_error: Called for every image that cannot be used; without it, the first such image raises.
            say: Called with a line for everything worth knowing.
            progress: Progress bar.

        Example:
            >>> profile = detector.teach("good/")
            >>> profile.save("bolts.keepad")
            >>> detector.with_profile(profile)("part.jpg").pred_score
            0.31
        """
        from keepad.references.bank import BANK_SIZE
        from keepad.references.teaching import teach

        zero_shot = Detector(self.network, self._point if point is None else point, framing=self.framing)
        size = BANK_SIZE if size is None else size
        sources = sources_of(good)
        return teach(zero_shot, sources, rotate=rotate, size=size, say=say, on_error=on_error, progress=progress)

    def calibrate(
        self,
        good: ImageSource | Iterable[ImageSource],
        *,
        false_alarms: float = 0.01,
        confidence: float | None = None,
        review: float | None = None,
        on_error: Callable[[ImageSource, KeepADError], None] | None = None,
        say: Say = say_on_stderr,
        progress: Progress = no_progress,
    ) -> Profile:
        """The profile of this detector with a threshold that keeps a promise, fitted on good images.

        With a profile, its references stay; without one, the new profile holds the calibration alone.

        Args:
            good: Images without defects, none of them a reference: a folder, a file, or an iterable of images.
            false_alarms: Promised share of good images that are called "defect"; 1 % needs 99 images.
            confidence: Share of all calibration sets for which this is to hold; on their average if None.
            review: Promised share of good images that are called "review" or "defect"; five times `false_alarms` if
                None.
            on_error: Called for every image that cannot be used; without it, the first such image raises.
            say: Called with a line for everything worth knowing.
            progress: Progress bar.

        Raises:
            KeepADError: Too few images for the promise, references among them, or one that cannot be used.

        Example:
            >>> profile = detector.calibrate("good/", false_alarms=0.01)
            >>> detector.with_profile(profile)("part.jpg").verdict
            "ok"
        """
        from keepad.references.calibrating import Promise, calibrate

        promise = Promise(false_alarms, confidence, review)
        return calibrate(self, sources_of(good), promise, say=say, on_error=on_error, progress=progress)

    def with_profile(self, profile: Profile | str | Path) -> Detector:
        """The detector with what a profile holds about one product; this one stays as it is.

        Args:
            profile: A profile, or its file.

        Raises:
            KeepADError: The profile is damaged, or belongs to another checkpoint, backbone, precision, input size or
                operating point.
        """
        from keepad.references.parts import check_framing
        from keepad.references.teaching import owner_of

        profile = profile if isinstance(profile, Profile) else read_profile(profile)
        profile.check(owner_of(self, self._point))
        check_framing(profile.settings, self.framing)
        return Detector(self.network, self._point, profile, self.framing)

    def _chosen(self, point: str | OperatingPoint | None) -> OperatingPoint:
        chosen = self._point if point is None else operating_point(point)
        if self.profile is not None and chosen != self._point:
            raise KeepADError(
                f"the profile was made at {self._point.name}, so it cannot be used at {chosen.name}; make one there."
            )
        return chosen

    def _try_to_read(self, source: ImageSource) -> tuple[ImageSource, InputImage | KeepADError]:
        try:
            return source, self.prepare(source)
        except KeepADError as error:
            return source, error

    @property
    def _shape(self) -> Shape:
        return Shape(self.image_size, self.network.patch, self.network.fixed_size)

    def infer_images(
        self,
        images: Sequence[InputImage],
        points: Sequence[OperatingPoint],
        stages: Stages | None = None,
        references: References | None = None,
    ) -> dict[str, list[Inference]]:
        """Raw results of images as `prepare` gives them, without padding; images of one size share a batch.

        Args:
            images: The images.
            points: Operating points.
            stages: Timer.
            references: Banks by name of operating point; that of the profile if None.
        """
        stages = stages or Stages()
        if self.framing.plain:
            return self.infer(np.stack([image.pixels for image in images]), points, stages, references)
        known = self._references(points) if references is None else references
        photographs = Photographs(self.network.infer, self.framing, self._shape, self.calibration)
        return photographs.infer(images, points, stages, known)

    def _references(self, points: Sequence[OperatingPoint]) -> References:
        bank = None if self.profile is None else self.profile.bank
        return NO_REFERENCES if bank is None else {point.name: bank for point in points}

    def _predict_batch(self, images: Sequence[InputImage], point: OperatingPoint) -> list[Prediction]:
        stages = Stages()
        results = self.infer_images(images, [point], stages)[point.name]
        timings = {stage: seconds / len(images) for stage, seconds in stages.seconds.items()}
        used = self.thresholds, self.profile
        rows = zip(images, results, strict=True)
        return [Prediction.of(image, result, point.name, timings, *used) for image, result in rows]
