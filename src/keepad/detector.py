"""Detector: images in, Predictions out, whatever runs the network. Nothing here needs torch."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Union

import numpy as np
from PIL import Image

from keepad.arrays import Array
from keepad.errors import ImageError, KeepADError
from keepad.images import find_images, read_image, to_input
from keepad.prediction import Certificate, Prediction
from keepad.prefetch import prefetch
from keepad.presets import Calibration, OperatingPoint
from keepad.routing.pixel import PixelRouting

if TYPE_CHECKING:
    from torch import Tensor

ImageSource = Union[str, Path, Image.Image, np.ndarray, "Tensor"]

_READ_AHEAD = 3  # batches that are read and resized while the network runs


@dataclass
class Stages:
    """Seconds spent in each stage of a pass, in the order of the pass.

    Attributes:
        wait: Called at every mark to let the device finish; only timing needs it, and it would slow a GPU down.
    """

    wait: Callable[[], None] | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    _last: float = field(default_factory=time.perf_counter)

    def mark(self, stage: str) -> None:
        """Book the time since the last mark to `stage`."""
        if self.wait is not None:
            self.wait()
        now = time.perf_counter()
        self._book(stage, now - self._last)
        self._last = now

    def mark_in_parts(self, parts: Sequence[dict[str, float]]) -> None:
        """Book the time since the last mark to the stages of what ran side by side, by their shares in it."""
        now = time.perf_counter()
        total = sum(sum(seconds.values()) for seconds in parts) or 1.0
        for stage, seconds in (item for part in parts for item in part.items()):
            self._book(stage, seconds / total * (now - self._last))
        self._last = now

    def _book(self, stage: str, seconds: float) -> None:
        self.seconds[stage] = self.seconds.get(stage, 0.0) + seconds


@dataclass(frozen=True)
class Finding:
    """What the network says of one image, before it becomes a Prediction.

    Attributes:
        score: Image score.
        patch_map: (rows, columns) recovered responses.
        pixel_map: (H, W) the same at input size, float32.
        survivors_shallow: Grid indices alive after the shallow router, ascending.
        survivors: Grid indices alive after the deep router, ascending.
        evidence: E(I), or None where the deep router did not run.
        thinned: What the pixel router decided, or None where it did not run.
    """

    score: float
    patch_map: Array
    pixel_map: Array
    survivors_shallow: Array
    survivors: Array
    evidence: float | None
    thinned: PixelRouting | None = None


@dataclass(frozen=True)
class Picture:
    """An image at input size, (H, W, 3) uint8, with its own width and height and where it came from."""

    pixels: Array
    size: tuple[int, int]
    path: Path | None


class Detector(ABC):
    """A zero-shot anomaly detector: call it with an image, or give `predict` many.

    Attributes:
        name: What the checkpoint is called.
        backbone_name: What its backbone is called.
        image_size: Height and width of the network's input.
        grid: Rows and columns of the patch grid.
        point: Operating point used where none is given.
        calibration: What was fitted on source data.
        provenance: Where the trained parts come from.
        runs_on: What runs the network, in words.
        packages: Packages whose versions belong into a record of its numbers.
    """

    packages: ClassVar[tuple[str, ...]] = ()

    name: str
    image_size: tuple[int, int]
    point: OperatingPoint
    calibration: Calibration
    provenance: dict[str, Any]

    @property
    @abstractmethod
    def backbone_name(self) -> str: ...

    @property
    @abstractmethod
    def grid(self) -> tuple[int, int]: ...

    @property
    @abstractmethod
    def runs_on(self) -> str: ...

    @abstractmethod
    def find(
        self, pixels: Array, points: Sequence[OperatingPoint], stages: Stages | None = None
    ) -> dict[str, list[Finding]]:
        """What each operating point finds in each image of a batch, (B, H, W, 3) uint8 at input size."""

    @abstractmethod
    def digests(self) -> dict[str, str]:
        """Digests of all that decides its numbers: "checkpoint" and "backbone"."""

    def set_threshold(self, image: float, pixel: float | None = None) -> None:
        """Call an image anomalous from the score `image` on, and a pixel from the map value `pixel` (or the same)."""
        pixel = image if pixel is None else pixel
        for value in (image, pixel):
            if not 0 <= value <= 1:
                raise KeepADError(f"a threshold must lie between 0 and 1, not at {value}.")
        self.calibration = replace(self.calibration, image_threshold=image, pixel_threshold=pixel)

    def forward(self, image: ImageSource) -> Prediction:
        """The Prediction of one image: a path, a PIL image, an array or a tensor."""
        if getattr(image, "ndim", None) == 4:
            raise KeepADError("one image is expected, but a batch was given; use predict() for several.")
        return self.predict_images([self._read(image)])[0]

    def predict(
        self,
        source: ImageSource | Iterable[ImageSource],
        *,
        batch_size: int = 1,
        on_error: Callable[[ImageSource, KeepADError], None] | None = None,
    ) -> Iterator[Prediction]:
        """Predictions one by one, in order: of a folder (with all folders below it), a file, or an iterable of images.

        The images of a list or folder are read a few batches ahead of the network, in another thread; those of a
        generator are not, so that a camera's results are never held back.

        Args:
            source: What to look at.
            batch_size: Images that share one forward pass; the results do not depend on it.
            on_error: Told of every image that cannot be used; without it, the first such image raises.
        """
        if batch_size < 1:
            raise KeepADError(f"the batch size must be at least 1, not {batch_size}.")
        if isinstance(source, str | Path):
            source = find_images([source])
        elif isinstance(source, Image.Image) or getattr(source, "ndim", 4) < 4:
            source = [source]  # type: ignore[list-item]
        batch: list[Picture] = []
        depth = _READ_AHEAD * batch_size if isinstance(source, Sequence) else 0
        with closing(prefetch(self._try_to_read, source, depth)) as inputs:
            for image, read in inputs:
                if isinstance(read, Picture):
                    batch.append(read)
                elif on_error is None:
                    raise read
                else:
                    on_error(image, read)
                if len(batch) == batch_size:
                    yield from self.predict_images(batch)
                    batch = []
        if batch:
            yield from self.predict_images(batch)

    def _try_to_read(self, source: ImageSource) -> tuple[ImageSource, Picture | KeepADError]:
        try:
            return source, self._read(source)
        except KeepADError as error:
            return source, error

    def _read(self, source: ImageSource) -> Picture:
        image = read_image(source)
        path = Path(source) if isinstance(source, str | Path) else None
        return Picture(to_input(image, self.image_size), image.size, path)

    def predict_images(self, pictures: Sequence[Picture]) -> list[Prediction]:
        """Predictions of images that are already at input size, in one forward pass."""
        stages = Stages()
        found = self.find(np.stack([one.pixels for one in pictures]), [self.point], stages)[self.point.name]
        timings = {stage: seconds / len(pictures) for stage, seconds in stages.seconds.items()}
        return [self._prediction(one, finding, timings) for one, finding in zip(pictures, found, strict=True)]

    def _prediction(self, one: Picture, finding: Finding, timings: dict[str, float]) -> Prediction:
        if not np.isfinite(finding.score):
            raise ImageError(
                f"{one.path or 'the image'} gave no finite score; the weights or the checkpoint are damaged."
            )
        return Prediction(
            pred_score=finding.score,
            anomaly_map=finding.pixel_map,
            grid=self.grid,
            survivors_shallow=finding.survivors_shallow,
            survivors=finding.survivors,
            evidence=finding.evidence,
            certificate=None if finding.thinned is None else Certificate.of(finding.thinned),
            point=self.point.name,
            image=one.pixels,
            image_size=one.size,
            path=one.path,
            image_threshold=self.calibration.image_threshold,
            pixel_threshold=self.calibration.pixel_threshold,
            timings=timings,
        )
