"""Cameras and videos through OpenCV: a live source gives its newest frame, a video all of its frames once."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from PIL import Image

from keepad.arrays import Array
from keepad.console import Say
from keepad.errors import KeepADError
from keepad.references.teaching import digest_of_file
from keepad.watch.messages import of_error, of_prediction
from keepad.watch.sinks import without_password
from keepad.watch.watching import Recorder

_LIVE = ("rtsp", "rtsps", "http", "https", "rtmp", "udp", "tcp")
_PAUSES = (1.0, 2.0, 5.0, 10.0)  # seconds before a camera is opened again
_ATTEMPTS = 3  # of the first opening; a camera that was there once is waited for


@dataclass(frozen=True)
class Stream:
    """A camera or a video.

    Attributes:
        address: What OpenCV opens: a number, a URL or a file.
        live: Frames come by themselves; those that nobody takes are lost.
        uri: How results name it; without user and password.
    """

    address: int | str
    live: bool
    uri: str


def stream_of(text: str) -> Stream | None:
    """The stream that a source names (`camera:0`, a URL, a video file), or None for a folder."""
    kind, _, rest = text.partition(":")
    if kind == "camera":
        if not rest.isdecimal():
            raise KeepADError(f"{text!r} names no camera; write camera:0 for the first one.")
        return Stream(int(rest), True, text)
    if "://" in text:
        if kind not in _LIVE:
            raise KeepADError(f"{without_password(text)!r} cannot be watched; use one of {', '.join(_LIVE)}.")
        return Stream(text, True, without_password(text))
    return Stream(text, False, text) if Path(text).is_file() else None


class StreamWatch:
    """Scores the frames of a stream.

    Args:
        stream: The stream.
        recorder: Takes the results.
        every: Seconds between frames; 0 for each frame of a video, and for as many of a camera as the network can do.
        say: Called with a line when a camera goes away or comes back.
    """

    def __init__(self, stream: Stream, recorder: Recorder, every: float, say: Say) -> None:
        self._stream = stream
        self._recorder = recorder
        self._every = every
        self._say = say
        self._cv2 = _opencv()

    def run(self, stop: threading.Event) -> int:
        """Score frames until `stop` is set or the video ends; returns their number."""
        return self._camera(stop) if self._stream.live else self._video(stop)

    def _video(self, stop: threading.Event) -> int:
        path = Path(str(self._stream.address))
        capture = self._cv2.VideoCapture(str(path))
        try:
            if not capture.isOpened():
                raise KeepADError(f"{path} is no video that OpenCV can read; convert it, to MP4 for instance.")
            digest, rate = digest_of_file(path), capture.get(self._cv2.CAP_PROP_FPS) or 25.0
            first, done, due = self._first_frame(digest), 0, 0.0
            for number in _counted(capture, stop):
                if number / rate + 1e-9 >= due:
                    due = number / rate + self._every
                    if number >= first:
                        frame = capture.retrieve()[1]
                        self._score(frame, number, f"{digest} {number + 1}", seconds_in=round(number / rate, 3))
                        done += 1
            return done
        finally:
            capture.release()

    def _first_frame(self, digest: str) -> int:
        """The frame after the last one that has its result."""
        before, _, position = (self._recorder.journal.about("position") or "").partition(" ")
        return int(position) if before == digest and position.isdecimal() else 0

    def _camera(self, stop: threading.Event) -> int:
        done = failures = number = 0
        while not stop.is_set():
            with _Newest(self._cv2, self._stream) as newest:
                while not stop.is_set():
                    started = time.monotonic()
                    frame = newest.take(timeout=10.0, stop=stop)
                    if frame is None:
                        break
                    if failures:
                        self._say(f"{self._stream.uri} is back")
                        failures = 0
                    self._score(frame, number)
                    done, number = done + 1, number + 1
                    stop.wait(max(0.0, self._every - (time.monotonic() - started)))
            if stop.is_set():
                break
            failures += 1
            if not done and failures == _ATTEMPTS:
                raise KeepADError(f"{self._stream.uri} gives no picture; check its address and that it is switched on.")
            if failures == 1:
                self._say(f"{self._stream.uri} gives no picture; trying again")
            stop.wait(_PAUSES[min(failures, len(_PAUSES)) - 1])
        return done

    def _score(self, frame: Array | None, number: int, position: str | None = None, **more: Any) -> None:
        uri, model = self._stream.uri, self._recorder.model
        try:
            if frame is None:
                raise KeepADError(f"frame {number} of {uri} cannot be decoded.")
            image = Image.fromarray(self._cv2.cvtColor(frame, self._cv2.COLOR_BGR2RGB))
            event = of_prediction(self._recorder.detector(image), uri, model, frame=number, **more)
        except KeepADError as error:
            event = of_error(str(error), uri, model, frame=number, **more)
        self._recorder.add(event, position=position)


def _counted(capture: Any, stop: threading.Event) -> Iterator[int]:
    """Numbers of the frames, each grabbed when it is given out."""
    number = 0
    while not stop.is_set() and capture.grab():
        yield number
        number += 1


class _Newest:
    """Reads a live source in a thread, so that a slow network sees the newest frame and not a growing queue."""

    def __init__(self, cv2: ModuleType, stream: Stream) -> None:
        self._cv2 = cv2
        self._stream = stream
        self._changed = threading.Condition()
        self._frame: Array | None = None
        self._ended = False
        self._thread = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> _Newest:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._ended = True
        self._thread.join(timeout=2.0)  # a read that hangs is left to end by itself

    def take(self, timeout: float, stop: threading.Event) -> Array | None:
        """The newest frame, once; None where none comes."""
        until = time.monotonic() + timeout
        with self._changed:
            while self._frame is None and not self._ended and not stop.is_set() and time.monotonic() < until:
                self._changed.wait(0.1)
            frame, self._frame = self._frame, None
            return frame

    def _read(self) -> None:
        capture = self._cv2.VideoCapture(self._stream.address)
        try:
            while True:
                good, frame = capture.read()
                with self._changed:
                    if not good or self._ended:
                        return
                    self._frame = frame
                    self._changed.notify_all()
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()
            capture.release()


def _opencv() -> ModuleType:
    os.environ.setdefault("OPENCV_LOG_LEVEL", "ERROR")
    os.environ.setdefault("OPENCV_FFMPEG_LOGLEVEL", "8")  # its own messages would name the password of a camera
    try:
        import cv2
    except ImportError as error:
        raise KeepADError("cameras and videos need OpenCV; pip install 'keepad[camera]' brings it.") from error
    module: ModuleType = cv2
    return module
