"""How much work is let in at once. Everything here runs in the event loop, so nothing is locked."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from keepad.serve.errors import RefusedError
from keepad.serve.settings import Limits

_BODIES = 4  # bodies of the largest size that may be in memory at once
_LONGEST_WAIT = 60  # seconds that a client is told to wait at most


class Admission:
    """Counts the images and bytes of all requests that are under way, and refuses what would be too much.

    A request holds one place from its first byte on, and more as soon as it is known how many images it has.

    Args:
        limits: Limits of the service.
        seconds_per_image: Gives the mean time of an image, for Retry-After.
    """

    def __init__(self, limits: Limits, seconds_per_image: Callable[[], float]) -> None:
        self._limits, self._seconds_per_image = limits, seconds_per_image
        self.images = 0
        self.bytes = 0

    @property
    def retry_after(self) -> int:
        """Seconds in which about half of what is under way will be done."""
        seconds = 0.5 * self.images * self._seconds_per_image()
        return max(1, min(_LONGEST_WAIT, math.ceil(seconds)))

    @contextmanager
    def ticket(self, size: int) -> Iterator[Ticket]:
        """Places for a request whose body has `size` bytes; given back at the end.

        Raises:
            RefusedError: 429, there is no room now.
        """
        if self.images and self.bytes + size > _BODIES * self._limits.bytes:
            raise self._full()
        ticket = Ticket(self)
        ticket.hold(1)
        ticket.weigh(size)
        try:
            yield ticket
        finally:
            self.bytes -= ticket.bytes
            self.images -= ticket.images

    def _full(self) -> RefusedError:
        return RefusedError(429, "the queue of this service is full; send the request again later.", self.retry_after)

    def take(self, count: int, own: int) -> None:
        """Take places for a request that has `own` already, or refuse with 429 and take none.

        Where other requests are under way, also refuses what could not be answered in time behind them.
        """
        images = self.images + count
        late = images * self._seconds_per_image() > self._limits.seconds and self.images > own
        if images > self._limits.queue or late:
            raise self._full()
        self.images = images


class Ticket:
    """The places of one request."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self.bytes = 0
        self.images = 0

    def hold(self, images: int) -> None:
        """Hold as many places as the request has images.

        Raises:
            RefusedError: 429, there is no room now.
        """
        if images > self.images:
            self._admission.take(images - self.images, self.images)
            self.images = images

    def weigh(self, size: int) -> None:
        """Count a body of `size` bytes, which may have been unpacked meanwhile."""
        self._admission.bytes += size - self.bytes
        self.bytes = size
