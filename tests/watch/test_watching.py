"""keepad watch: one result per file, however it arrives and however often the watch is stopped."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from keepad.detector import Detector
from keepad.errors import KeepADError
from keepad.watch.session import WatchSettings, WatchSummary, check, watch
from keepad.watch.watching import Patience
from receivers import Receiver, lines, png, wait_for

FAST = Patience(settle=0.1, unreadable=0.6)


class Running:
    """A watch in a thread."""

    def __init__(self, detector: Detector, settings: WatchSettings) -> None:
        self.said: list[str] = []
        self._stop = threading.Event()
        self._result: list[WatchSummary | BaseException] = []
        self._thread = threading.Thread(target=self._run, args=(detector, settings), daemon=True)
        self._thread.start()
        wait_for(lambda: bool(self.said) or bool(self._result))

    def _run(self, detector: Detector, settings: WatchSettings) -> None:
        try:
            self._result.append(watch(detector, settings, self._stop, self.said.append))
        except BaseException as error:
            self._result.append(error)

    def stop(self) -> WatchSummary:
        self._stop.set()
        self._thread.join(20)
        (result,) = self._result
        assert isinstance(result, WatchSummary), result
        return result


@pytest.fixture
def settings(tmp_path: Path) -> Callable[..., WatchSettings]:
    (tmp_path / "in").mkdir()

    def make(*more: str, **changes: Any) -> WatchSettings:
        to = [f"jsonl:{tmp_path / 'out.jsonl'}", *more]
        fields = {"source": str(tmp_path / "in"), "to": to, "journal": tmp_path / "j.sqlite", "patience": FAST}
        return WatchSettings(**{**fields, **changes})

    return make


def results(tmp_path: Path) -> list[dict[str, Any]]:
    path = tmp_path / "out.jsonl"
    return lines(path) if path.exists() else []


def test_files_that_arrive_in_every_way_have_one_result_each_over_restarts(
    tmp_path: Path, detector: Detector, settings: Callable[..., WatchSettings], receiver: Receiver
) -> None:
    folder, number = tmp_path / "in", 0
    receiver.codes = [503] * 3
    for restart in range(3):
        running = Running(detector, settings(f"webhook:{receiver.url}"))
        for _ in range(3):
            (folder / f"whole{number}.png").write_bytes(png(number))
            number += 1
        parts = png(number)
        with (folder / f"parts{number}.png").open("wb", buffering=0) as file:  # open all the time
            for start in range(0, len(parts), len(parts) // 4):
                file.write(parts[start : start + len(parts) // 4])
                time.sleep(0.08)
        number += 1
        parts = png(number)
        for start in range(0, len(parts), len(parts) // 2 + 1):  # closed in between, for longer than `settle`
            with (folder / f"pause{number}.png").open("ab") as file:
                file.write(parts[start : start + len(parts) // 2 + 1])
            time.sleep(0.25)
        number += 1
        (tmp_path / "elsewhere.png").write_bytes(png(number))
        (tmp_path / "elsewhere.png").rename(folder / f"moved{number}.png")
        number += 1
        below = folder / f"below{restart}" / "deep"
        below.mkdir(parents=True)
        (below / "new.png").write_bytes(png(number))
        number += 1
        if restart != 1:  # the second is stopped in the middle of its work
            wait_for(lambda: len(results(tmp_path)) == number)  # noqa: B023 - waits at once
        running.stop()
        for known in list(folder.glob("whole*.png")):
            known.rename(known.with_name(f"again-{known.name}"))
            os.utime(known.with_name(f"again-{known.name}"))
    found = results(tmp_path)
    assert len(found) == number
    assert set(Counter(row["uri"] for row in found).values()) == {1}
    assert all(row["error"] is None for row in found)
    expected = {row["uri"]: row["pred_score"] for row in found}
    one = folder / "below0" / "deep" / "new.png"
    assert expected[str(one)] == pytest.approx(detector(one).pred_score, abs=1e-6)
    assert {row["id"] for row in receiver.taken} == {row["id"] for row in found}


def test_a_file_that_is_changed_has_a_second_result(
    tmp_path: Path, detector: Detector, settings: Callable[..., WatchSettings]
) -> None:
    running = Running(detector, settings())
    for number in (1, 2):
        (tmp_path / "in" / "latest.png").write_bytes(png(number))
        wait_for(lambda: len(results(tmp_path)) == number)  # noqa: B023 - waits at once
    assert running.stop().results == 2


def test_a_broken_image_is_an_error_and_other_files_are_left_alone(
    tmp_path: Path, detector: Detector, settings: Callable[..., WatchSettings]
) -> None:
    folder = tmp_path / "in"
    (folder / "broken.png").write_bytes(png(1)[:300])
    (folder / "notes.txt").write_text("no image")
    (folder / ".hidden.png").write_bytes(png(2))
    (folder / "good.png").write_bytes(png(3))
    running = Running(detector, settings())
    wait_for(lambda: len(results(tmp_path)) == 2)
    assert running.stop().results == 2
    by_name = {Path(row["uri"]).name: row for row in results(tmp_path)}
    assert by_name["good.png"]["error"] is None
    assert "broken.png" in by_name["broken.png"]["error"]
    assert by_name["broken.png"]["pred_score"] is None
    assert len(by_name["good.png"]["model"]) == 16


def test_new_only_leaves_out_what_was_there(
    tmp_path: Path, detector: Detector, settings: Callable[..., WatchSettings]
) -> None:
    (tmp_path / "in" / "old.png").write_bytes(png(1))
    running = Running(detector, settings(new_only=True))
    (tmp_path / "in" / "new.png").write_bytes(png(2))
    wait_for(lambda: len(results(tmp_path)) == 1)
    running.stop()
    (tmp_path / "in" / "meanwhile.png").write_bytes(png(3))  # a restart does not skip what came while it was down
    running = Running(detector, settings(new_only=True))
    wait_for(lambda: len(results(tmp_path)) == 2)
    running.stop()
    assert [Path(row["uri"]).name for row in results(tmp_path)] == ["new.png", "meanwhile.png"]


def test_a_journal_is_used_by_one_watch(
    tmp_path: Path, detector: Detector, settings: Callable[..., WatchSettings]
) -> None:
    running = Running(detector, settings())
    with pytest.raises(KeepADError, match="is in use by another keepad"):
        watch(detector, settings(), threading.Event(), lambda line: None)
    running.stop()
    watch(detector, settings(patience=Patience(idle=0.0)), threading.Event(), lambda line: None)


def test_a_drift_alarm_is_sent_once_over_restarts(
    tmp_path: Path, detector: Detector, settings: Callable[..., WatchSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(0)
    folder, idle = tmp_path / "in", Patience(settle=0.0, unreadable=0.0, idle=0.3)
    scores = iter([*random.normal(0.2, 0.02, 30), *random.normal(0.6, 0.02, 60)])

    class Drifting(Detector):
        def __call__(self, image: Any, point: Any = None) -> Any:
            prediction = super().__call__(image, point)
            object.__setattr__(prediction, "pred_score", float(next(scores)))
            return prediction

    drifting = Drifting(detector.network, detector.point)
    for part in range(3):
        for number in range(30):
            (folder / f"{part}-{number:02}.png").write_bytes(png(100 * part + number))
        watch(drifting, settings(good="25", patience=idle), threading.Event(), lambda line: None)
    found = results(tmp_path)
    alarms = [row for row in found if row["event"] == "drift"]
    assert len(found) == 91
    assert len(alarms) == 1
    assert (alarms[0]["quantity"], alarms[0]["kind"]) == ("score", "higher")
    assert 4 <= alarms[0]["since"] <= 8  # counted after the 25 good ones
    assert any(change["name"] == "score" for change in alarms[0]["changes"])


@pytest.mark.parametrize(
    ("source", "to", "words"),
    [
        ("nowhere", "jsonl:-", "no folder nowhere"),
        ("camera:front", "jsonl:-", "camera:0"),
        ("gopher://user:hidden@host/x", "jsonl:-", "cannot be watched"),
        (".", "nonsense", "cannot go to"),
    ],
)
def test_wrong_settings_are_refused_in_a_sentence(source: str, to: str, words: str) -> None:
    with pytest.raises(KeepADError, match=words) as caught:
        check(WatchSettings(source, [to]))
    assert "hidden" not in str(caught.value)


def test_a_sink_that_is_named_twice_is_refused() -> None:
    with pytest.raises(KeepADError, match="named twice"):
        check(WatchSettings(".", ["jsonl:a", "jsonl:./a"]))
