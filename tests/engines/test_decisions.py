"""Decisions in NumPy against the torch functions that they stand for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from keepad import recovery, routing, scoring
from keepad.engines import decisions
from keepad.presets import POINTS, Calibration, DeepBudget, Placement, ShallowBudget

GRIDS = st.tuples(st.integers(2, 13), st.integers(2, 13))
SEEDS = st.integers(0, 2**31)


def live_tokens(grid: tuple[int, int], seed: int, *, ties: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Scores of some of the tokens, perhaps with many ties, and their ascending places."""
    draw = np.random.default_rng(seed)
    cells = grid[0] * grid[1]
    index = np.sort(draw.choice(cells, draw.integers(1, cells + 1), replace=False))
    values = draw.integers(0, 4, len(index)) if ties else draw.normal(size=len(index))
    return values.astype(np.float32), index


@settings(deadline=None)
@given(GRIDS, SEEDS, st.sampled_from([0.05, 0.3, 0.7, 1.0]), st.sampled_from([1, 2, 3]), st.booleans(), st.booleans())
def test_the_shallow_router_keeps_the_same_tokens(grid, seed, rho, block, strict, ties):
    scores, index = live_tokens(grid, seed, ties=ties)
    budget = ShallowBudget(rho, strict=strict, block=block, diversity=5, cells=3)
    expected = routing.keep_shallow(torch.from_numpy(scores), torch.from_numpy(index), grid, budget)
    assert decisions.keep_shallow(scores, index, grid, budget).tolist() == expected.tolist()


@settings(deadline=None)
@given(GRIDS, SEEDS, st.sampled_from([1, 2]), st.booleans())
def test_the_deep_router_keeps_the_same_tokens(grid, seed, block, ties):
    risk, index = live_tokens(grid, seed, ties=ties)
    budget = DeepBudget(block=block)
    expected = routing.keep_deep(torch.from_numpy(risk), torch.from_numpy(index), grid, budget)
    keep, evidence = decisions.keep_deep(risk, index, grid, budget)
    assert keep.tolist() == expected.keep.tolist()
    assert evidence == pytest.approx(expected.evidence, abs=1e-12)


@settings(deadline=None)
@given(GRIDS, SEEDS, st.sampled_from([None, 2, 3]))
def test_owners_are_the_same(grid, seed, block):
    _, survivors = live_tokens(grid, seed)
    expected = recovery.owners_of(torch.from_numpy(survivors), grid, block=block)
    assert decisions.owners_of(survivors, grid, block=block).tolist() == expected.tolist()


@settings(deadline=None)
@given(GRIDS, SEEDS, st.sampled_from(recovery.RECOVERIES))
def test_recovered_maps_are_the_same(grid, seed, mode):
    draw = np.random.default_rng(seed)
    scores, cells = draw.normal(size=grid[0] * grid[1]).astype(np.float32), grid[0] * grid[1]
    risk, live = live_tokens(grid, seed)
    kept = np.sort(draw.choice(len(live), draw.integers(1, len(live) + 1), replace=False))
    responses = draw.random(len(kept)).astype(np.float32)
    grades = (0.5, 1.5)
    expected = recovery.recover(
        torch.from_numpy(responses),
        torch.from_numpy(live[kept]),
        grid,
        mode=mode,
        known=recovery.Known(torch.from_numpy(scores), torch.from_numpy(live), torch.from_numpy(risk)),
        grades=grades,
    )
    point = replace(POINTS["prune70"], recovery=mode)
    found = decisions.recover(responses, live[kept], grid, point, decisions.Known(scores, live, risk), grades)
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-6)
    assert found.shape == grid
    assert found.size == cells


@pytest.mark.parametrize("kind", scoring.SCORES)
@pytest.mark.parametrize("top_of", ["survivors", "grid"])
def test_image_scores_are_the_same(kind, top_of):
    draw = np.random.default_rng(3)
    place = Placement(head_layers=(6, 8, 9), shallow=4, deep=6, exit=9, base_layers=(6, 9), mid_layers=(6, 8, 9))
    calibration = Calibration(patch_weight=0.75, base_mean=0.4, base_std=0.1, top_fraction=0.03, top_of=top_of)
    responses = {layer: draw.random(40).astype(np.float32) for layer in place.head_layers}
    cls = {layer: float(np.float32(draw.random())) for layer in place.head_layers}
    recovered = draw.random((9, 11)).astype(np.float32)
    expected = scoring.image_score(
        {layer: torch.from_numpy(values) for layer, values in responses.items()},
        {layer: torch.tensor(value) for layer, value in cls.items()},
        torch.from_numpy(recovered),
        kind=kind,
        base_layers=place.base_layers,
        mid_layers=place.mid_layers,
        calibration=calibration,
    )
    found = decisions.image_score(responses, cls, recovered, replace(POINTS["prune70"], score=kind), place, calibration)
    assert found == pytest.approx(float(expected), abs=1e-6)


@settings(deadline=None, max_examples=30)
@given(GRIDS, SEEDS, st.sampled_from([0.0, 0.6, 1.0, 2.0]), st.integers(1, 4))
def test_enlarged_maps_are_the_same(grid, seed, smoothing, scale):
    patch_map = np.random.default_rng(seed).random(grid).astype(np.float32)
    size = (grid[0] * 7 * scale, grid[1] * 5)
    expected = recovery.upsample(torch.from_numpy(patch_map)[None], size, smoothing=smoothing)[0]
    found = decisions.Enlarger(grid, size, smoothing)(patch_map)
    np.testing.assert_allclose(found, expected.numpy(), atol=2e-6)
    assert found.dtype == np.float32
