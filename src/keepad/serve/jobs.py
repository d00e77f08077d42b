"""Long work: one job after the other in a thread of its own, with progress, and able to be stopped."""

from __future__ import annotations

import queue
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from keepad.console import Advance, Say
from keepad.errors import KeepADError
from keepad.serve.errors import RefusedError
from keepad.serve.worker import StoppedError

_WAITING = 8  # jobs that wait at most
_REMEMBERED = 50  # finished jobs that can still be asked for
_LINES = 50

State = Literal["waiting", "running", "done", "failed", "stopped"]


class JobStoppedError(Exception):
    """Somebody stopped the job."""


@dataclass(eq=False)
class Job:
    """One piece of long work.

    Attributes:
        id: Name that cannot be guessed.
        kind: What it does: teach, calibrate, add.
        profile: The profile that it makes or changes.
        state: Where it stands.
        done: Steps done.
        total: Steps in all; 0 while unknown.
        lines: What the user should know.
        error: Why it failed, or None.
        result: What came out, ready for JSON, or None.
    """

    kind: str
    profile: str
    function: Callable[[Job], dict[str, Any]]
    id: str = field(default_factory=lambda: secrets.token_urlsafe(12))
    state: State = "waiting"
    done: int = 0
    total: int = 0
    lines: list[str] = field(default_factory=list)
    error: str | None = None
    result: dict[str, Any] | None = None
    stop: threading.Event = field(default_factory=threading.Event)

    def say(self, line: str) -> None:
        """Add a line for the user."""
        if len(self.lines) < _LINES:
            self.lines.append(line)

    def check(self) -> None:
        """Raise JobStoppedError if somebody stopped the job."""
        if self.stop.is_set():
            raise JobStoppedError

    @contextmanager
    def progress(self, title: str, total: int) -> Iterator[Advance]:
        """Progress as the library reports it."""
        self.total, self.done = total, 0

        def advance(steps: int = 1) -> None:
            self.check()
            self.done += steps

        yield advance

    def describe(self) -> dict[str, Any]:
        """Everything a client may know, ready for JSON."""
        return {
            "id": self.id,
            "kind": self.kind,
            "profile": self.profile,
            "state": self.state,
            "done": self.done,
            "total": self.total,
            "lines": list(self.lines),
            "error": self.error,
            "result": self.result,
        }


class Jobs:
    """Runs jobs one after the other.

    Args:
        say: Called with a line for every failure that is not the client's.
    """

    def __init__(self, say: Say) -> None:
        self._say = say
        self._known: dict[str, Job] = {}
        self._queue: queue.Queue[Job | None] = queue.Queue()
        self._lock = threading.Lock()
        self._closing = False
        self._thread = threading.Thread(target=self._work, name="keepad-jobs", daemon=True)
        self._thread.start()

    def start(self, kind: str, profile: str, function: Callable[[Job], dict[str, Any]]) -> Job:
        """A new job.

        Raises:
            RefusedError: 429, too many wait already; 503, the service is stopping.
        """
        job = Job(kind, profile, function)
        with self._lock:
            if self._closing:
                raise RefusedError(503, "the service is stopping.")
            if sum(other.state == "waiting" for other in self._known.values()) >= _WAITING:
                raise RefusedError(429, f"{_WAITING} jobs wait already; try again when one of them is done.", 10)
            finished = [id for id, other in self._known.items() if other.state not in ("waiting", "running")]
            for id in finished[: len(self._known) - _REMEMBERED]:
                del self._known[id]
            self._known[job.id] = job
            self._queue.put(job)
        return job

    def get(self, id: str) -> Job:
        """The job of that name.

        Raises:
            RefusedError: 404, there is none.
        """
        with self._lock:
            job = self._known.get(id)
        if job is None:
            raise RefusedError(404, "there is no such job; finished ones are forgotten after a while.")
        return job

    def stop(self, id: str) -> Job:
        """The job of that name, which ends before its next step."""
        job = self.get(id)
        job.stop.set()
        return job

    def close(self, timeout: float) -> bool:
        """Stop all jobs; whether they ended within `timeout` seconds."""
        with self._lock:
            self._closing = True
            for job in self._known.values():
                job.stop.set()
        self._queue.put(None)
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _work(self) -> None:
        while (job := self._queue.get()) is not None:
            started = time.monotonic()
            job.state = "running"
            try:
                job.check()
                job.result = job.function(job)
                job.state = "done"
            except (JobStoppedError, StoppedError, CancelledError):
                job.state = "stopped"
            except KeepADError as error:
                job.error, job.state = str(error), "failed"
            except RefusedError as refusal:
                job.error, job.state = refusal.sentence, "failed"
            except Exception as error:
                self._say(
                    f"{job.kind} failed after {time.monotonic() - started:.0f} s: {type(error).__name__}: {error}"
                )
                job.error, job.state = "the service could not do this; its log says why.", "failed"
