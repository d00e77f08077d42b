"""Timing against dense in one run: forward passes of all operating points take turns, so that noise hits all of them.

A pass starts from pixels on the device and ends with maps and scores; reading and resizing images is outside. For each
repeat every batch of images goes through every operating point, in an order that rotates, and the repeat's time is the
mean over its images. Medians over the repeats are compared. Whoever's turn it is passes one batch untimed and then a
few that count: it finds caches and threads as it leaves them itself, as on a line where it runs alone.
"""

from __future__ import annotations

import copy
import ctypes
import gc
import json
import os
import platform
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from rich.table import Table

from keepad.arrays import Array
from keepad.backbone import DEFAULT_BACKBONE, spec_of
from keepad.backbone.weights import Say, say_on_stderr
from keepad.benchmark.flops import count_flops
from keepad.checkpoint import bundled_checkpoints, read_info
from keepad.console import command_line
from keepad.detector import Finding, Stages
from keepad.engines import EngineDetector, is_exported, load_engine
from keepad.engines.opening import exported
from keepad.errors import KeepADError
from keepad.files import replacing
from keepad.images import find_pictures, read_image, spread, to_input
from keepad.loading import choose_device, load, untrained
from keepad.network import KeepAD, Outcome
from keepad.presets import OperatingPoint, PixelBudget, with_pixel_router

ENGINES = ("torch", "openvino", "onnx")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # numbers of glibc's mallopt
TURN = 4  # batches that one of those that take turns passes in a row
STAGES = ("embed", "before", "routing", "between", "after", "recovery", "scoring")


