"""Drift of a watched stream: the monitor of keepad.decisions, carried over restarts by the journal."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

from keepad.decisions import DriftMonitor, DriftState
from keepad.decisions.stream import StreamImage, monitor_of
from keepad.watch.journal import Event, Journal
from keepad.watch.messages import of_drift

_SAVED_EVERY = 500  # results; those since the last save are gone through again at a start


@dataclass(frozen=True)
class DriftSettings:
    """How drift is watched.

    Attributes:
        good: Good images, or how many of the first results are good.
        false_alarms: Highest probability of an alarm in 10,000 images without drift.
        model: Digest of the model; another one makes other scores, so the watch for drift begins anew.
    """

    good: int | Sequence[StreamImage]
    false_alarms: float
    model: str

    def digest(self) -> str:
        """Equal for settings with which a monitor can go on."""
        good = self.good if isinstance(self.good, int) else [image.score for image in self.good]
        return hashlib.sha256(json.dumps([good, self.false_alarms, self.model]).encode()).hexdigest()


class DriftWatch:
    """Feeds results to a drift monitor; one alarm, once, whatever happens between image and alarm.

    Args:
        journal: Holds results and the saved monitor.
        settings: Good images and rate of false alarms.

    Raises:
        KeepADError: Too few good images.
    """

    def __init__(self, journal: Journal, settings: DriftSettings) -> None:
        self._journal = journal
        self._settings = settings
        self._digest = settings.digest()
        self._good: list[StreamImage] = []
        self._monitor: DriftMonitor | None = None
        self._state: DriftState | None = None
        self._alarmed = False
        if isinstance(settings.good, int):
            DriftMonitor([0.0] * settings.good, false_alarms=settings.false_alarms)  # refuses too few of them now
        else:
            self._begin(settings.good)
        self._unsaved = 0
        for number, score, extras in journal.scores(self._restore()):
            self._feed(score, extras)
            self._number = number
        self._save()

    def after(self, result: Event) -> list[Event]:
        """The alarm, if this result raises it; the caller stores both events together."""
        if result.score is None:
            return []
        before = self._alarmed
        self._feed(result.score, result.extras or {})
        if before or self._monitor is None or self._state is None or not self._state.drift:
            return []
        return [of_drift(self._state, self._monitor.what_changed())]

    def stored(self, number: int) -> None:
        """Note the number under which a result was stored."""
        self._number = number
        self._unsaved += 1
        if self._unsaved >= _SAVED_EVERY:
            self._save()

    def _feed(self, score: float, extras: dict[str, float]) -> None:
        if self._monitor is None:
            self._good.append(StreamImage("", score, extras))
            if len(self._good) == self._settings.good:
                self._begin(self._good)
            return
        self._state = self._monitor.update(score, **extras)
        self._alarmed = self._state.drift

    def _begin(self, good: Sequence[StreamImage]) -> None:
        self._monitor = monitor_of(good, self._settings.false_alarms)

    def _restore(self) -> int:
        """Go on with the saved monitor, if it is of these settings; the number of the last result in it."""
        saved = self._journal.about("drift")
        values = {} if saved is None else json.loads(saved)
        if values.get("settings") != self._digest:
            self._number = self._journal.last()  # earlier results are of another model, or from before the user asked
            return self._number
        self._number = int(values["number"])
        self._good = [StreamImage("", score, extras) for score, extras in values["good"]]
        if values["monitor"] is not None:
            self._monitor = DriftMonitor.from_dict(values["monitor"])
            self._alarmed = bool(values["alarmed"])
        return self._number

    def _save(self) -> None:
        self._unsaved = 0
        good = [] if self._monitor is not None else [(image.score, image.extras) for image in self._good]
        values = {
            "settings": self._digest,
            "number": self._number,
            "good": good,
            "monitor": None if self._monitor is None else self._monitor.to_dict(),
            "alarmed": self._alarmed,
        }
        self._journal.set_about("drift", json.dumps(values))
