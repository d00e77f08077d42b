"""Evidence, budget and whole blocks."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepad.arrays import Array
from keepad.errors import KeepADError
from keepad.presets import DeepBudget
from keepad.routing import absolute_evidence, choose_blocks, evidence_of, keep_deep, token_budget
from live_grids import block_of, live_tokens


def test_riskiest_blocks_join_whole_until_the_target_is_reached() -> None:
    risk = np.array([1.0, 3.0, 5.0, 5.0, 0.0, 9.0])
    block = np.array([7, 7, 2, 2, 4, 4])  # mean risks: 2.0, 5.0, 4.5
    order, kept = choose_blocks(risk, block, target=3)
    assert order.tolist() == [2, 4, 7]
    assert kept.tolist() == [False, False, True, True, True, True]  # two do not suffice, four overshoot by one


def test_equal_blocks_join_in_grid_order() -> None:
    _, kept = choose_blocks(np.ones(6), np.array([5, 5, 1, 1, 3, 3]), target=2)
    assert kept.tolist() == [False, False, True, True, False, False]


def direct_evidence(risk: Array) -> float:
    """The formulas of the method, transcribed one by one."""
    u = 1 / (1 + np.exp(-(risk - risk.mean()) / (risk.std() + 1e-6)))
    k_tail = max(1, math.ceil(0.03 * len(u)))
    e_var = math.sqrt(min(max(4 * u.var(), 0), 1))
    top = np.sort(u)[::-1][:k_tail].mean()
    e_tail = min(max((top - u.mean()) / max(1 - u.mean(), 1e-6), 0), 1)
    return (e_var + e_tail) / 2


@settings(deadline=None, max_examples=100)
@given(live_tokens())
def test_evidence_is_the_transcribed_formula(tokens) -> None:
    risk = tokens[0]
    assert evidence_of(risk) == pytest.approx(direct_evidence(risk.astype(np.float64)), abs=1e-9)


def test_evidence_of_a_flat_image_is_zero() -> None:
    assert evidence_of(np.zeros(400)) == pytest.approx(0.0, abs=1e-9)


def test_published_evidence_falls_when_a_few_outliers_are_added() -> None:
    """Risks are standardised within the image, so strong outliers compress all others: a known flaw of E(I)."""
    risk = np.random.default_rng(0).normal(size=400)
    outliers = risk.copy()
    outliers[:6] += 8
    assert evidence_of(outliers) < evidence_of(risk) - 1e-3


@given(st.lists(st.floats(0, 2, width=32), min_size=1, max_size=60), st.data())
def test_absolute_evidence_falls_with_no_token(values: list[float], data: st.DataObject) -> None:
    before = np.array(values, dtype=np.float32)
    place, more = data.draw(st.integers(0, len(values) - 1)), data.draw(st.floats(0, 1, width=32))
    raised = before.copy()
    raised[place] += np.float32(more)
    assert absolute_evidence(raised, 400) >= absolute_evidence(before, 400) - 1e-9


def test_a_needle_raises_absolute_evidence() -> None:
    surface = np.random.default_rng(0).uniform(0.1, 0.2, 400).astype(np.float32)
    needle = surface.copy()
    needle[7] = 0.9
    assert absolute_evidence(needle, 400) > absolute_evidence(surface, 400) + 0.05
    assert absolute_evidence(surface, 400) == pytest.approx(np.sort(surface)[-12:].mean(), abs=1e-7)  # 3 % of the grid


@given(st.floats(0, 1), st.integers(1, 5000))
def test_budget_lies_between_its_bounds(evidence: float, live: int) -> None:
    target = token_budget(evidence, live, DeepBudget())
    assert max(1, round(live * 0.25**0.65)) <= target <= max(1, round(live * 0.50**0.65))


def test_budget_values() -> None:
    assert token_budget(0.55, 411, DeepBudget()) == round(411 * 0.375**0.65)
    assert token_budget(0.0, 684, DeepBudget()) == 278  # 0.406 n
    assert token_budget(1.0, 684, DeepBudget()) == 436  # 0.637 n


@settings(deadline=None, max_examples=150)
@given(live_tokens())
def test_whole_blocks_small_overshoot_best_first(tokens) -> None:
    risk, index, grid = tokens
    choice = keep_deep(risk, index, grid, DeepBudget())
    kept = set(index[choice.keep].tolist())
    assert choice.target <= len(kept) <= choice.target + 3
    by_block: dict[tuple[int, int], list[float]] = {}
    for cell, value in zip(index.tolist(), risk.tolist(), strict=True):
        by_block.setdefault(block_of(cell, grid), []).append(value)
    kept_blocks = {block_of(cell, grid) for cell in kept}
    assert kept == {cell for cell in index.tolist() if block_of(cell, grid) in kept_blocks}, "whole blocks only"
    means = {block: math.fsum(values) / len(values) for block, values in by_block.items()}
    dropped = set(by_block) - kept_blocks
    if dropped:
        assert min(means[b] for b in kept_blocks) >= max(means[b] for b in dropped) - 1e-12


def test_an_exact_budget_cuts_the_last_block_to_its_riskiest_tokens() -> None:
    risk = np.array([9.0, 8.0, 3.0, 2.0, 7.0, 6.0, 0.0, 5.0])  # 2x4 grid: left block 9 8 7 6, right block 3 2 0 5
    budget = DeepBudget(rho_min=0.75, rho_max=0.75, kappa=1.0)  # six of eight
    assert keep_deep(risk, np.arange(8), (2, 4), budget).keep.tolist() == list(range(8))
    exact = keep_deep(risk, np.arange(8), (2, 4), replace(budget, exact=True))
    assert exact.keep.tolist() == [0, 1, 2, 4, 5, 7]
    assert exact.target == 6


def test_either_statistic_alone_can_be_the_evidence() -> None:
    risk = np.random.default_rng(1).normal(size=200)
    var, tail = (evidence_of(risk, kind=kind) for kind in ("var", "tail"))
    assert evidence_of(risk) == pytest.approx((var + tail) / 2)
    assert var != tail
    with pytest.raises(KeepADError, match="no evidence called 'mean'"):
        evidence_of(risk, kind="mean")
