"""Delivery: one thread a sink takes messages from the journal until the sink has them, in order."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence

from keepad.console import Say
from keepad.errors import KeepADError
from keepad.watch.journal import Journal
from keepad.watch.sinks import DeliveryError, RefusedError, Sink

_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0  # seconds between attempts
_REFUSALS = 3  # attempts before a message that is refused is put aside


class Delivery:
    """Delivers what the journal holds; each message at least once.

    Args:
        journal: The journal.
        sinks: The sinks.
        say: Called with a line when a sink fails, and when it is back.
        longest_pause: Seconds between two attempts at most.
    """

    def __init__(
        self, journal: Journal, sinks: Sequence[Sink], say: Say, longest_pause: float = _LONGEST_PAUSE
    ) -> None:
        self._journal = journal
        self._say = say
        self._longest = longest_pause
        self._deadline: float | None = None
        self._changed = threading.Condition()
        self._news = 0
        self.failure: KeepADError | None = None
        journal.try_refused_again()
        self._sinks = list(sinks)
        self._threads = [threading.Thread(target=self._run, args=(sink,), daemon=True) for sink in sinks]
        for thread in self._threads:
            thread.start()

    def wake(self) -> None:
        """Tell the threads that the journal holds more."""
        with self._changed:
            self._news += 1
            self._changed.notify_all()

    def finish(self, seconds: float) -> int:
        """Deliver for at most so long, then stop; returns how many messages wait for the next start."""
        with self._changed:
            self._deadline = time.monotonic() + seconds
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        return sum(self._journal.undelivered(sink.name) for sink in self._sinks)

    def _run(self, sink: Sink) -> None:
        try:
            self._deliver_all(sink)
        except KeepADError as error:  # the journal itself
            self.failure = error
        finally:
            sink.close()

    def _deliver_all(self, sink: Sink) -> None:
        while True:
            with self._changed:
                news = self._news
            waiting = self._journal.waiting(sink.name)
            for number, message in waiting:
                if not self._deliver_one(sink, number, message):
                    return
            if waiting:
                continue
            with self._changed:
                if self._deadline is not None:
                    return
                if news == self._news:
                    self._changed.wait()

    def _deliver_one(self, sink: Sink, number: int, message: dict[str, object]) -> bool:
        """Deliver one message, however long it takes; False if the time is up."""
        failures = refusals = 0
        while True:
            try:
                sink.deliver(message)
            except DeliveryError as error:
                failures += 1
                refusals += isinstance(error, RefusedError)
                if refusals == _REFUSALS:
                    self._say(f"put aside: {error}; {message['id']} is tried again at the next start.")
                    self._journal.refused(sink.name, number, str(error))
                    return True
                if failures == 1:
                    self._say(f"cannot deliver, trying again: {error}")
                if not self._pause(min(self._longest, _FIRST_PAUSE * 2 ** min(failures - 1, 10))):
                    return False
            else:
                if failures:
                    self._say(f"{sink.name} is back")
                self._journal.delivered(sink.name, number)
                return self._deadline is None or time.monotonic() < self._deadline
            if self._deadline is not None and time.monotonic() >= self._deadline:
                return False

    def _pause(self, seconds: float) -> bool:
        """Wait, a little at random so that many watches do not knock together; False once the time is up."""
        until = time.monotonic() + seconds * random.uniform(0.5, 1.0)
        with self._changed:
            while True:
                now = time.monotonic()
                end = until if self._deadline is None else min(until, self._deadline)
                if now >= end:
                    return self._deadline is None or now < self._deadline
                self._changed.wait(end - now)
