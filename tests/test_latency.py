"""Budgets in milliseconds: the most accurate point that keeps them, measured once, refused in one sentence."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from keepad import demo, latency
from keepad.arrays import Array
from keepad.errors import KeepADError
from keepad.latency import BUDGET_POINTS, interleaved, within_budget
from keepad.network import Network


@pytest.fixture
def set_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[int]]:
    """Sets the milliseconds of the points in an empty cache; returns the list of measurements from then on."""
    monkeypatch.setenv("KEEPAD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(demo, "demo_images", list)  # nothing is run, and drawing them takes seconds

    def apply(*ms: float) -> list[int]:
        measured: list[int] = []

        def times(runs: dict[str, object], batches: object, rounds: int) -> dict[str, Array]:
            measured.append(rounds)
            return {name: np.full(rounds, value) for name, value in zip(runs, ms, strict=True)}

        monkeypatch.setattr(latency, "interleaved", times)
        return measured

    return apply


@pytest.mark.parametrize(("budget", "point"), [(200, "dense"), (100, "dense"), (99, "prune30"), (60, "prune50")])
def test_the_most_accurate_point_within_the_budget(
    tiny: Network, set_times: Callable[..., list[int]], budget: float, point: str
) -> None:
    lines: list[str] = []
    measured = set_times(100.0, 80.0, 60.0, 40.0)
    assert within_budget(tiny, budget, lines.append).name == point
    assert lines[-1].startswith(f"budget: {point} on torch on cpu takes")
    assert within_budget(tiny, budget, lines.append).name == point
    assert len(measured) == 1, "kept in the cache"


def test_a_slower_pruned_point_never_hides_dense(tiny: Network, set_times: Callable[..., list[int]]) -> None:
    set_times(50.0, 80.0, 90.0, 40.0)
    assert within_budget(tiny, 60, lambda _: None).name == "dense"
    assert within_budget(tiny, 45, lambda _: None).name == "prune70"


def test_a_budget_out_of_reach_names_the_fastest(tiny: Network, set_times: Callable[..., list[int]]) -> None:
    set_times(100.0, 80.0, 60.0, 40.0)
    with pytest.raises(KeepADError, match=r"no operating point keeps 10 ms .* prune70 on torch on cpu, takes 40 ms"):
        within_budget(tiny, 10, lambda _: None)
    for wrong in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(KeepADError, match="a budget is a number of milliseconds above 0"):
            within_budget(tiny, wrong, lambda _: None)


def test_damaged_or_foreign_times_are_measured_again(
    tiny: Network, set_times: Callable[..., list[int]], tmp_path: Path
) -> None:
    measured = set_times(100.0, 80.0, 60.0, 40.0)
    within_budget(tiny, 99, lambda _: None)
    (file,) = tmp_path.rglob("latency/*.json")
    known = json.loads(file.read_text())
    for content in ("[", "[1]", json.dumps({**known, "ms": {}}), json.dumps({**known, "for": {"machine": "another"}})):
        file.write_text(content)
        within_budget(tiny, 99, lambda _: None)
    assert len(measured) == 5
    tiny.head.patch.data += 0.5
    within_budget(tiny, 99, lambda _: None)
    assert len(measured) == 6, "another checkpoint"


def test_a_real_measurement_of_every_point(tiny: Network, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEEPAD_CACHE", str(tmp_path))
    assert within_budget(tiny, 1e6, lambda _: None).name == "dense"
    (file,) = tmp_path.rglob("latency/*.json")
    assert set(json.loads(file.read_text())["ms"]) == set(BUDGET_POINTS)


def test_runs_take_turns_after_an_untimed_pass_each() -> None:
    calls: list[str] = []
    batches = [np.zeros((2, 4, 4, 3), np.uint8)] * 3
    times = interleaved({"a": lambda _: calls.append("a"), "b": lambda _: calls.append("b")}, batches, 2)
    assert calls == ["a"] * 4 + ["b"] * 4 + ["a"] * 4 + ["b"] * 4
    assert {name: ms.shape for name, ms in times.items()} == {"a": (6,), "b": (6,)}
