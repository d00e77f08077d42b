"""Drift of a stream of images: a conformal test on their scores with a stated rate of false alarms.

Each score gets a smoothed conformal p-value against the good images and the stream so far. p-values against the good
images alone would not do: they share the chance of that one calibration set, and alarm in more than half of all streams
without drift (50 good images). Against everything so far they are independent and uniform while nothing drifts.

Eight bets on p-values that are not uniform run side by side: scores higher, lower, wider or narrower than before. Each
is a Shiryaev-Roberts sum of betting martingales, one started at every image. Their mean has the expectation t after t
images without drift, hence exceeds `limit` within `HORIZON` images with a probability of at most HORIZON / limit. All
bets are bounded and lose on p-values that are nearly uniform, so a few defective images are no drift.
"""

from __future__ import annotations

import bisect
import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from keepad.arrays import Array
from keepad.decisions.fields import Fields
from keepad.errors import KeepADError

HORIZON = 10_000  # images over which the false-alarm rate is stated
MIN_GOOD = 20  # images; fewer leave too little room for drift to show
_KINDS = ("higher", "lower", "higher", "lower", "higher", "lower", "wider", "narrower")  # of the scores, by bet
_REMEMBERED = 200  # images at either end of the stream whose values are kept for what_changed()
_LARGEST = 1e300  # sums stop here; far above any limit
_KEYS = (
    "name",
    "false_alarms",
    "seed",
    "images",
    "reference",
    "sums",
    "runs",
    "starts",
    "alarm",
    "first",
    "last",
    "good",
)


@dataclass(frozen=True)
class DriftState:
    """Where the test stands after an image.

    Attributes:
        images: Number of images so far, good ones not counted.
        p_value: Smoothed conformal p-value of the last image.
        statistic: Mean of the bets; about as large as `images` while nothing drifts.
        limit: Value of the statistic that raises the alarm.
        alarm: Number of the image (from 1) that raised it, or None. It stays raised.
        since: Number of the image from which scores differ, by the best bet's estimate; None without an alarm.
        kind: How scores differ: `higher`, `lower`, `wider` or `narrower`; None without an alarm.
    """

    images: int
    p_value: float
    statistic: float
    limit: float
    alarm: int | None = None
    since: int | None = None
    kind: str | None = None

    @property
    def drift(self) -> bool:
        """Whether the alarm was raised."""
        return self.alarm is not None

    @property
    def chance(self) -> float:
        """Upper limit of the probability that a stream of this length without drift reaches this statistic."""
        return min(1.0, self.images / self.statistic) if self.statistic > 0 else 1.0


@dataclass(frozen=True)
class Change:
    """One quantity before and after the drift began.

    Attributes:
        name: score, keep, brightness or whatever else was passed to `update`.
        before: Median before.
        after: Median after.
        shift: Difference of the medians in robust standard deviations before; infinite if there was no spread.
    """

    name: str
    before: float
    after: float
    shift: float