@dataclass(frozen=True)
class Plan:
    """What is timed, and how; refused at once where something in it does not exist.

    Attributes:
        backbones: Names of backbones.
        model: A checkpoint as `keepad.load` takes it, to be timed instead of those of the backbones.
        points: Names of operating points; dense is always timed, because ratios need it.
        batches: Images that share one pass.
        threads: Numbers of CPU threads, or None for torch's own choice.
        dtypes: "float32", "bfloat16".
        pixel_router: "on" or "off" for the pruned points, "both" to time every point with it and without, or None to
            leave the points as they are.
        engines: What runs the network: "torch", "openvino", "onnx", with another precision than fp32 after a
            colon, as in "openvino:int8", or the path of a folder that `keepad export` wrote of the same checkpoint.
            All of them take turns, and dense in torch is always timed.
        warmup: Passes of each operating point before anything is timed.
        repeats: Timed repeats.
        images: Different images in each repeat, at most; a batch that they do not fill is filled from their beginning.
        device: Where to run; a GPU if there is one, else the CPU.
    """

    backbones: tuple[str, ...] = (DEFAULT_BACKBONE,)
    model: str | None = None
    points: tuple[str, ...] = ("dense", "prune30", "prune50", "prune70")
    batches: tuple[int, ...] = (1,)
    threads: tuple[int, ...] | None = None
    dtypes: tuple[str, ...] = ("float32",)
    engines: tuple[str, ...] = ("torch",)
    pixel_router: str | None = None
    warmup: int = 20
    repeats: int = 5
    images: int = 8
    device: str | None = None

    def __post_init__(self) -> None:
        for engine in self.engines:
            if engine.partition(":")[0] not in ENGINES and not is_exported(engine):
                raise KeepADError(
                    f"there is no engine called {engine!r}; choose one of {', '.join(ENGINES)}, or a folder of "
                    "keepad export."
                )
        for dtype in self.dtypes:
            if dtype not in DTYPES:
                raise KeepADError(f"{dtype!r} cannot be timed; choose one of {', '.join(DTYPES)}.")
        for name in self.points:
            with_pixel_router(name, "off" if self.pixel_router == "both" else self.pixel_router)
        for name in self.backbones:
            spec_of(name)
        if not (self.backbones and self.batches and self.dtypes and self.engines and self.threads != ()):
            raise KeepADError("backbones, batch sizes, threads, dtypes and engines must each name at least one.")
        least = min(*self.batches, *(self.threads or (1,)), self.repeats, self.images)
        if least < 1 or self.warmup < 0:
            raise KeepADError("batch sizes, threads, repeats and images must be at least 1, and warm-ups at least 0.")

    def operating_points(self) -> list[OperatingPoint]:
        """Dense first, then the others as they were asked for, each one once."""
        named = dict.fromkeys(("dense", *self.points))
        if self.pixel_router == "both":
            thinned = [replace(with_pixel_router(name, "on"), name=f"{name} + pixels") for name in named]
            return [*(with_pixel_router(name, "off") for name in named), *thinned]
        return [with_pixel_router(name, "off" if name == "dense" else self.pixel_router) for name in named]

    def contestants(self) -> list[tuple[str, OperatingPoint]]:
        """Engines and operating points that take turns; dense in torch first, because ratios need it."""
        points = self.operating_points()
        every = [("torch", points[0]), *((engine, point) for engine in self.engines for point in points)]
        return list(dict.fromkeys(every))

    def passes(self, images: int) -> int:
        """Forward passes of the whole plan with that many different images in a repeat."""
        models = 1 if self.model else len(self.backbones)
        variants = models * len(self.dtypes) * len(self.threads or (0,)) * len(self.contestants())
        batches = [-(-images // batch) for batch in self.batches]
        return variants * sum(self.warmup + self.repeats * (count + -(-count // TURN)) + 1 for count in batches)


@dataclass(frozen=True)
class Pictures:
    """The images that are timed: adaptive budgets depend on content, so they are never noise.

    Attributes:
        source: Name of their folder, or "demo".
        names: One for each, relative to the folder.
        images: RGB images of any size.
    """

    source: str
    names: tuple[str, ...]
    images: tuple[Image.Image, ...]


@dataclass(frozen=True)
class Record:
    """What was measured of one operating point in one setting; times are per image.

    Attributes:
        backbone: Name of the backbone.
        weights: "pretrained", or "random" where no checkpoint comes with the package.
        engine: What ran the network, with its precision unless that is fp32 or torch's own.
        dtype: Precision of torch's weights and features.
        batch: Images that shared one pass.
        threads: CPU threads.
        point: Operating point.
        median_ms: Median over the repeats.
        iqr_ms: Range of the middle half of the repeats.
        ratio_to_dense: Median of dense in torch over this median; above 1 is faster than that.
        ratio_per_round: Median of the same ratio taken within each repeat.
        flops: Mean over the images, counted from the tokens that ran.
        flops_ratio: Dense FLOPs over these.
        realised: Share of the counted saving that became time, ratio_to_dense / flops_ratio.
        peak_memory_mb: Most memory a pass held besides weights and input, or None where that cannot be measured.
        stages: Milliseconds of each stage.
        keep_shallow: Mean share of patches alive after the shallow router.
        keep: Mean share alive after the deep router.
        keep_pixels: Mean share of patches that entered block 1.
    """

    backbone: str
    weights: str
    engine: str
    dtype: str
    batch: int
    threads: int
    point: str
    median_ms: float
    iqr_ms: float
    ratio_to_dense: float
    ratio_per_round: float
    flops: float
    flops_ratio: float
    realised: float
    peak_memory_mb: float | None
    stages: dict[str, float]
    keep_shallow: float
    keep: float
    keep_pixels: float


@dataclass(frozen=True)
class Turn:
    """Passes in a row: which repeat they belong to, and which batches go through which operating point."""

    repeat: int
    batches: tuple[int, ...]
    point: int


def schedule(points: int, repeats: int, batches: int) -> list[Turn]:
    """The order of all timed passes: points take turns on a few batches, and who begins moves on by one every time."""
    groups = [tuple(range(first, min(first + TURN, batches))) for first in range(0, batches, TURN)]
    return [
        Turn(repeat, group, (repeat * len(groups) + number + place) % points)
        for repeat in range(repeats)
        for number, group in enumerate(groups)
        for place in range(points)
    ]


def pictures(folder: str | Path | None = None, count: int = 8) -> Pictures:
    """Up to `count` images, spread evenly over those below `folder`, or over the package's demo images."""
    if folder is None:
        from keepad.demo import demo_images  # painting them takes seconds, which nothing else here needs

        demos = spread(demo_images(), count)
        return Pictures("demo", tuple(demo.name for demo in demos), tuple(demo.image for demo in demos))
    root = Path(folder)
    if not root.is_dir():
        raise KeepADError(f"'{folder}' is no folder; give one that holds images.")
    paths = spread(find_pictures(root), count)
    names = tuple(path.relative_to(root).as_posix() for path in paths)
    return Pictures(Path(os.path.abspath(root)).name, names, tuple(read_image(path) for path in paths))


def run(
    plan: Plan, images: Pictures, *, say: Say = say_on_stderr, advance: Callable[[], None] = lambda: None
) -> Iterator[list[Record]]:
    """Records of all operating points, one setting after the other.

    Args:
        plan: What to time.
        images: What to time it on.
        say: Called with one line where weights are found or random ones take their place.
        advance: Called after every forward pass.
    """
    device = choose_device(plan.device)
    for dtype in plan.dtypes:
        _require_dtype(dtype, device)
    for name in (plan.model,) if plan.model else plan.backbones:
        if plan.model:
            model, weights = load(name, device=device, say=say), "pretrained"
        else:
            model, weights = _detector(name, device, say)
        yield from run_model(model, plan, images, weights=weights, advance=advance)


def _detector(name: str, device: torch.device, say: Say) -> tuple[KeepAD, str]:
    """The detector of a backbone, and whether its weights are "pretrained" or "random"."""
    if any(read_info(path).backbone == name for path in bundled_checkpoints().values()):
        return load(name, device=device, say=say), "pretrained"
    say(f"{name}: no checkpoint comes with the package; random weights are timed, and budgets may differ")
    return untrained(name).to(device), "random"


def run_model(
    model: KeepAD,
    plan: Plan,
    images: Pictures,
    *,
    weights: str,
    advance: Callable[[], None] = lambda: None,
    engine: Callable[[str, int], EngineDetector] | None = None,
) -> Iterator[list[Record]]:
    """Records of one detector, for each dtype, number of threads and batch size of the plan.

    Args:
        model: The detector.
        plan: What to time.
        images: What to time it on.
        weights: "pretrained" or "random".
        advance: Called after every forward pass.
        engine: Gives the exported detector for an engine of the plan and a number of threads; exported where the
            user's cache is if None.
    """
    engine = engine or _exporting(model, images)
    for dtype in plan.dtypes:
        _require_dtype(dtype, model.device)
        cast = model if DTYPES[dtype] == model.head.patch.dtype else copy.deepcopy(model).to(DTYPES[dtype])
        for threads in plan.threads or (torch.get_num_threads(),):
            others = {name: engine(name, threads) for name in plan.engines if name != "torch"}
            for batch in plan.batches:
                with _using_threads(threads):
                    runners = [
                        TorchRunner(cast, point, images.images, batch)
                        if name == "torch"
                        else EngineRunner(others[name], model, point, images.images, batch)
                        for name, point in plan.contestants()
                    ]
                    timings = measure(runners, plan.warmup, plan.repeats, advance)
                setting = {"weights": weights, "dtype": dtype, "batch": batch, "threads": threads}
                yield [_record(model.backbone.name, timing, timings[0], setting) for timing in timings]


def _require_dtype(dtype: str, device: torch.device) -> None:
    if dtype == "bfloat16" and not _has_bfloat16(device):
        raise KeepADError(
            f"this {device.type} has no instructions for bfloat16, so its time would mean nothing; use float32."
        )


def _has_bfloat16(device: torch.device) -> bool:
    """Whether the device computes in bfloat16; torch emulates it on every CPU, which is no measure of anything."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    asked = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", None)
    return device.type == "cpu" and asked is not None and bool(asked())


@contextmanager
def _using_threads(threads: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _exporting(model: KeepAD, images: Pictures) -> Callable[[str, int], EngineDetector]:
    """Engines of a detector, exported to the cache when first asked for; the timed images give int8 its scales."""

    def engine(name: str, threads: int) -> EngineDetector:
        if is_exported(name):
            found = load_engine(name, model.point, threads=threads)
            if found.info.digests != model.digests():
                raise KeepADError(f"{name} was exported from another checkpoint than {model.name}; name its own.")
            return found
        kind, _, precision = name.partition(":")
        folder = exported(model, kind, precision or "fp32", say=say_on_stderr, images=images.images)
        return load_engine(folder, model.point, threads=threads)

    return engine


class Runner(ABC):
    """One of those that take turns: an engine at an operating point, with its batches ready.

    Attributes:
        engine: What runs the network.
        point: The operating point.
        batches: How many batches there are.
        images: How many images they hold together.
    """

    engine: str
    point: OperatingPoint
    batches: int
    images: int

    @abstractmethod
    def run(self, batch: int, stages: Stages) -> Sequence[Outcome | Finding]:
        """One pass."""

    @abstractmethod
    def flops(self, outcome: Outcome | Finding) -> int:
        """FLOPs that led to an outcome."""

    @abstractmethod
    def peak_memory(self) -> float | None:
        """Megabytes that a pass over the first batch holds at its peak, or None where no one keeps count."""


class TorchRunner(Runner):
    """A detector that torch runs.

    Args:
        model: The detector.
        point: The operating point.
        images: RGB images of any size.
        batch: Images in a pass.
    """

    engine = "torch"

    def __init__(self, model: KeepAD, point: OperatingPoint, images: Sequence[Image.Image], batch: int) -> None:
        self.point, self._model = point, model
        self._pixels = _batches(images, model.image_size, batch)
        self._inputs = [
            torch.from_numpy(part).permute(0, 3, 1, 2).to(model.device, model.head.patch.dtype) / 255
            for part in self._pixels
        ]
        self.batches, self.images = len(self._pixels), sum(map(len, self._pixels))

    def run(self, batch: int, stages: Stages) -> Sequence[Outcome | Finding]:
        """One pass."""
        model, stages.wait = self._model, _waiting(self._model.device)
        thinned = model.route_pixels(self._pixels[batch], self.point, stages)
        prefix = model.prefix(self._inputs[batch], stages, thinned)
        return model.finish(prefix, self.point, model.image_size, stages, thinned)

    def flops(self, outcome: Outcome | Finding) -> int:
        """FLOPs that led to an outcome."""
        return count_flops(self._model, outcome, self.point).total

    def peak_memory(self) -> float | None:
        """Megabytes that a pass over the first batch holds at its peak, or None where no one keeps count."""
        device = self._model.device
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            before = torch.cuda.memory_allocated(device)
            self.run(0, Stages())
            return (torch.cuda.max_memory_allocated(device) - before) / 1e6
        return _peak_of_tensors(lambda: self.run(0, Stages())) if device.type == "cpu" else None


class EngineRunner(Runner):
    """An exported detector.

    Args:
        detector: The exported detector.
        model: The one that it was made from, whose sizes give the FLOPs.
        point: The operating point.
        images: RGB images of any size.
        batch: Images in a pass.
    """

    def __init__(
        self,
        detector: EngineDetector,
        model: KeepAD,
        point: OperatingPoint,
        images: Sequence[Image.Image],
        batch: int,
    ) -> None:
        kind, precision = detector.info.engine, detector.info.precision
        self.engine = kind if precision == "fp32" else f"{kind}:{precision}"
        self.point, self._detector, self._model = point, detector, model
        self._inputs = _batches(images, model.image_size, batch)
        self.batches, self.images = len(self._inputs), sum(map(len, self._inputs))

    def run(self, batch: int, stages: Stages) -> Sequence[Outcome | Finding]:
        """One pass."""
        return self._detector.find(self._inputs[batch], [self.point], stages)[self.point.name]

    def flops(self, outcome: Outcome | Finding) -> int:
        """FLOPs that led to an outcome."""
        return count_flops(self._model, outcome, self.point).total

    def peak_memory(self) -> float | None:
        """Megabytes by which a pass over the first batch makes the process grow.

        An engine keeps its buffers, so they are counted in sessions that have none yet; images of one colour, which
        take few tokens, have them lay out their weights before.
        """
        grown = None
        for _ in range(2):  # the first time, kernels are made that the engine keeps for all of its sessions
            fresh = self._detector.reopened()
            fresh.find(np.zeros_like(self._inputs[0]), [replace(self.point, pixels=PixelBudget())])
            grown = _growth(lambda fresh=fresh: fresh.find(self._inputs[0], [self.point]))  # type: ignore[misc]
        return grown


def _batches(images: Sequence[Image.Image], size: tuple[int, int], batch: int) -> list[Array]:
    """(batch, H, W, 3) uint8 inputs; the last one is filled from the beginning."""
    pixels = [to_input(image, size) for image in images]
    count = -(-len(images) // batch) * batch
    return [
        np.stack([pixels[number % len(pixels)] for number in range(start, start + batch)])
        for start in range(0, count, batch)
    ]


@dataclass(frozen=True)
class Timing:
    """Measurements of one engine at one operating point.

    Attributes:
        engine: What ran the network.
        point: The operating point.
        ms: (repeats,) milliseconds an image.
        stages: (repeats, stages) the same by stage.
        flops: Mean over the images.
        keep_shallow: Mean share of patches after the shallow router.
        keep: Mean share after the deep router.
        keep_pixels: Mean share that entered block 1.
        peak_memory_mb: Most memory that a pass held, or None.
    """

    engine: str
    point: OperatingPoint
    ms: Array
    stages: Array
    flops: float
    keep_shallow: float
    keep: float
    keep_pixels: float
    peak_memory_mb: float | None


@torch.inference_mode()
def measure(
    runners: Sequence[Runner], warmup: int, repeats: int, advance: Callable[[], None] = lambda: None
) -> list[Timing]:
    """Timings of the runners, in their order, from passes that take turns; their batches are alike."""
    count, batches = len(runners), runners[0].batches
    for turn in schedule(count, warmup, 1):
        runners[turn.point].run(turn.repeat % batches, Stages())
        advance()
    seconds = np.zeros((count, repeats))
    stages = np.zeros((count, repeats, len(STAGES)))
    spent: list[list[tuple[float, ...]]] = [[] for _ in runners]
    with _without_garbage_collection():
        for turn in schedule(count, repeats, batches):
            runner = runners[turn.point]
            runner.run(turn.batches[-1], Stages())
            advance()
            for batch in turn.batches:
                taken, marks, outcomes = _timed_pass(runner, batch)
                seconds[turn.point, turn.repeat] += taken
                stages[turn.point, turn.repeat] += [marks.seconds.get(stage, 0.0) for stage in STAGES]
                if turn.repeat == 0:  # later repeats prune the same images alike
                    spent[turn.point] += [_tokens_spent(runner, outcome) for outcome in outcomes]
                advance()
    timings = []
    for i, runner in enumerate(runners):
        flops, shallow, final, pixels = (float(value) for value in np.mean(spent[i], axis=0))
        to_ms = 1e3 / runner.images
        peak = runner.peak_memory()
        advance()
        measured = (seconds[i] * to_ms, stages[i] * to_ms, flops, shallow, final, pixels, peak)
        timings.append(Timing(runner.engine, runner.point, *measured))
    return timings


def _timed_pass(runner: Runner, batch: int) -> tuple[float, Stages, Sequence[Outcome | Finding]]:
    """Seconds of one pass, the same by stage, and what came of it."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    stages = Stages()
    start = time.perf_counter()
    outcomes = runner.run(batch, stages)
    return time.perf_counter() - start, stages, outcomes


def _waiting(device: torch.device) -> Callable[[], None] | None:
    return (lambda: torch.cuda.synchronize(device)) if device.type == "cuda" else None


def _tokens_spent(runner: Runner, outcome: Outcome | Finding) -> tuple[float, ...]:
    """FLOPs of a pass, and the shares of patches after the shallow router, after the deep one, and before both."""
    patches = outcome.patch_map.shape[0] * outcome.patch_map.shape[1]
    embedded = patches if outcome.thinned is None else len(outcome.thinned.index)
    counts = (len(outcome.survivors_shallow), len(outcome.survivors), embedded)
    return runner.flops(outcome), *(count / patches for count in counts)


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """A collection in the middle of a pass would be booked to whatever point is running."""
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _peak_of_tensors(one_pass: Callable[[], object]) -> float:
    """Megabytes of tensors that one pass of torch on the CPU held at its peak, from its own list of allocations."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # the profiler tells its own developers much
    cpu = torch.profiler.ProfilerActivity.CPU
    with torch.inference_mode(), torch.profiler.profile(activities=[cpu], profile_memory=True) as seen:
        one_pass()
    events: Any = seen.profiler
    moves = [event for event in events.kineto_results.events() if event.name() == "[memory]"]
    sizes = [event.nbytes() for event in sorted(moves, key=lambda event: event.start_ns())]
    return float(np.cumsum([0, *sizes]).max()) / 1e6


def _growth(one_pass: Callable[[], object]) -> float | None:
    """Megabytes by which one pass made the process grow at its peak.

    On Linux the kernel keeps the highest resident size of a process and lets the process reset it, so nothing falls
    between two samples. Freed memory is given back first, since a pass that only fills old holes would seem to need
    nothing; and for this one pass every larger array gets pages of its own, since a heap in pieces would seem to need
    more. Other systems have a highest size that cannot be reset: None.
    """
    try:
        libc = ctypes.CDLL(None)
        libc.mallopt(_MMAP_THRESHOLD, 1 << 16)
        try:
            libc.malloc_trim(0)
            Path("/proc/self/clear_refs").write_text("5")
            resident = _status("VmRSS")
            one_pass()
            return max(0, _status("VmHWM") - resident) * 1024 / 1e6
        finally:  # where glibc's own moving thresholds end up
            libc.mallopt(_MMAP_THRESHOLD, 1 << 25)
            libc.mallopt(_TRIM_THRESHOLD, 1 << 26)
    except (OSError, AttributeError, TypeError):  # no /proc, not allowed to reset, or another C library
        return None


def _status(field: str) -> int:
    """Kilobytes in a field of the process's status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


def _record(backbone: str, timing: Timing, dense: Timing, setting: dict[str, Any]) -> Record:
    median, dense_median = float(np.median(timing.ms)), float(np.median(dense.ms))
    ratio, flops_ratio = dense_median / median, dense.flops / timing.flops
    quarter, three_quarters = np.percentile(timing.ms, (25, 75))
    return Record(
        backbone=backbone,
        engine=timing.engine,
        point=timing.point.name,
        median_ms=median,
        iqr_ms=float(three_quarters - quarter),
        ratio_to_dense=ratio,
        ratio_per_round=float(np.median(dense.ms / timing.ms)),
        flops=timing.flops,
        flops_ratio=flops_ratio,
        realised=ratio / flops_ratio,
        peak_memory_mb=timing.peak_memory_mb,
        stages=dict(zip(STAGES, (float(ms) for ms in np.median(timing.stages, axis=0)), strict=True)),
        keep_shallow=timing.keep_shallow,
        keep=timing.keep,
        keep_pixels=timing.keep_pixels,
        **setting,
    )


# -- what is shown and written -----------------------------------------------------------------------------------------


def settings_of(plan: Plan, images: Pictures, command: Sequence[str]) -> dict[str, Any]:
    """What has to be known beside the records to read them: machine, images, protocol, command."""
    device = choose_device(plan.device)
    return {
        "machine": {
            "cpu": _cpu_name(),
            "cores": os.cpu_count(),
            "load_average": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "python": platform.python_version(),
            "system": platform.system(),
        },
        "images": {"source": images.source, "per_repeat": len(images.names), "names": list(images.names)},
        "model": plan.model,
        "warmup": plan.warmup,
        "repeats": plan.repeats,
        "command": command_line(command),
    }


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.processor()
    )


_COLUMNS = (
    "backbone",
    "batch",
    "threads",
    "dtype",
    "engine",
    "point",
    "ms",
    "IQR",
    "x dense",
    "x FLOPs",
    "realised",
    "peak MB",
    "keep",
)


def _setting_cells(record: Record) -> list[str]:
    name = record.backbone if record.weights == "pretrained" else f"{record.backbone} ({record.weights})"
    return [name, str(record.batch), str(record.threads), record.dtype, record.engine, record.point]


def _cells(record: Record) -> list[str]:
    return [
        *_setting_cells(record),
        f"{record.median_ms:.1f}",
        f"{record.iqr_ms:.1f}",
        f"{record.ratio_to_dense:.2f}",
        f"{record.flops_ratio:.2f}",
        f"{record.realised:.0%}",
        "-" if record.peak_memory_mb is None else f"{record.peak_memory_mb:.0f}",
        " / ".join(f"{share:.0%}" for share in _shares(record)),
    ]


def _shares(record: Record) -> list[float]:
    """Patches after each router; that of the pixels is only told of where it dropped something."""
    return [*([record.keep_pixels] if record.keep_pixels < 1 else []), record.keep_shallow, record.keep]


def _stage_cells(record: Record) -> list[str]:
    return [*_setting_cells(record), *(f"{record.stages[stage]:.2f}" for stage in STAGES)]


def tables(records: Iterable[Record]) -> list[Table]:
    """Two tables for a terminal for each setting: times against dense, and the time of each stage."""
    found = []
    for setting, group in groupby(records, key=lambda record: tuple(_setting_cells(record)[:5])):
        name, batch, threads, dtype, engine = setting
        title = f"{name}, {engine}, batch {batch}, {threads} threads, {dtype}: milliseconds an image"
        times = Table(*(_COLUMNS[5:]), title=f"{title}, against dense in the same run", title_justify="left")
        stages = Table("point", *STAGES, title=f"{title}, by stage", title_justify="left")
        for record in group:
            times.add_row(*_cells(record)[5:])
            stages.add_row(*_stage_cells(record)[5:])
        for table in (times, stages):
            for column in table.columns[1:]:
                column.justify, column.no_wrap = "right", True
        found += [times, stages]
    return found


def to_markdown(records: Sequence[Record], settings: dict[str, Any]) -> str:
    """The same two tables as a page whose first line is the command that made it."""
    machine, images = settings["machine"], settings["images"]
    where = machine["cpu"] if machine["device"] == "cpu" else machine["device"]
    paragraphs = [
        f"Made by `{settings['command']}`.",
        f"{where}, {machine['cores']} cores, torch {machine['torch']}; {settings['warmup']} warm-ups, "
        f"{settings['repeats']} repeats of {images['per_repeat']} images ({images['source']}); medians, all points "
        f"interleaved in one process, {TURN} passes in a row at most and one untimed before. x dense and x FLOPs say "
        "how many times faster and cheaper than dense in torch; "
        "realised is their quotient; peak MB is what a pass holds besides weights and input (torch: its tensors; "
        "others: growth of the process); keep: patches after each router, that of the pixels first where it dropped "
        "any.",
        _markdown_table(_COLUMNS, [_cells(record) for record in records]),
        "Milliseconds an image by stage:",
        _markdown_table((*_COLUMNS[:6], *STAGES), [_stage_cells(record) for record in records]),
    ]
    return "\n\n".join(paragraphs) + "\n"


def _markdown_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def write_report(path: str | Path, records: Sequence[Record], settings: dict[str, Any]) -> Path:
    """Path of the Markdown page that is written beside the JSON file `path`; neither is ever half a file."""
    path = Path(path)
    content = {"settings": settings, "records": [asdict(record) for record in records]}
    _write(path, json.dumps(content, indent=2) + "\n")
    page = path.with_suffix(".md")
    _write(page, to_markdown(records, settings))
    return page


def _write(path: Path, text: str) -> None:
    try:
        with replacing(path) as partial:
            partial.write_text(text, encoding="utf-8")
    except OSError as error:
        raise KeepADError(f"{path} could not be written: {error.strerror}; choose another place.") from error
