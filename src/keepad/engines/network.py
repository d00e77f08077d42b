"""EngineNetwork: the network as OpenVINO or ONNX Runtime runs it, segment by segment. Runs without torch."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from keepad.arrays import Array
from keepad.engines.folder import SUFFIXES, EngineInfo, read_description
from keepad.engines.sessions import MULTIPLES, PACKAGES, Session, available_threads, open_session
from keepad.engines.steps import SCORES, BatchSteps, Segments, SegmentSteps
from keepad.errors import KeepADError
from keepad.inference import NO_REFERENCES, Inference, References, Routings, infer, route_all
from keepad.presets import Calibration, OperatingPoint
from keepad.routing import Grid
from keepad.steps import WHOLE, Scope, Stages

FEWEST_PATCHES = 90  # fewer may leave fewer tokens than dissimilarity has neighbours
FEWEST_OF_TILE = 16  # budgets that tiles share leave at least twelve of them
_LATELY = 10  # passes, after which it no longer counts how many were under way at once


def open_network(folder: str | Path, *, threads: int | None = None) -> EngineNetwork:
    """The network of a folder that `keepad export` wrote.

    Args:
        folder: The exported folder.
        threads: CPU threads, or None for all that this process may use.
    """
    return EngineNetwork(Path(folder), read_description(Path(folder)), threads)


class EngineNetwork:
    """A network that OpenVINO or ONNX Runtime runs.

    One image uses all threads. Of a batch, or of calls from several threads, as many images run concurrently as there
    are threads, with sessions of their own: no thread waits for another, and decisions overlap with the computation of
    other images.

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
        self.lanes = self._threads
        self._lanes = Lanes(self._sessions, self._threads)
        with self._lanes.taken() as segments:
            segments("early")  # raises now if the engine is missing

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
            with self._lanes.taken() as segments:
                return run(BatchSteps(self._steps(segments)), pixels, stages=stages, scope=scope)
        if len(pixels) == 1 or self._threads == 1:
            with self._lanes.taken() as segments:
                steps = self._steps(segments)
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
        routings = [route_all(image[None], self.info.patch, points, scope.of(i)) for i, image in enumerate(pixels)]
        stages.mark("routing")

        def run(number: int) -> tuple[dict[str, list[Inference]], Stages]:
            own = Stages()
            with self._lanes.taken(lanes) as segments:
                steps, image = self._steps(segments), pixels[number][None]
                return infer_image(steps, image, stages=own, routings=routings[number], scope=scope.of(number)), own

        # Longest first, so that no lane ends with a long image alone.
        order = sorted(range(len(pixels)), key=lambda number: -_patches(routings[number]))
        with ThreadPoolExecutor(lanes) as pool:
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


class Lanes:
    """Sessions that passes take in turn: all threads for one that is alone, a share of them for each of several.

    Where several were under way at once lately, one that happens to begin alone takes its share only: others will come
    while it runs, and more threads than cores make all of them late.

    Args:
        open_sessions: Gives sessions with so many threads.
        threads: CPU threads.
        clock: Seconds, never going back.
    """

    def __init__(
        self, open_sessions: Callable[[int], Segments], threads: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._open, self._threads, self._clock = open_sessions, threads, clock
        self._most, self._since = 1, clock()  # passes at once lately, and when they were
        self._seconds = 0.0  # of the last pass
        self._free: defaultdict[int, list[Segments]] = defaultdict(list)  # by number of threads
        self._running = 0
        self._changed = threading.Condition()

    @contextmanager
    def taken(self, lanes: int | None = None) -> Iterator[Segments]:
        """Sessions for one pass, once there is a thread for it.

        Args:
            lanes: Passes that share the threads; as many as there were at once lately if None.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._running < self._threads)
            self._running += 1
            started = self._clock()
            if lanes is None and (self._running >= self._most or started - self._since > _LATELY * self._seconds):
                self._most, self._since = self._running, started
            threads = self._threads // (self._most if lanes is None else lanes)
            free = self._free[threads]
            segments = free.pop() if free else self._open(threads)
        try:
            yield segments
        finally:
            with self._changed:
                free.append(segments)
                self._running -= 1
                self._seconds = self._clock() - started
                self._changed.notify()


def _patches(routings: Routings) -> int:
    """Patches that enter block 1, summed over the pixel budgets."""
    return sum(len(own[0].index) for own in routings.values() if own is not None)
