"""Service: what the routes call. It holds a detector, its worker, profiles, jobs, counters and limits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import anyio
import anyio.to_thread
import numpy as np
from starlette.requests import Request

from keepad.console import Say
from keepad.detector import Detector
from keepad.errors import KeepADError
from keepad.images import InputImage
from keepad.prediction import Prediction
from keepad.presets import POINTS, OperatingPoint, operating_point
from keepad.serve.admission import Admission, Ticket
from keepad.serve.answers import Wanted, describe
from keepad.serve.baskets import Baskets
from keepad.serve.errors import RefusedError
from keepad.serve.feed import Feed, verdict_of
from keepad.serve.jobs import Jobs
from keepad.serve.metrics import Metrics
from keepad.serve.profiles import ZERO_SHOT, Profiles
from keepad.serve.settings import ServeSettings
from keepad.serve.uploads import Upload, declared_size, read_body
from keepad.serve.worker import StoppedError, Worker

T = TypeVar("T")

_DEFAULTS = Wanted()
_READERS = 2  # images that are read or described at once; a large one takes hundreds of megabytes meanwhile


@dataclass(frozen=True)
class Asked:
    """What a request asks for.

    Attributes:
        profile: Name of a profile; None takes the service's default, "keepad" the zero-shot model.
        point: Operating point; None takes that of the profile, or the service's.
        wanted: What the answer holds.
    """

    profile: str | None = None
    point: str | None = None
    wanted: Wanted = _DEFAULTS


@dataclass(frozen=True)
class Result:
    """The result of one image: a prediction and its description, or an error.

    Attributes:
        name: What the client calls the image.
        prediction: The prediction, labelled as the request wants it, or None.
        described: The same ready for JSON; name and error where there is no prediction.
        error: Why there is none, or None.
    """

    name: str
    prediction: Prediction | None
    described: dict[str, Any]
    error: KeepADError | None = None


class Service:
    """A detector that answers requests.

    Args:
        detector: Zero-shot detector; its point is the service's default.
        settings: Where it listens and what it takes.
        say: Called with a line for everything that the operator should know.
        folder: Folder of profiles, or None to keep new ones in memory only.
        files: Profiles given one by one; the first is used where a request names none.
    """

    def __init__(
        self,
        detector: Detector,
        settings: ServeSettings,
        say: Say,
        *,
        folder: Path | None = None,
        files: Sequence[Path] = (),
    ) -> None:
        limits = settings.limits
        self.detector, self.settings, self.say = detector, settings, say
        self.profiles = Profiles(detector, folder, limits.profiles, say)
        given = [self.profiles.open_file(path).name for path in files]
        self.default = given[0] if given else None
        self.feed, self.baskets, self.jobs = Feed(), Baskets(limits.uploaded), Jobs(say)
        self.worker = Worker(settings.batch_size, lambda batch: self.metrics.batch(batch), detector.network.lanes)
        self.admission = Admission(limits, lambda: self.worker.seconds_per_image)
        self.metrics = Metrics(settings.batch_size, lambda: self.admission.images)
        self._readers = anyio.CapacityLimiter(_READERS)
        self.stopping = False

    def close(self) -> None:
        """Stop jobs and finish what was submitted."""
        self.stopping = True
        seconds = self.settings.limits.seconds
        self.jobs.close(seconds)
        self.worker.close(seconds)

    @asynccontextmanager
    async def admitted(self, request: Request) -> AsyncIterator[tuple[Ticket, bytes]]:
        """Places for a request and its body, within the limits of size and time.

        Raises:
            RefusedError: 429, there is no room now; 413, it is too large; 408 or 503, it took too long.
        """
        limits, reading = self.settings.limits, True
        with self.admission.ticket(declared_size(request, limits.bytes)) as ticket:
            try:
                with anyio.fail_after(limits.seconds):
                    body = await read_body(request, limits.bytes)
                    ticket.weigh(len(body))
                    reading = False
                    yield ticket, body
            except TimeoutError:
                if reading:
                    raise RefusedError(408, f"the request was not sent within {limits.seconds:g} seconds.") from None
                sentence = (
                    f"the service could not answer within {limits.seconds:g} seconds; send fewer images at a time."
                )
                raise RefusedError(503, sentence, self.admission.retry_after) from None

    async def predict(self, uploads: Sequence[Upload], asked: Asked) -> list[Result]:
        """The results of images, in their order; one that cannot be used is a result with an error.

        Raises:
            KeepADError: There is no such operating point, or the profile is for another one.
            RefusedError: 404, there is no such profile; 503, the service is stopping.
        """
        stream, detector, point = self.chosen(asked)
        tasks = [self._predict_one(upload, detector, point, (stream, asked.wanted)) for upload in uploads]
        return await asyncio.gather(*tasks)

    def chosen(self, asked: Asked) -> tuple[str, Detector, OperatingPoint]:
        """Name of the stream, detector and operating point of a request."""
        name = asked.profile or self.default or ZERO_SHOT
        detector = self.detector if name == ZERO_SHOT else self.profiles.get(name).detector
        point = detector.point if asked.point is None else operating_point(asked.point)
        if detector.profile is not None and point != detector.point:
            raise KeepADError(f"the profile {name} was taught at {detector.point.name}, not at {point.name}.")
        return name, detector, point

    async def read(self, upload: Upload, detector: Detector) -> InputImage | KeepADError:
        """The image as an input of a detector, or why it cannot be used."""
        limit = self.settings.limits.pixels

        def read() -> InputImage | KeepADError:
            try:
                return upload.read(detector, limit)
            except KeepADError as error:
                return error

        return await self.in_thread(read)

    async def _predict_one(
        self, upload: Upload, detector: Detector, point: OperatingPoint, answer: tuple[str, Wanted]
    ) -> Result:
        stream, wanted = answer
        try:
            image = await self.read(upload, detector)
            if isinstance(image, KeepADError):
                raise image
            prediction = await asyncio.wrap_future(self.worker.submit(detector, point, image))
        except KeepADError as error:
            self.feed.add_error(stream, upload.name, str(error))
            self.metrics.image_errors.inc()
            return Result(upload.name, None, {"name": upload.name, "error": str(error)}, error)
        except StoppedError:
            raise RefusedError(503, "the service is stopping.", 5) from None
        prediction = wanted.applied(prediction)
        profile = None if detector.profile is None else stream
        described = await self.in_thread(lambda: describe(prediction, upload.name, profile, wanted))
        self.count(stream, prediction, described)
        return Result(upload.name, prediction, described)

    def count(self, stream: str, prediction: Prediction, described: dict[str, Any]) -> None:
        """Count one result in the feed and in the metrics."""
        self.feed.add(stream, prediction, described)
        self.metrics.images.labels(stream, verdict_of(described)).inc()
        self.metrics.scores.labels(stream).observe(prediction.pred_score)
        state = self.feed.stream(stream).state
        if state is not None:
            self.metrics.drift.labels(stream).set(state.drift)
            self.metrics.drift_statistic.labels(stream).set(state.statistic)

    async def in_thread(self, function: Callable[[], T]) -> T:
        """The result of a function that takes time or memory; a few of these run at once."""
        return await anyio.to_thread.run_sync(function, limiter=self._readers)

    async def on_worker(self, function: Callable[[], T]) -> T:
        """The result of a function that uses the network, called between two batches."""
        try:
            return await asyncio.wrap_future(self.worker.run(function))
        except StoppedError:
            raise RefusedError(503, "the service is stopping.", 5) from None

    def forget(self, name: str) -> None:
        """Delete a profile, and what was counted of it.

        Raises:
            RefusedError: 404, there is none; 409, it is the default.
        """
        if name == self.default:
            raise RefusedError(409, f"{name} is used where a request names no profile, so it cannot be deleted.")
        self.profiles.delete(name)
        self.feed.forget(name)
        self.metrics.forget(name)

    def warm_up(self) -> None:
        """Run one full batch, so that the first request does not pay for compiled kernels."""
        height, width = self.detector.image_size
        noise = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
        image = self.detector.prepare(noise)
        waiting = [
            self.worker.submit(self.detector, self.detector.point, image) for _ in range(self.settings.batch_size)
        ]
        for future in waiting:
            future.result()

    def describe(self) -> dict[str, Any]:
        """What a client may know of the service, ready for JSON."""
        limits, detector = self.settings.limits, self.detector
        return {
            "model": detector.name,
            "backbone": detector.backbone_name,
            "runs_on": detector.runs_on,
            "point": detector.point.name,
            "points": list(POINTS),
            "image_size": list(detector.image_size),
            "grid": list(detector.grid),
            "thresholds": {"image": detector.thresholds[0], "pixel": detector.thresholds[1]},
            "profile": self.default,
            "keeps_profiles": self.profiles.keeps,
            "limits": {
                "images": limits.images,
                "bytes": limits.bytes,
                "pixels": limits.pixels,
                "seconds": limits.seconds,
                "queue": limits.queue,
            },
        }
