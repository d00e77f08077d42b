"""Drift of a watched stream: the watch of keepad.decisions, carried over restarts by the journal."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from keepad.decisions import DriftMonitor, DriftWatch
from keepad.decisions.stream import StreamImage, quantities_of
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
        """Equal for settings with which a watch can go on."""
        good = self.good if isinstance(self.good, int) else [image.score for image in self.good]
        return hashlib.sha256(json.dumps([good, self.false_alarms, self.model]).encode()).hexdigest()


class DriftAlarm:
    """Feeds results to a drift watch; one alarm, once, whatever happens between image and alarm.

    Args:
        journal: Holds results and the saved watch.
        settings: Good images and rate of false alarms.

    Raises:
        KeepADError: Too few good images.
    """

    def __init__(self, journal: Journal, settings: DriftSettings) -> None:
        self._journal = journal
        self._settings = settings
        self._digest = settings.digest()
        self._good: list[StreamImage] = []
        self._watch: DriftWatch | None = None
        if isinstance(settings.good, int):
            DriftMonitor([0.0] * settings.good, false_alarms=settings.false_alarms)  # refuses too few of them now
        else:
            self._begin(settings.good)
        self._unsaved = 0
        self._number = self._restore()
        for number, score, extras in journal.scores(self._number):
            self._feed(score, extras)
            self._number = number
        self._save()

    def after(self, result: Event) -> list[Event]:
        """The alarm, if this result raises it; the caller stores both events together."""
        if result.score is None:
            return []
        before = self._watch is not None and self._watch.alarm
        self._feed(result.score, result.extras or {})
        if before or self._watch is None or self._watch.alarm is None:
            return []
        return [of_drift(self._watch.alarm, self._watch.state, self._watch.what_changed())]

    def stored(self, number: int) -> None:
        """Note the number under which a result was stored."""
        self._number = number
        self._unsaved += 1
        if self._unsaved >= _SAVED_EVERY:
            self._save()

    def _feed(self, score: float, extras: Mapping[str, float]) -> None:
        if self._watch is not None:
            self._watch.update({"score": score, **extras})
            return
        self._good.append(StreamImage("", score, dict(extras)))
        if len(self._good) == self._settings.good:
            self._begin(self._good)

    def _begin(self, good: Sequence[StreamImage]) -> None:
        self._watch = DriftWatch(quantities_of(good), false_alarms=self._settings.false_alarms)

    def _restore(self) -> int:
        """Go on with the saved watch, if it is of these settings; the number of the last event in it."""
        saved = self._journal.about("drift")
        values = {} if saved is None else json.loads(saved)
        if values.get("settings") != self._digest:
            return self._journal.last()  # earlier results are of another model, or from before the user asked
        self._good = [StreamImage("", score, extras) for score, extras in values["good"]]
        if values["watch"] is not None:
            self._watch = DriftWatch.from_dict(values["watch"])
        return int(values["number"])

    def _save(self) -> None:
        self._unsaved = 0
        values = {
            "settings": self._digest,
            "number": self._number,
            "good": [] if self._watch is not None else [(image.score, image.extras) for image in self._good],
            "watch": None if self._watch is None else self._watch.to_dict(),
        }
        self._journal.set_about("drift", json.dumps(values))
