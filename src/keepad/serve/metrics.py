"""Metrics for Prometheus, in a registry of the service's own."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

from keepad.serve.worker import Batch

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_SCORES = tuple(number / 20 for number in range(1, 20))


class Metrics:
    """What a monitoring system asks for.

    Labels are names of profiles, verdicts, routes and status codes, all of them few; nothing a client can invent.

    Args:
        batch_size: Images per batch, at most.
        waiting: Gives the number of images under way.
    """

    content_type = "text/plain; version=0.0.4; charset=utf-8"

    def __init__(self, batch_size: int, waiting: Callable[[], int]) -> None:
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self.requests = Counter("keepad_requests", "Requests answered.", ["route", "code"], registry=registry)
        self.request_seconds = Histogram(
            "keepad_request_seconds", "Time to answer a request.", ["route"], buckets=_SECONDS, registry=registry
        )
        self.images = Counter("keepad_images", "Images predicted.", ["profile", "verdict"], registry=registry)
        self.scores = Histogram("keepad_score", "Image scores.", ["profile"], buckets=_SCORES, registry=registry)
        self.image_errors = Counter("keepad_image_errors", "Images that could not be used.", registry=registry)
        sizes = sorted({1, *(size for size in (2, 4, 8, 16, 32, 64) if size < batch_size), batch_size})
        self.batch_images = Histogram(
            "keepad_batch_images", "Images per forward pass.", buckets=sizes, registry=registry
        )
        self.batch_seconds = Histogram(
            "keepad_batch_seconds", "Time of a forward pass.", buckets=_SECONDS, registry=registry
        )
        self.drift = Gauge(
            "keepad_drift", "1 where the scores of a stream have drifted.", ["profile"], registry=registry
        )
        self.drift_statistic = Gauge(
            "keepad_drift_statistic", "Evidence of drift; an alarm at 1e6.", ["profile"], registry=registry
        )
        Gauge("keepad_images_under_way", "Images that wait for their result.", registry=registry).set_function(waiting)

    def batch(self, batch: Batch) -> None:
        """Count a forward pass."""
        self.batch_images.observe(batch.images)
        self.batch_seconds.observe(batch.seconds)

    def forget(self, profile: str) -> None:
        """Drop the numbers of a profile that is gone, or labels would pile up."""
        for metric in (self.images, self.scores, self.drift, self.drift_statistic):
            metric.remove_by_labels({"profile": profile})

    def render(self) -> bytes:
        """The text that Prometheus reads."""
        return bytes(generate_latest(self._registry))
