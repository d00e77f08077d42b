"""Several quantities at once: the one that drifts is named, the rate of false alarms is shared, the state survives."""

import json
from typing import Any

import numpy as np
import pytest

from keepad.decisions import HORIZON, DriftWatch
from keepad.errors import KeepADError


def values(random: np.random.Generator, shift: float = 0.0, of: str = "") -> dict[str, float]:
    names = {"score": (0.3, 0.04), "brightness": (0.5, 0.02), "sharpness": (0.2, 0.01), "keep": (0.2, 0.01)}
    return {name: random.normal(mean + shift * sd * (name == of), sd) for name, (mean, sd) in names.items()}


def watch_of(random: np.random.Generator, images: int = 50, **options: Any) -> DriftWatch:
    rows = [values(random) for _ in range(images)]
    return DriftWatch({name: [row[name] for row in rows] for name in rows[0]}, **options)


@pytest.mark.parametrize("of", ["score", "brightness", "sharpness"])
def test_the_quantity_that_drifts_raises_the_alarm(of: str) -> None:
    random = np.random.default_rng(1)
    watch = watch_of(random)
    assert watch.watched == ("score", "brightness", "sharpness")
    for _ in range(60):
        watch.update(values(random))
    assert watch.alarm is None
    assert watch.what_changed() == []
    for _ in range(40):
        state = watch.update(values(random, 4, of))
    assert watch.alarm == of
    assert state.kind == "higher"
    assert state.since is not None
    assert abs(state.since - 61) <= 10
    first = watch.what_changed()[0]
    assert first.name == of
    assert first.after > first.before


def test_the_rates_of_the_monitors_add_up() -> None:
    random = np.random.default_rng(2)
    watch = watch_of(random, false_alarms=0.03)
    watch.update(values(random))
    assert [state.limit for state in watch.states.values()] == [pytest.approx(3 * HORIZON / 0.03)] * 3
    alone = DriftWatch({"score": list(random.random(20))}, false_alarms=0.03)
    assert alone.update({"score": 0.5}).limit == pytest.approx(HORIZON / 0.03)


def test_a_quantity_that_is_unknown_of_good_images_is_not_watched() -> None:
    random = np.random.default_rng(3)
    watch = DriftWatch({"score": list(random.random(30)), "brightness": list(random.random(20))})
    assert watch.watched == ("score",)
    watch.update({"score": 0.4, "brightness": None, "sharpness": 0.2})
    both = watch_of(random)
    both.update({"score": 0.3, "brightness": None})
    assert list(both.states) == ["score"]


def test_the_state_survives_json_in_the_middle_of_a_stream() -> None:
    random = np.random.default_rng(4)
    watch = watch_of(random)
    for _ in range(30):
        watch.update(values(random))
    again = DriftWatch.from_dict(json.loads(json.dumps(watch.to_dict())))
    for _ in range(40):
        row = values(random, 3, "brightness")
        assert again.update(row) == watch.update(row)
    assert again.alarm == watch.alarm == "brightness"
    assert DriftWatch.from_dict(again.to_dict()).alarm == "brightness"


def test_wrong_values_are_one_sentence() -> None:
    with pytest.raises(KeepADError, match="3 good images are too few"):
        DriftWatch({"score": [0.1, 0.2, 0.3]})
    with pytest.raises(KeepADError, match="0 good images are too few"):
        DriftWatch({})
    watch = watch_of(np.random.default_rng(5))
    with pytest.raises(KeepADError, match="no image was seen yet"):
        _ = watch.state
    state = watch.to_dict()
    wrong: list[Any] = [{}, [], {"monitors": []}, {"monitors": {"score": 1}}]
    wrong.append({"monitors": {"keep": state["monitors"]["score"]}})
    for each in wrong:
        with pytest.raises(KeepADError, match="This is not"):
            DriftWatch.from_dict(each)
