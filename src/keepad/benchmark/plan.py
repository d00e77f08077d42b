"""What is timed: engines, operating points and settings of a run, and the images it runs on."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from PIL import Image

from keepad.arrays import Array
from keepad.backbone import DEFAULT_BACKBONE, spec_of
from keepad.benchmark.schedule import schedule
from keepad.engines.folder import is_exported
from keepad.errors import KeepADError
from keepad.images import find_pictures, read_image, spread, to_input
from keepad.loading import parse_engine
from keepad.presets import ENGINES, OperatingPoint, operating_point, with_pixel_router

DTYPES = ("float32", "bfloat16")


@dataclass(frozen=True)
class BenchmarkPlan:
    """Settings of a run; a KeepADError at once where one of them does not exist.

    Attributes:
        backbones: Names of backbones.
        model: A checkpoint as `keepad.load` takes it, timed instead of those of the backbones.
        points: Operating points or their names; dense is always timed, because ratios need it.
        batches: Images per pass.
        threads: Numbers of CPU threads, or None for torch's own choice.
        dtypes: "float32", "bfloat16": dtype of torch's weights and features.
        engines: "torch", "openvino", "onnx", with another precision than fp32 after a colon, as in "openvino:int8".
            All of them are interleaved, and dense in torch is always timed.
        exported: Folders of `keepad export`, interleaved with the engines; all from the checkpoint that is timed.
        pixel_router: "on" or "off" for the pruned points, "both" to time every point with it and without, or None to
            leave the points as they are.
        warmup: Passes of each variant before anything is timed.
        repeats: Timed repeats.
        images: Different images per repeat, at most; an incomplete last batch is filled from the first images.
        device: Device of torch; a GPU if there is one, else the CPU.
        image_size: Height and width of the input; that of each checkpoint if None.
        memory: Measure the peak memory of each variant, in one more pass.
    """

    backbones: tuple[str, ...] = (DEFAULT_BACKBONE,)
    model: str | None = None
    points: tuple[str | OperatingPoint, ...] = ("dense", "prune30", "prune50", "prune70")
    batches: tuple[int, ...] = (1,)
    threads: tuple[int, ...] | None = None
    dtypes: tuple[str, ...] = ("float32",)
    engines: tuple[str, ...] = ("torch",)
    exported: tuple[Path, ...] = ()
    pixel_router: str | None = None
    warmup: int = 20
    repeats: int = 5
    images: int = 8
    device: str | None = None
    image_size: tuple[int, int] | None = None
    memory: bool = True

    def __post_init__(self) -> None:
        for engine in self.engines:
            _require_engine(engine)
        for folder in self.exported:
            if not is_exported(folder):
                raise KeepADError(f"{folder} is not an exported detector; name a folder that keepad export wrote.")
        for dtype in self.dtypes:
            if dtype not in DTYPES:
                raise KeepADError(f"{dtype!r} cannot be timed; choose one of {', '.join(DTYPES)}.")
        for name in self.points:
            with_pixel_router(name, "off" if self.pixel_router == "both" else self.pixel_router)
        for name in self.backbones:
            spec_of(name)
        if not (self.backbones and self.batches and self.dtypes and self.engines and self.threads != ()):
            raise KeepADError("backbones, batch sizes, threads, dtypes and engines must each name at least one.")
        reducing = [point.name for point in self.operating_points() if point.reducer is not None]
        if reducing and (set(self.engines) != {"torch"} or self.exported):
            raise KeepADError(
                f"{reducing[0]} changes what happens inside blocks, so it runs in torch only; leave engines out."
            )
        least = min(*self.batches, *(self.threads or (1,)), self.repeats, self.images)
        if least < 1 or self.warmup < 0:
            raise KeepADError("batch sizes, threads, repeats and images must be at least 1, and warm-ups at least 0.")
        if self.exported and self.model is None and len(self.backbones) > 1:
            raise KeepADError("exported folders belong to one checkpoint; time one backbone with them, not several.")

    def operating_points(self) -> list[OperatingPoint]:
        """Dense first, then the others in their order, without duplicates."""
        points = list(dict.fromkeys(map(operating_point, ("dense", *self.points))))
        if self.pixel_router == "both":
            routed = [replace(with_pixel_router(point, "on"), name=f"{point.name} + pixels") for point in points]
            return [*(with_pixel_router(point, "off") for point in points), *routed]
        return [with_pixel_router(point, "off" if point.name == "dense" else self.pixel_router) for point in points]

    def variants(self) -> list[tuple[str | Path, OperatingPoint]]:
        """Engines (names) and exports (paths) at every operating point; dense in torch first, for the ratios."""
        points = self.operating_points()
        networks: tuple[str | Path, ...] = (*self.engines, *self.exported)
        return list(dict.fromkeys([("torch", points[0]), *((name, point) for name in networks for point in points)]))

    def passes(self, images: int) -> int:
        """Passes of the whole plan with that many different images per repeat: warm-up, timed ones, one for memory."""
        models = 1 if self.model else len(self.backbones)
        settings = models * len(self.dtypes) * len(self.threads or (0,)) * len(self.variants())
        turns = [schedule(1, self.repeats, -(-images // batch)) for batch in self.batches]
        return settings * sum(self.warmup + sum(1 + len(turn.batches) for turn in part) + 1 for part in turns)


def _require_engine(text: str) -> None:
    if text.partition(":")[0] not in ENGINES:
        raise KeepADError(
            f"there is no engine called {text!r} to time; choose one of {', '.join(ENGINES)}, and name folders of "
            "keepad export with --exported."
        )
    engine, precision = parse_engine(text)
    if engine != "torch":
        from keepad.engines.export import check_request  # slow to import

        check_request(engine, precision, images=["the timed images"])


@dataclass(frozen=True)
class TimedImages:
    """The images that are timed: adaptive budgets depend on content, so they are never noise.

    Attributes:
        source: Name of their folder, or "demo".
        names: Path of each, relative to the folder.
        images: RGB images of any size.
    """

    source: str
    names: tuple[str, ...]
    images: tuple[Image.Image, ...]

    def batches(self, size: tuple[int, int], batch: int) -> list[Array]:
        """(batch, H, W, 3) uint8 inputs of `size` (H, W); the last one is filled from the first images."""
        pixels = [to_input(image, size) for image in self.images]
        starts = range(0, len(pixels), batch)
        return [np.stack([pixels[(start + i) % len(pixels)] for i in range(batch)]) for start in starts]


def timed_images(folder: str | Path | None = None, count: int = 8) -> TimedImages:
    """Up to `count` images, spread evenly over those below `folder`, or over the package's demo images."""
    if folder is None:
        from keepad.demo import demo_images  # drawing them takes seconds

        demos = spread(demo_images(), count)
        return TimedImages("demo", tuple(demo.name for demo in demos), tuple(demo.image for demo in demos))
    root = Path(folder)
    if not root.is_dir():
        raise KeepADError(f"'{folder}' is no folder; name one that holds images.")
    paths = spread(find_pictures(root), count)
    names = tuple(path.relative_to(root).as_posix() for path in paths)
    return TimedImages(Path(os.path.abspath(root)).name, names, tuple(read_image(path) for path in paths))
