"""One watch from its settings to its end: journal, sinks, drift, and the source."""

from __future__ import annotations

import hashlib
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import platformdirs

from keepad.console import Say
from keepad.decisions.stream import read_stream
from keepad.detector import Detector
from keepad.errors import KeepADError
from keepad.files import locked, writable_folder
from keepad.model_digest import model_digest
from keepad.watch.camera import Stream, StreamWatch, stream_of
from keepad.watch.delivery import Delivery
from keepad.watch.drift import DriftAlarm, DriftSettings
from keepad.watch.journal import Journal
from keepad.watch.sinks import Sink, sink_of
from keepad.watch.watching import FolderWatch, Patience, Recorder

_FLUSH = 5.0  # seconds for messages that are still under way at the end


@dataclass(frozen=True)
class WatchSettings:
    """What to watch, and where results go.

    Attributes:
        source: A folder, `camera:0`, a URL or a video file.
        to: Sinks, as `sink_of` reads them.
        journal: The journal; one for source and sinks in the user's state folder if None.
        good: Number of first results that are good, or a predictions.jsonl of good images; None leaves drift alone.
        false_alarms: Highest probability of a drift alarm in 10,000 images without drift.
        patience: How long to wait for files.
        every: Seconds between the frames of a stream.
        poll: Look for changes of a folder instead of waiting for notices.
        new_only: Leave out files that are there before the first start.
    """

    source: str
    to: Sequence[str] = ("jsonl:-",)
    journal: Path | None = None
    good: str | None = None
    false_alarms: float = 0.01
    patience: Patience = field(default_factory=Patience)
    every: float = 0.0
    poll: bool = False
    new_only: bool = False


@dataclass(frozen=True)
class WatchSummary:
    """What a watch did: number of results, and of messages that wait for its next start."""

    results: int
    undelivered: int


def check(settings: WatchSettings) -> tuple[Stream | None, list[Sink]]:
    """Stream (None for a folder) and sinks; refuses wrong ones, so that this is known before a model is loaded."""
    stream = stream_of(settings.source)
    if stream is None and not Path(settings.source).is_dir():
        raise KeepADError(
            f"there is no folder {settings.source} to watch; make it first, or name a video, camera:0 or a URL."
        )
    sinks = [sink_of(text) for text in settings.to]
    names = [sink.name for sink in sinks]
    for name in names:
        if names.count(name) > 1:
            raise KeepADError(f"{name} is named twice; name each receiver once.")
    return stream, sinks


def watch(detector: Detector, settings: WatchSettings, stop: threading.Event, say: Say) -> WatchSummary:
    """Score what comes, until `stop` is set or the source ends.

    Raises:
        KeepADError: Source, sinks or journal cannot be used, or another process uses the journal.
    """
    stream, sinks = check(settings)
    path = settings.journal or journal_of(settings)
    writable_folder(path.parent)
    with ExitStack() as stack:
        stack.enter_context(locked(path.parent, f".{path.name}.lock"))
        journal = Journal(path, [sink.name for sink in sinks])
        stack.callback(journal.close)
        drift = None
        if settings.good is not None:
            good = int(settings.good) if settings.good.isdecimal() else read_stream(Path(settings.good))[0]
            drift = DriftAlarm(journal, DriftSettings(good, settings.false_alarms, model_digest(detector)))
        delivery = Delivery(journal, sinks, say)
        watching = f"watching {settings.source if stream is None else stream.uri}; journal: {path}"
        results = left = 0
        try:
            recorder = Recorder(detector, journal, delivery, drift)
            if stream is not None:
                say(watching)
                results = StreamWatch(stream, recorder, settings.every, say).run(stop)
            else:
                folder = FolderWatch(Path(settings.source), recorder, settings.patience, say, poll=settings.poll)
                if settings.new_only and not journal.about("watched"):
                    say(f"left out: {folder.skip_existing()} files that are there already")
                journal.set_about("watched", "yes")
                say(watching)
                results = folder.run(stop)
        finally:
            left = delivery.finish(_FLUSH)
    return WatchSummary(results, left)


def journal_of(settings: WatchSettings) -> Path:
    """The default journal: one for each source and list of sinks."""
    stream = stream_of(settings.source)
    source = os.path.abspath(settings.source) if stream is None or not stream.live else stream.uri
    key = hashlib.sha256("\n".join([source, *(sink_of(text).name for text in settings.to)]).encode()).hexdigest()[:12]
    return Path(platformdirs.user_state_dir("keepad", appauthor=False)) / "watch" / f"{key}.sqlite"


@contextmanager
def stopping_on_signals() -> Iterator[threading.Event]:
    """An event that SIGTERM and SIGINT set, so that the image under way is finished; a second signal ends at once."""
    stop = threading.Event()

    def handle(number: int, frame: FrameType | None) -> None:
        stop.set()
        signal.signal(number, before[signal.Signals(number)])

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    for number in before:
        signal.signal(number, handle)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
