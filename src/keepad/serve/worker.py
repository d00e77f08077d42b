"""The threads that run the network: images of many requests in ragged batches or side by side, and other passes."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

from keepad.arrays import Array
from keepad.detector import Detector
from keepad.images import InputImage
from keepad.inference import NO_REFERENCES, AnyNetwork, Inference, References
from keepad.prediction import Prediction
from keepad.presets import OperatingPoint
from keepad.steps import WHOLE, Scope, Stages

T = TypeVar("T")

_SMOOTH = 0.2  # weight of the last batch in the mean time of an image
_FIRST_GUESS = 0.5  # seconds of an image before any was timed


class StoppedError(RuntimeError):
    """The worker was closed before it came to this."""


@dataclass(eq=False)
class _Image:
    """An image that waits for its pass; those with the same detector and point can share one."""

    detector: Detector
    point: OperatingPoint
    image: InputImage
    future: Future[Prediction] = field(default_factory=Future)

    def fits(self, other: _Image) -> bool:
        return self.detector is other.detector and self.point == other.point


@dataclass(eq=False)
class _Call:
    """A function that needs the network."""

    function: Callable[[], Any]
    future: Future[Any] = field(default_factory=Future)


@dataclass(frozen=True)
class Batch:
    """What one batch took.

    Attributes:
        images: Number of images.
        seconds: Time of the pass with all that belongs to it.
    """

    images: int
    seconds: float


class Worker:
    """Runs the passes of all requests, in the order of their arrival.

    A network that runs one pass at a time gets ragged batches: the first image that waits decides on detector and
    operating point, and others of the same kind join it, up to `batch_size`. One with several lanes, an engine, gets an
    image a lane as soon as there is one: nothing waits for the longest image of a batch. Either way no pass waits for
    images to come, and between two of them one other call may use the network, so that teaching goes on under load and
    holds no prediction up for longer than one of its passes.

    Args:
        batch_size: Images per batch, at most.
        on_batch: Called in a thread of the worker after every batch.
        lanes: Passes that the network runs at once.
    """

    def __init__(self, batch_size: int, on_batch: Callable[[Batch], None] = lambda batch: None, lanes: int = 1) -> None:
        self._batch_size = batch_size if lanes == 1 else 1
        self._on_batch = on_batch
        self._images: deque[_Image] = deque()
        self._calls: deque[_Call] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._mean: float | None = None
        self._threads = [
            threading.Thread(target=self._work, name=f"keepad-worker-{lane}", daemon=True) for lane in range(lanes)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def seconds_per_image(self) -> float:
        """Mean time of an image in the last batches, of which as many run at once as there are lanes."""
        return _FIRST_GUESS if self._mean is None else self._mean / len(self._threads)

    @property
    def waiting(self) -> int:
        """Images that wait for a pass."""
        return len(self._images)

    def submit(self, detector: Detector, point: OperatingPoint, image: InputImage) -> Future[Prediction]:
        """The prediction of an image, once its batch has run; a future that is cancelled before costs nothing."""
        waiting = _Image(detector, point, image)
        with self._changed:
            self._check_open()
            self._images.append(waiting)
            self._changed.notify()
        return waiting.future

    def run(self, function: Callable[[], T]) -> Future[T]:
        """The result of a function that uses the network, called between two batches."""
        call = _Call(function)
        with self._changed:
            self._check_open()
            self._calls.append(call)
            self._changed.notify()
        return call.future

    def close(self, timeout: float | None = None) -> bool:
        """Finish what was submitted, then stop; whether that was done within `timeout` seconds."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        end = None if timeout is None else time.monotonic() + timeout
        for thread in self._threads:
            thread.join(None if end is None else max(0.0, end - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _check_open(self) -> None:
        if self._closing:
            raise StoppedError("the service is stopping.")

    def _work(self) -> None:
        while True:
            with self._changed:
                while not (self._images or self._calls or self._closing):
                    self._changed.wait()
                batch = self._next_batch()
                call = self._calls.popleft() if self._calls else None
                if not batch and call is None and not self._images and self._closing:
                    return
            if batch:
                self._predict(batch)
            if call is not None:
                _settle(call.future, call.function)

    def _next_batch(self) -> list[_Image]:
        """The images of the next batch, taken out of the queue; the others keep their order."""
        batch: list[_Image] = []
        rest: list[_Image] = []
        while self._images and len(batch) < self._batch_size:
            image = self._images.popleft()
            if batch and not image.fits(batch[0]):
                rest.append(image)
            elif image.future.set_running_or_notify_cancel():
                batch.append(image)
        self._images.extendleft(reversed(rest))
        return batch

    def _predict(self, batch: Sequence[_Image]) -> None:
        started = time.perf_counter()
        first = batch[0]
        try:
            images = iter([waiting.image for waiting in batch])
            predictions = list(first.detector.predict(images, point=first.point, batch_size=len(batch)))
        except Exception as error:
            if len(batch) == 1:
                first.future.set_exception(error)
            else:  # one image must not spoil the answers of the others
                for waiting in batch:
                    self._predict([waiting])
            return
        seconds = time.perf_counter() - started
        share = seconds / len(batch)
        with self._changed:
            self._mean = share if self._mean is None else (1 - _SMOOTH) * self._mean + _SMOOTH * share
        self._on_batch(Batch(len(batch), seconds))
        for waiting, prediction in zip(batch, predictions, strict=True):
            waiting.future.set_result(prediction)


def _settle(future: Future[Any], function: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(function())
    except Exception as error:
        future.set_exception(error)


class BetweenBatches:
    """A network whose passes run in the worker's thread, between the batches of predictions.

    Teaching takes it for any other network, and so needs to know nothing of the service.

    Args:
        network: The network.
        worker: The worker that owns it.
        check: Called before every pass; what it raises ends the work.
    """

    def __init__(self, network: AnyNetwork, worker: Worker, check: Callable[[], None] = lambda: None) -> None:
        self._network, self._worker, self._check = network, worker, check
        self.name, self.image_size, self.placement = network.name, network.image_size, network.placement
        self.calibration, self.provenance, self.packages = network.calibration, network.provenance, network.packages
        self.fixed_size, self.lanes = network.fixed_size, network.lanes

    @property
    def backbone_name(self) -> str:
        return self._network.backbone_name

    @property
    def grid(self) -> tuple[int, int]:
        return self._network.grid

    @property
    def patch(self) -> tuple[int, int]:
        return self._network.patch

    @property
    def runs_on(self) -> str:
        return self._network.runs_on

    @property
    def precision(self) -> str:
        return self._network.precision

    def infer(
        self,
        pixels: Array,
        points: Sequence[OperatingPoint],
        stages: Stages | None = None,
        references: References = NO_REFERENCES,
        record: bool = False,
        scope: Scope = WHOLE,
    ) -> dict[str, list[Inference]]:
        """The result of every image of a batch at every operating point, as the network itself gives it."""
        self._check()
        return self._worker.run(lambda: self._network.infer(pixels, points, stages, references, record, scope)).result()

    def digests(self) -> dict[str, str]:
        return self._network.digests()