class DriftMonitor:
    """Watches the scores of a stream; one object for a file, a watched folder or a service.

    Example:
        ```python
        monitor = DriftMonitor(calibrated.scores, false_alarms=0.01)
        for prediction in detector.predict("photos/"):
            state = monitor.update(prediction.pred_score, keep=prediction.keep_final)
            if state.drift:
                print(state.since, state.kind, monitor.what_changed())
        ```

    Args:
        good: Scores of good images of the same product, camera and light; at least 20.
        false_alarms: Highest probability of an alarm within 10,000 images without drift.
        seed: Seed of the randomised ties; the same seed gives the same result.
        extras: Other values of the good images by name, for `what_changed`.
        name: What is watched, for `what_changed`; the test itself takes any numbers, such as the brightness.

    Raises:
        KeepADError: Too few good images, scores that are not finite, or a rate out of range.
    """

    def __init__(
        self,
        good: Sequence[float] | Array,
        *,
        false_alarms: float = 0.01,
        seed: int = 0,
        extras: Mapping[str, Sequence[float]] | None = None,
        name: str = "score",
    ) -> None:
        if not 0 < false_alarms < 1:
            raise KeepADError(f"{false_alarms:g} cannot be a rate of false alarms; it must lie between 0 and 1.")
        if len(good) < MIN_GOOD:
            raise KeepADError(f"{len(good)} good images are too few to see drift; use at least {MIN_GOOD}.")
        self._reference = sorted(_finite(score) for score in good)
        self._name = name
        self._good = {own: _remembered(values) for own, values in {name: good, **(extras or {})}.items()}
        self._false_alarms = false_alarms
        self._seed = seed
        self._images = 0
        self._sums = np.zeros(len(_KINDS))  # Shiryaev-Roberts
        self._runs = np.zeros(len(_KINDS))  # CUSUM of log bets; its last zero estimates when drift began
        self._starts = np.ones(len(_KINDS), np.int64)
        self._alarm: tuple[int, int, int] | None = None  # image of the alarm, of the beginning, bet
        self._first: list[dict[str, float]] = []
        self._last: deque[dict[str, float]] = deque(maxlen=_REMEMBERED)

    @property
    def limit(self) -> float:
        """Value of the statistic that raises the alarm."""
        return HORIZON / self._false_alarms

    @property
    def alarm(self) -> int | None:
        """Number of the image (from 1) that raised the alarm, or None."""
        return None if self._alarm is None else self._alarm[0]

    def update(self, score: float, /, **extras: float | None) -> DriftState:
        """The state after one more image.

        Takes the score, not its p-value: p-values of one fixed calibration set have no valid false-alarm rate here.

        Args:
            score: Image score.
            extras: Other values of the image for `what_changed`, such as keep and brightness; None if unknown.

        Example:
            ```python
            monitor.update(prediction.pred_score, keep=prediction.keep_final).drift
            ```
        """
        score = _finite(score)
        self._images += 1
        p_value = self._p_value(score)
        factors = bets(np.array(p_value))
        self._sums = np.minimum((1 + self._sums) * factors, _LARGEST)
        runs = self._runs + np.log(factors)
        self._starts = np.where(runs > 0, self._starts, self._images + 1)
        self._runs = np.maximum(runs, 0)
        if self._alarm is None:
            # After the alarm nobody asks for p-values; a horizon of images is as good as all of them.
            if self._images <= HORIZON:
                bisect.insort(self._reference, score)
            if self._sums.mean() >= self.limit:
                best = int(self._sums.argmax())
                self._alarm = (self._images, min(int(self._starts[best]), self._images), best)
        values = {self._name: score}
        values |= {name: float(v) for name, v in extras.items() if v is not None and math.isfinite(v)}
        if len(self._first) < _REMEMBERED:
            self._first.append(values)
        self._last.append(values)
        return self._state(p_value)

    def what_changed(self) -> list[Change]:
        """Medians of all values before and after drift began, the largest shift first; empty without an alarm.

        Example:
            ```python
            for change in monitor.what_changed():
                print(change.name, change.before, change.after)
            ```
        """
        if self._alarm is None:
            return []
        since = self._alarm[1]
        before = self._first[: since - 1]
        after = list(self._last)[-(self._images - since + 1) :]
        changes = []
        for name in sorted({name for values in after for name in values}):
            old = [*self._good.get(name, ()), *(values[name] for values in before if name in values)]
            if old:
                changes.append(_change(name, old, [values[name] for values in after if name in values]))
        return sorted(changes, key=lambda change: -abs(change.shift))

    def to_dict(self) -> dict[str, Any]:
        """The whole state, ready for JSON; at most about 10,000 numbers beside the good scores.

        Example:
            ```python
            Path("drift.json").write_text(json.dumps(monitor.to_dict()))
            ```
        """
        return {
            "name": self._name,
            "false_alarms": self._false_alarms,
            "seed": self._seed,
            "images": self._images,
            "reference": list(self._reference),
            "sums": self._sums.tolist(),
            "runs": self._runs.tolist(),
            "starts": self._starts.tolist(),
            "alarm": None if self._alarm is None else list(self._alarm),
            "first": list(self._first),
            "last": list(self._last),
            "good": {name: list(values) for name, values in self._good.items()},
        }

    @staticmethod
    def from_dict(values: object) -> DriftMonitor:
        """A monitor that goes on where the one that wrote `to_dict` stopped; every value is checked.

        Example:
            ```python
            monitor = DriftMonitor.from_dict(json.loads(Path("drift.json").read_text()))
            ```
        """
        what = "a saved state of a drift monitor"
        read = Fields(values, what, _KEYS)
        good = Fields(read.value("good"), f"the good images of {what}")
        monitor = DriftMonitor(
            read.numbers("reference"),
            false_alarms=read.number("false_alarms"),
            seed=read.integer("seed"),
            extras={name: good.numbers(name) for name in good.keys},
            name=read.text("name"),
        )
        images = monitor._images = read.integer("images")
        sums, runs = read.numbers("sums", 0, _LARGEST), read.numbers("runs", 0)
        starts = read.integers("starts", 1, images + 1)
        alarm = None if read.value("alarm") is None else read.integers("alarm", 0, images)
        if {len(sums), len(runs), len(starts)} != {len(_KINDS)} or (
            alarm is not None and (len(alarm) != 3 or not 1 <= alarm[1] <= alarm[0] or alarm[2] >= len(_KINDS))
        ):
            raise KeepADError(f"This is not {what}: its bets or its alarm are those of another version.")
        monitor._sums, monitor._runs, monitor._starts = np.array(sums), np.array(runs), np.array(starts, np.int64)
        monitor._alarm = None if alarm is None else (alarm[0], alarm[1], alarm[2])
        for key, kept in (("first", monitor._first), ("last", monitor._last)):
            rows = [Fields(item, f"an image of {what}") for item in read.items(key)]
            if len(rows) != min(images, _REMEMBERED):
                raise KeepADError(f"This is not {what}: '{key}' has {len(rows)} images.")
            kept.extend({name: row.number(name) for name in row.keys} for row in rows)
        return monitor

    def _p_value(self, score: float) -> float:
        """Smoothed conformal p-value: uniform on (0, 1) for a score exchangeable with the reference."""
        low, high = bisect.bisect_left(self._reference, score), bisect.bisect_right(self._reference, score)
        count = len(self._reference)
        # Seeded by the number of the image, so that a monitor read from a file goes on with the same numbers.
        ties = np.random.default_rng([self._seed, self._images]).random()
        return float((count - high + ties * (high - low + 1)) / (count + 1))

    def _state(self, p_value: float) -> DriftState:
        alarm, since, best = self._alarm or (None, None, None)
        return DriftState(
            images=self._images,
            p_value=p_value,
            statistic=float(self._sums.mean()),
            limit=self.limit,
            alarm=alarm,
            since=since,
            kind=None if best is None else _KINDS[best],
        )


