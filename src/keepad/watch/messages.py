"""Messages: what the sinks get for an image, for one that cannot be used, and for drift."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any

from keepad.decisions import Change, DriftState
from keepad.decisions.stream import extras_of
from keepad.prediction import Prediction
from keepad.watch.journal import Event


def of_prediction(prediction: Prediction, uri: str, model: str, **more: Any) -> Event:
    """The result of one image: what `keepad predict` writes, with time, model and where it came from."""
    values = prediction.to_dict()
    del values["path"]
    message = {"event": "result", "time": _now(), "uri": uri, **more, **values, "model": model, "error": None}
    return Event(message, prediction.pred_score, extras_of(values))


def of_error(sentence: str, uri: str, model: str, **more: Any) -> Event:
    """The result of an image that cannot be used."""
    unknown = dict.fromkeys(("pred_score", "pred_label", "verdict", "p_value"))
    return Event({"event": "result", "time": _now(), "uri": uri, **more, **unknown, "model": model, "error": sentence})


def of_drift(quantity: str, state: DriftState, changes: Sequence[Change]) -> Event:
    """The alarm of the drift monitor; images are counted from the first after the good ones."""
    message = {
        "event": "drift",
        "time": _now(),
        "since": state.since,
        "alarm": state.alarm,
        "quantity": quantity,
        "kind": state.kind,
        "chance": state.chance,
        "changes": [
            # A shift without any spread before is infinite, which JSON does not know.
            {"name": each.name, "before": each.before, "after": each.after, "shift": _finite(each.shift)}
            for each in changes
        ],
    }
    return Event(message)


def _finite(value: float) -> float | None:
    return value if abs(value) != float("inf") else None


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")
