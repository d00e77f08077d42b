"""Jobs that make or change a profile. Each pass runs between two batches of predictions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from keepad.detector import Detector
from keepad.images import InputImage
from keepad.presets import OperatingPoint
from keepad.references.calibrating import Promise
from keepad.references.calibrating import calibrate as calibrated_profile
from keepad.references.profile import Profile
from keepad.references.teaching import add, now
from keepad.serve.jobs import Job
from keepad.serve.profiles import Product
from keepad.serve.service import Service
from keepad.serve.worker import BetweenBatches


@dataclass(frozen=True)
class Lesson:
    """How a profile is taught.

    Attributes:
        name: Name of the profile.
        point: Operating point that it is for.
        rotate: Also take rotated copies: auto, on or off.
    """

    name: str
    point: OperatingPoint
    rotate: str


def teach(service: Service, lesson: Lesson, images: Sequence[InputImage]) -> Job:
    """A job that teaches a new profile from good images."""

    def work(job: Job) -> dict[str, Any]:
        detector = between_batches(service, job, service.detector, lesson.point)
        profile = detector.teach(images, rotate=lesson.rotate, say=job.say, progress=job.progress)
        job.check()
        return service.profiles.put(lesson.name, profile).summary()

    return service.jobs.start("teach", lesson.name, work)


def add_images(service: Service, name: str, images: Sequence[InputImage]) -> Job:
    """A job that adds normal images, such as false alarms, to a profile."""

    def change(job: Job, product: Product) -> Profile:
        profile = product.profile
        with job.progress("add", len(images)) as advance:
            for image in images:
                detector = between_batches(service, job, product.detector, product.detector.point)
                profile = add(detector.with_profile(profile), profile, image)
                advance()
        return profile

    return _changing(service, "add", name, change)


def calibrate(service: Service, name: str, images: Sequence[InputImage], promise: Promise) -> Job:
    """A job that calibrates a profile, or makes a new one that holds a calibration alone, from good images."""
    promise.require(len(images))
    known = name in service.profiles.names()
    if not known:
        service.profiles.room_for(name)

    def work(job: Job) -> dict[str, Any]:
        product = service.profiles.get(name) if known else None
        known_detector = (product or service).detector
        detector = between_batches(service, job, known_detector, known_detector.point)
        if product is not None:
            detector = detector.with_profile(product.profile)
        profile = calibrated_profile(detector, images, promise, say=job.say, progress=job.progress)
        job.check()
        return service.profiles.put(name, profile).summary()

    return service.jobs.start("calibrate", name, work)


def undo(service: Service, name: str) -> Job:
    """A job that takes back the image that was added last."""
    return _changing(service, "undo", name, lambda job, product: product.profile.undone(now()))


def _changing(service: Service, kind: str, name: str, change: Callable[[Job, Product], Profile]) -> Job:
    """A job that replaces a profile; jobs run one after the other, so none overwrites the change of another."""
    service.profiles.get(name)

    def work(job: Job) -> dict[str, Any]:
        profile = change(job, service.profiles.get(name))
        job.check()
        return service.profiles.put(name, profile).summary()

    return service.jobs.start(kind, name, work)


def between_batches(service: Service, job: Job, detector: Detector, point: OperatingPoint) -> Detector:
    """The detector without its profile, whose passes the worker runs, until the job is stopped."""
    network = BetweenBatches(service.detector.network, service.worker, job.check)
    return Detector(network, point, framing=detector.framing)