def bets(p: Array) -> Array:
    """(..., 8) densities on [0, 1] at p-values of any shape; each has mean one if they are uniform.

    Example:
        ```python
        bets(np.array([0.01, 0.5])).shape  # (2, 8)
        ```
    """
    q = 1 - p
    return np.stack(
        [
            0.5 + q,
            0.5 + p,
            0.1 + 1.8 * q,
            0.1 + 1.8 * p,
            0.1 + 3.6 * q**3,
            0.1 + 3.6 * p**3,
            0.1 + 1.8 * (q**3 + p**3),
            0.1 + 5.4 * p * q,
        ],
        axis=-1,
    )


def _change(name: str, before: Sequence[float], after: Sequence[float]) -> Change:
    old, new = float(np.median(before)), float(np.median(after))
    spread = 1.4826 * float(np.median(np.abs(np.asarray(before) - old)))
    shift = 0.0 if new == old else (new - old) / spread if spread > 0 else math.copysign(math.inf, new - old)
    return Change(name, old, new, shift)


def _remembered(values: Sequence[float] | Array) -> list[float]:
    return [float(value) for value in values if math.isfinite(value)][:_REMEMBERED]


def _finite(score: float) -> float:
    if not math.isfinite(score):
        raise KeepADError(f"A score of {score} says nothing about drift; leave the image out.")
    return float(score)
