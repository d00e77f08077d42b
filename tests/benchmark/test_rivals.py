"""Counted FLOPs of other detectors, against KeepAD's own count of the same backbone."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
import torch

from keepad.assembly import untrained
from keepad.benchmark.flops import backbone_flops, shape_of

RIVALS = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "rivals.py"))


def test_the_vision_tower_is_that_of_the_backbone() -> None:
    with torch.device("meta"):
        network = untrained("clip-vit-l-14-336")
    expected = sum(backbone_flops(shape_of(network.backbone), 1369, [1369] * 24))
    assert RIVALS["vision"]() == expected


def test_every_counted_graph_costs_at_least_the_vision_tower_or_is_pruned() -> None:
    by_name = {rival.name: rival for rival in RIVALS["RIVALS"]}
    for name, rival in by_name.items():
        if rival.flops is not None and "prune" not in name:
            assert rival.flops() >= RIVALS["vision"]()
    costs = [by_name[f"KeepAD prune{number}"].flops() for number in (30, 50, 70)]
    assert costs == sorted(costs, reverse=True)
    assert RIVALS["vision"]() / costs[-1] == pytest.approx(2.6, abs=0.1)  # as the paper counts
    assert all(len(row) == 9 for row in RIVALS["rows"]())
