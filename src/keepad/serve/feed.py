"""What a service has seen since it was started: counters, a histogram of scores, the last results, and drift.

Only numbers and names are kept, never an image. Everything here runs in the event loop, so nothing is locked.
"""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from keepad.decisions import DriftState, DriftWatch
from keepad.decisions.drift import MIN_GOOD
from keepad.decisions.stream import StreamImage, extras_of, quantities_of
from keepad.prediction import Prediction
from keepad.references.profile import Profile
from keepad.serve.errors import RefusedError

BINS = 40
_REMEMBERED = 500  # results that can be asked for
_FALSE_ALARMS = 0.01


@dataclass
class Stream:
    """The images of one profile, or of the zero-shot model, in the order of their results.

    Attributes:
        images: Number of images.
        verdicts: How many had which verdict.
        bins: Histogram of the scores in [0, 1].
        last: Scores and other quantities of the last images, newest last.
        drifting: Watches for drift, or None while nobody said what is normal.
        state: Where that stands after the last image.
        good: Number of images that it takes as normal.
        profile: The profile behind the last score, or None.
    """

    images: int = 0
    verdicts: Counter[str] = field(default_factory=Counter)
    bins: list[int] = field(default_factory=lambda: [0] * BINS)
    last: deque[StreamImage] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))
    drifting: DriftWatch | None = None
    state: DriftState | None = None
    good: int = 0
    profile: Profile | None = None

    def follow(self, profile: Profile | None) -> None:
        """Take the calibration of the profile as normal; one that was changed makes other scores."""
        if profile is self.profile:
            return
        self.profile, self.drifting, self.state = profile, None, None
        self.last.clear()
        calibrated = None if profile is None else profile.calibrated
        if calibrated is not None and len(calibrated.scores) >= MIN_GOOD:
            self.watch([StreamImage("", score, {}) for score in calibrated.scores])

    def add(self, score: float, verdict: str, extras: Mapping[str, float]) -> None:
        """Count one image."""
        self.images += 1
        self.verdicts[verdict] += 1
        self.bins[min(BINS - 1, max(0, int(score * BINS)))] += 1
        self.last.append(StreamImage("", score, dict(extras)))
        if self.drifting is not None:
            self.state = self.drifting.update({"score": score, **extras})

    def watch(self, good: Sequence[StreamImage]) -> None:
        """Watch for drift away from these images, from the next one on: scores, and light and focus where known."""
        self.drifting = DriftWatch(quantities_of(good), false_alarms=_FALSE_ALARMS)
        self.state, self.good = None, len(good)

    def drift(self) -> dict[str, Any]:
        """Where the watch for drift stands, ready for JSON."""
        if self.drifting is None:
            return {"state": "off", "needed": MIN_GOOD, "available": len(self.last)}
        described: dict[str, Any] = {"state": "watching", "good": self.good, "images": 0, "false_alarms": _FALSE_ALARMS}
        state = self.state
        if state is None:
            return described
        described |= {
            "images": state.images,
            "statistic": state.statistic,
            "limit": state.limit,
            "p_value": state.p_value,
        }
        if state.drift:
            described |= {"state": "drift", "since": state.since, "alarm": state.alarm, "kind": state.kind}
            described["quantity"] = self.drifting.alarm
            described["changes"] = [
                {
                    "name": change.name,
                    "before": change.before,
                    "after": change.after,
                    "shift": change.shift if math.isfinite(change.shift) else None,
                }
                for change in self.drifting.what_changed()
            ]
        return described


class Feed:
    """The streams of a service, and its last results."""

    def __init__(self) -> None:
        self.started = time.time()
        self.errors = 0
        self._streams: dict[str, Stream] = {}
        self._rows: deque[dict[str, Any]] = deque(maxlen=_REMEMBERED)
        self._number = 0

    def add(self, stream: str, prediction: Prediction, described: dict[str, Any]) -> None:
        """Count one result."""
        verdict = verdict_of(described)
        self.stream(stream).follow(prediction.profile)
        self.stream(stream).add(prediction.pred_score, verdict, extras_of(described))
        row = {"name": described["name"], "profile": stream, "score": prediction.pred_score, "verdict": verdict}
        row |= {"p_value": described.get("p_value"), "keep": prediction.keep_final, "point": prediction.point}
        self._append(row | {"ms": 1e3 * prediction.seconds, "error": None})

    def add_error(self, stream: str, name: str, sentence: str) -> None:
        """Count an image that could not be used."""
        self.errors += 1
        self._append({"name": name, "profile": stream, "verdict": "error", "error": sentence})

    def _append(self, row: dict[str, Any]) -> None:
        self._number += 1
        self._rows.append({"number": self._number, "time": time.time(), **row})

    def stream(self, name: str) -> Stream:
        """The stream of that name, empty at first."""
        return self._streams.setdefault(name, Stream())

    def forget(self, name: str) -> None:
        """Forget the stream of a profile that is gone."""
        self._streams.pop(name, None)

    def watch(self, name: str, count: int) -> Stream:
        """Watch a stream for drift away from its last `count` images.

        Raises:
            RefusedError: 409, there are fewer.
        """
        stream = self.stream(name)
        if not MIN_GOOD <= count <= len(stream.last):
            raise RefusedError(
                409, f"drift is watched against {MIN_GOOD} to {len(stream.last)} of the last images, not {count}."
            )
        stream.watch(list(stream.last)[-count:])
        return stream

    def describe(self, name: str, after: int) -> dict[str, Any]:
        """Counters, histogram and drift of a stream, and the last results of all streams behind number `after`."""
        stream = self._streams.get(name, Stream())
        return {
            "started": self.started,
            "images": sum(other.images for other in self._streams.values()),
            "errors": self.errors,
            "stream": {
                "name": name,
                "images": stream.images,
                "verdicts": dict(stream.verdicts),
                "histogram": list(stream.bins),
                "drift": stream.drift(),
            },
            "last": self._number,
            "results": [row for row in self._rows if row["number"] > after],
        }


def verdict_of(described: dict[str, Any]) -> str:
    """ok, review or defect by a calibration; else by the threshold, or unknown without one."""
    verdict = described.get("verdict")
    if verdict is not None:
        return str(verdict)
    label = described["pred_label"]
    return "unknown" if label is None else "defect" if label else "ok"
