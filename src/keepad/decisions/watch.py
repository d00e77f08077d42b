"""Drift of several quantities of a stream at once: scores, brightness, sharpness, at one rate of false alarms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from keepad.arrays import Array
from keepad.decisions.drift import MIN_GOOD, Change, DriftMonitor, DriftState
from keepad.decisions.fields import Fields
from keepad.errors import KeepADError

WATCHED = ("score", "brightness", "sharpness")


class DriftWatch:
    """Watches several quantities of a stream of images, each by a `DriftMonitor` with its share of the false alarms.

    Scores alone are slow to show a lamp that ages or a lens that fogs, because the detector is made to ignore both.

    Example:
        ```python
        watch = DriftWatch({"score": good_scores, "brightness": good_brightness}, false_alarms=0.01)
        for prediction in detector.predict("photos/"):
            watch.update({"score": prediction.pred_score, "brightness": prediction.brightness})
            if watch.alarm:
                print(watch.alarm, watch.state.since, watch.what_changed())
        ```

    Args:
        good: Values of good images of the same product, camera and light, by quantity; at least 20 of each of WATCHED
            that is to be watched. Other quantities are only described by `what_changed`.
        false_alarms: Highest probability of an alarm, of any quantity, within 10,000 images without drift.
        seed: Seed of the randomised ties.

    Raises:
        KeepADError: Too few good images, values that are not finite, or a rate out of range.
    """

    def __init__(
        self, good: Mapping[str, Sequence[float] | Array], *, false_alarms: float = 0.01, seed: int = 0
    ) -> None:
        scores = good.get("score", ())
        known = [name for name in WATCHED if name == "score" or len(good.get(name, ())) >= max(MIN_GOOD, len(scores))]
        extras = {name: [float(value) for value in values] for name, values in good.items()}
        # The rates of the monitors add up to that of the watch, however much their quantities depend on each other.
        self._monitors = {
            name: DriftMonitor(
                good.get(name, ()),
                false_alarms=false_alarms / len(known),
                seed=seed + number,
                extras={other: values for other, values in extras.items() if other != name},
                name=name,
            )
            for number, name in enumerate(known)
        }
        self._states: dict[str, DriftState] = {}

    @property
    def watched(self) -> tuple[str, ...]:
        """Names of the quantities with a test."""
        return tuple(self._monitors)

    @property
    def alarm(self) -> str | None:
        """Name of the quantity that raised the alarm first, or None."""
        raised = [(monitor.alarm, name) for name, monitor in self._monitors.items() if monitor.alarm is not None]
        return min(raised)[1] if raised else None

    @property
    def state(self) -> DriftState:
        """The state of the quantity with the alarm, or else of the one that is closest to it.

        Raises:
            KeepADError: There was no image yet.
        """
        if not self._states:
            raise KeepADError("no image was seen yet, so there is no state of drift; call update() first.")
        return self._states[
            self.alarm
            if self.alarm in self._states
            else max(self._states, key=lambda name: self._states[name].statistic)
        ]

    @property
    def states(self) -> Mapping[str, DriftState]:
        """The state of every quantity, by name."""
        return dict(self._states)

    def update(self, values: Mapping[str, float | None]) -> DriftState:
        """The state after one more image.

        Args:
            values: Of the image, by quantity; a watched one that is missing is not tested on this image.

        Example:
            ```python
            watch.update({"score": 0.31, "brightness": 0.5, "keep": 0.2}).drift
            ```
        """
        for name, monitor in self._monitors.items():
            value = values.get(name)
            if value is not None:
                others = {other: own for other, own in values.items() if other != name}
                self._states[name] = monitor.update(value, **others)
        return self.state

    def what_changed(self) -> list[Change]:
        """Medians of all quantities before and after the drift began, the largest shift first; empty without an alarm.

        Example:
            ```python
            for change in watch.what_changed():
                print(change.name, change.before, change.after)
            ```
        """
        if self.alarm is None:
            return []
        return self._monitors[self.alarm].what_changed()

    def to_dict(self) -> dict[str, Any]:
        """The whole state, ready for JSON.

        Example:
            ```python
            Path("drift.json").write_text(json.dumps(watch.to_dict()))
            ```
        """
        return {"monitors": {name: monitor.to_dict() for name, monitor in self._monitors.items()}}

    @staticmethod
    def from_dict(values: object) -> DriftWatch:
        """A watch that goes on where the one that wrote `to_dict` stopped; every value is checked.

        Example:
            ```python
            watch = DriftWatch.from_dict(json.loads(Path("drift.json").read_text()))
            ```
        """
        what = "a saved state of a drift watch"
        read = Fields(Fields(values, what, ["monitors"]).value("monitors"), what)
        if "score" not in read.keys or not set(read.keys) <= set(WATCHED):
            raise KeepADError(f"This is not {what}: its quantities are those of another version.")
        watch = DriftWatch.__new__(DriftWatch)
        watch._monitors = {name: DriftMonitor.from_dict(read.value(name)) for name in read.keys}
        watch._states = {}
        return watch
