"""Watching a folder: one result for every file, as soon as it is completely written."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from keepad.console import Say
from keepad.detector import Detector
from keepad.errors import KeepADError
from keepad.images import image_files, is_image_name
from keepad.model_digest import model_digest
from keepad.references.teaching import digest_of_file
from keepad.watch.arrivals import Arrivals, signature_of
from keepad.watch.delivery import Delivery
from keepad.watch.drift import DriftAlarm
from keepad.watch.journal import Event, Journal, Source
from keepad.watch.messages import of_error, of_prediction

_RESCAN = 60.0  # seconds; systems lose notices when many files come at once, and network shares send none
_RESCAN_SHARE = 0.05  # of the time at most


@dataclass(frozen=True)
class Patience:
    """How long to wait for files, in seconds.

    Attributes:
        settle: Size and time of a file stay the same for so long before it is read.
        unreadable: A file that cannot be read is tried again until it was the same for so long.
        idle: The watch ends when nothing came for so long; it never does if None.
    """

    settle: float = 0.5
    unreadable: float = 10.0
    idle: float | None = None


class Recorder:
    """Turns predictions into events in the journal, and wakes the delivery.

    Args:
        detector: The detector.
        journal: The journal.
        delivery: Delivers what the journal holds.
        drift: Watch for drift, or None.
    """

    def __init__(self, detector: Detector, journal: Journal, delivery: Delivery, drift: DriftAlarm | None) -> None:
        self.detector = detector
        self.journal = journal
        self.model = model_digest(detector)
        self._delivery = delivery
        self._drift = drift

    def add(self, event: Event, source: Source | None = None, position: str | None = None) -> None:
        """Store a result with where it came from, and the alarm that it may raise, in one transaction."""
        alarms = [] if self._drift is None else self._drift.after(event)
        number = self.journal.record([event, *alarms], source, position)
        if self._drift is not None:
            self._drift.stored(number)
        self._delivery.wake()
        if self._delivery.failure is not None:
            raise self._delivery.failure


class FolderWatch:
    """Watches a folder and all folders below it.

    Args:
        folder: The folder.
        recorder: Takes the results.
        patience: How long to wait for files.
        say: Called with a line for everything worth knowing.
        poll: Look for changes instead of waiting for notices, which network shares do not send.
    """

    def __init__(self, folder: Path, recorder: Recorder, patience: Patience, say: Say, *, poll: bool = False) -> None:
        if not folder.is_dir():
            raise KeepADError(f"there is no folder {folder} to watch; make it first.")
        self._folder = Path(os.path.abspath(folder))  # a restart elsewhere must find the same paths
        self._recorder = recorder
        self._patience = patience
        self._say = say
        self._poll = poll
        self._arrivals = Arrivals(patience.settle)
        self._next_scan = 0.0

    def run(self, stop: threading.Event) -> int:
        """Watch until `stop` is set; returns the number of results."""
        done, last = 0, time.monotonic()
        for changed in self._notices(stop):
            for path in changed:
                self._see(path)
            self._scan_now_and_then()
            for path in self._arrivals.ready():
                if stop.is_set():
                    break
                if self._process(path):
                    done += 1
                last = time.monotonic()
            if len(self._arrivals):
                last = time.monotonic()
            if stop.is_set() or (self._patience.idle is not None and time.monotonic() - last >= self._patience.idle):
                break
        return done

    def skip_existing(self) -> int:
        """Note all files that are there, without results; returns their number."""
        count = 0
        for path in image_files(self._folder):
            signature = signature_of(path)
            if signature is not None and not self._recorder.journal.knows(path, signature):
                self._recorder.journal.skip(Source(path, signature, ""))
                count += 1
        return count

    def _notices(self, stop: threading.Event) -> Iterator[list[Path]]:
        """Paths that changed; an empty list every tenth of a second without any."""
        try:
            from watchfiles import watch
        except ImportError as error:
            raise KeepADError("watching a folder needs watchfiles; pip install 'keepad[watch]' brings it.") from error
        try:
            for changes in watch(
                self._folder,
                watch_filter=None,
                debounce=100,
                step=50,
                stop_event=stop,
                rust_timeout=100,
                yield_on_timeout=True,
                force_polling=self._poll or None,
                ignore_permission_denied=True,
            ):
                yield [Path(path) for _, path in changes]
        except (OSError, RuntimeError) as error:  # the limit on inotify watches, a folder that went away
            raise KeepADError(f"{self._folder} cannot be watched: {error}; try --poll.") from error

    def _see(self, path: Path) -> None:
        if any(part.startswith(".") for part in path.relative_to(self._folder).parts):
            return
        if path.is_dir():  # files may have come before the system began to watch it
            for file in image_files(path):
                self._arrivals.see(file)
        elif is_image_name(path.name):
            self._arrivals.see(path)

    def _scan_now_and_then(self) -> None:
        started = time.monotonic()
        if started < self._next_scan:
            return
        if not self._folder.is_dir():
            raise KeepADError(f"the folder {self._folder} is gone; what came before has its results.")
        for path in image_files(self._folder):
            signature = signature_of(path)
            if signature is not None and not self._recorder.journal.knows(path, signature):
                self._arrivals.see(path)
        ended = time.monotonic()
        self._next_scan = ended + max(_RESCAN, (ended - started) / _RESCAN_SHARE)

    def _process(self, path: Path) -> bool:
        """Record the result of a file, unless it has one; False where it has none now."""
        journal, signature = self._recorder.journal, signature_of(path)
        if signature is None or journal.knows(path, signature):
            self._arrivals.forget(path)
            return False
        source = Source(path, signature, digest_of_file(path))
        if source.digest and journal.holds(source):
            self._arrivals.forget(path)
            return False
        uri = str(path)
        try:
            event = of_prediction(self._recorder.detector(path), uri, self._recorder.model)
        except KeepADError as error:
            if self._arrivals.wait_longer(path, self._patience.unreadable):
                return False
            event = of_error(str(error), uri, self._recorder.model)
        if signature_of(path) != signature:
            return False  # it changed meanwhile: still noted, hence looked at again
        self._arrivals.forget(path)
        self._recorder.add(event, source)
        if event.message["error"] is not None:
            self._say(f"no result: {event.message['error']}")
        return True
