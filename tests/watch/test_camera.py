"""Streams: each frame of a video once over restarts, the newest frame of a camera."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from keepad.detector import Detector
from keepad.errors import KeepADError
from keepad.watch import session
from keepad.watch.camera import Stream, stream_of
from keepad.watch.session import WatchSettings, watch
from receivers import lines


def write_video(path: Path, frames: int) -> None:
    cv2 = pytest.importorskip("cv2")
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*"MJPG"), 10.0, (64, 48))
    for number in range(frames):
        writer.write(np.full((48, 64, 3), 20 * number, np.uint8))
    writer.release()


def settings(tmp_path: Path, source: str, every: float = 0.0) -> WatchSettings:
    return WatchSettings(source, [f"jsonl:{tmp_path / 'out.jsonl'}"], tmp_path / "j.sqlite", every=every)


def test_each_frame_of_a_video_once_over_restarts(tmp_path: Path, detector: Detector) -> None:
    write_video(tmp_path / "line.avi", 8)
    own, stop = settings(tmp_path, str(tmp_path / "line.avi")), threading.Event()

    class Stopping(Detector):
        calls = 0

        def __call__(self, image: Any, point: Any = None) -> Any:
            Stopping.calls += 1
            if Stopping.calls == 3:
                stop.set()
            return super().__call__(image, point)

    assert watch(Stopping(detector.network, detector.point), own, stop, lambda line: None).results == 3
    assert watch(detector, own, threading.Event(), lambda line: None).results == 5
    assert watch(detector, own, threading.Event(), lambda line: None).results == 0
    found = lines(tmp_path / "out.jsonl")
    assert [row["frame"] for row in found] == list(range(8))
    assert [row["seconds_in"] for row in found] == [number / 10 for number in range(8)]


def test_frames_at_a_distance(tmp_path: Path, detector: Detector) -> None:
    write_video(tmp_path / "line.avi", 8)
    own = settings(tmp_path, str(tmp_path / "line.avi"), every=0.3)
    assert watch(detector, own, threading.Event(), lambda line: None).results == 3
    assert [row["frame"] for row in lines(tmp_path / "out.jsonl")] == [0, 3, 6]


def test_a_live_source_that_goes_away_is_opened_again(
    tmp_path: Path, detector: Detector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A video file stands for a camera: it ends at once, and every opening gives frames again."""
    write_video(tmp_path / "line.avi", 2)
    stop, said = threading.Event(), list[str]()
    live = Stream(str(tmp_path / "line.avi"), True, "rtsp://host/line")
    monkeypatch.setattr(session, "stream_of", lambda text: live)
    monkeypatch.setattr("keepad.watch.camera._PAUSES", (0.01,))

    def say(line: str) -> None:
        said.append(line)
        if "is back" in line:
            stop.set()

    watch(detector, settings(tmp_path, "ignored"), stop, say)
    assert any("gives no picture; trying again" in line for line in said)
    assert len(lines(tmp_path / "out.jsonl")) >= 2


def test_a_camera_that_never_gives_a_picture_and_a_broken_video_are_refused(
    tmp_path: Path, detector: Detector, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("cv2")
    monkeypatch.setattr("keepad.watch.camera._PAUSES", (0.01,))
    (tmp_path / "broken.mp4").write_bytes(b"no video")
    with pytest.raises(KeepADError, match="no video that OpenCV can read"):
        watch(detector, settings(tmp_path, str(tmp_path / "broken.mp4")), threading.Event(), lambda line: None)
    with pytest.raises(KeepADError, match="gives no picture"):
        watch(detector, settings(tmp_path, "http://127.0.0.1:9/stream"), threading.Event(), lambda line: None)


def test_what_a_source_names() -> None:
    assert stream_of("camera:1") == Stream(1, True, "camera:1")
    named = stream_of("rtsp://user:hidden@host/line")
    assert named == Stream("rtsp://user:hidden@host/line", True, "rtsp://host/line")
    assert stream_of(".") is None
