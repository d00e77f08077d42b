"""Evidence, budget and whole blocks."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_shallow import block_of, live_tokens

from keepad.dissimilarity import dissimilarity_to_landmarks
from keepad.presets import DeepBudget
from keepad.routing import DeepSelector, ShallowSelector, choose_blocks, evidence_of, keep_deep, token_budget


def test_riskiest_blocks_join_whole_until_the_target_is_reached() -> None:
    risk = torch.tensor([1.0, 3.0, 5.0, 5.0, 0.0, 9.0])
    block = torch.tensor([7, 7, 2, 2, 4, 4])  # mean risks: 2.0, 5.0, 4.5
    order, kept = choose_blocks(risk, block, target=3)
    assert order.tolist() == [2, 4, 7]
    assert kept.tolist() == [False, False, True, True, True, True]  # two do not suffice, four overshoot by one


def test_equal_blocks_join_in_grid_order() -> None:
    _, kept = choose_blocks(torch.ones(6), torch.tensor([5, 5, 1, 1, 3, 3]), target=2)
    assert kept.tolist() == [False, False, True, True, False, False]


def direct_evidence(risk: np.ndarray) -> float:
    """The formulas of the method, transcribed one by one."""
    u = 1 / (1 + np.exp(-(risk - risk.mean()) / (risk.std() + 1e-6)))
    k_tail = max(1, math.ceil(0.03 * len(u)))
    e_var = math.sqrt(min(max(4 * u.var(), 0), 1))
    top = np.sort(u)[::-1][:k_tail].mean()
    e_tail = min(max((top - u.mean()) / max(1 - u.mean(), 1e-6), 0), 1)
    return (e_var + e_tail) / 2


@settings(deadline=None, max_examples=100)
@given(live_tokens())
def test_evidence_is_the_transcribed_formula(tokens) -> None:  # type: ignore[no-untyped-def]
    risk = tokens[0]
    assert float(evidence_of(risk)) == pytest.approx(direct_evidence(risk.double().numpy()), abs=1e-6)


def test_evidence_of_a_flat_image_is_nothing_and_a_needle_raises_it() -> None:
    flat = torch.zeros(400)
    assert float(evidence_of(flat)) == pytest.approx(0.0, abs=1e-9)
    needle = torch.randn(400, generator=torch.Generator().manual_seed(0))
    pushed = needle.clone()
    pushed[:6] += 8
    assert float(evidence_of(pushed)) != pytest.approx(float(evidence_of(needle)), abs=1e-3)


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
def test_whole_blocks_small_overshoot_best_first(tokens) -> None:  # type: ignore[no-untyped-def]
    risk, index, grid = tokens
    choice = keep_deep(risk, index, grid, DeepBudget())
    kept = set(index[choice.keep].tolist())
    assert choice.target <= len(kept) <= choice.target + 3
    by_block: dict[tuple[int, int], list[float]] = {}
    for place, value in zip(index.tolist(), risk.tolist(), strict=True):
        by_block.setdefault(block_of(place, grid), []).append(value)
    kept_blocks = {block_of(place, grid) for place in kept}
    assert kept == {place for place in index.tolist() if block_of(place, grid) in kept_blocks}, "whole blocks only"
    means = {block: math.fsum(values) / len(values) for block, values in by_block.items()}
    dropped = set(by_block) - kept_blocks
    if dropped:
        assert min(means[b] for b in kept_blocks) >= max(means[b] for b in dropped) - 1e-12


@settings(deadline=None, max_examples=40)
@given(live_tokens(), st.randoms(use_true_random=False))
def test_the_order_of_the_live_tokens_does_not_matter(tokens, random) -> None:  # type: ignore[no-untyped-def]
    risk, index, grid = tokens
    shuffled = list(range(len(index)))
    random.shuffle(shuffled)
    expected = index[keep_deep(risk, index, grid, DeepBudget()).keep]
    found = index[shuffled][keep_deep(risk[shuffled], index[shuffled], grid, DeepBudget()).keep]
    assert torch.equal(found, expected)


def test_visual_score_is_the_formula() -> None:
    torch.manual_seed(0)
    selector, x = ShallowSelector(32), torch.randn(20, 32)
    mean_key = selector.key.weight @ x.mean(0)
    direct = torch.stack([(selector.query.weight @ token) @ mean_key for token in x]) / math.sqrt(10)
    torch.testing.assert_close(selector(x, torch.arange(20), (4, 5)), direct)


def test_risk_is_the_formula_and_starts_from_the_visual_branch() -> None:
    torch.manual_seed(0)
    selector, x, prototypes = DeepSelector(32), torch.randn(20, 32), torch.randn(2, 32)
    torch.testing.assert_close(selector(x, prototypes), selector.visual(x))
    selector.gate.data.fill_(0.7)
    key_normal, key_anomaly = selector.key.weight @ prototypes[0], selector.key.weight @ prototypes[1]
    queries = x @ selector.query.weight.T
    alpha = torch.sigmoid((queries @ key_anomaly - queries @ key_normal) / math.sqrt(10))
    torch.testing.assert_close(selector(x, prototypes), selector.visual(x) + math.tanh(0.7) * alpha)


def test_a_cue_adds_standardised_unlikeness_by_its_weight() -> None:
    torch.manual_seed(0)
    index, grid, x = torch.arange(42), (6, 7), torch.randn(42, 32)
    plain, seeing = ShallowSelector(32), ShallowSelector(32, cue=True)
    seeing.load_state_dict({**plain.state_dict(), "unlike": torch.tensor(0.7)})
    cue = dissimilarity_to_landmarks(x, index, grid)
    expected = plain(x, index, grid) + 0.7 * (cue - cue.mean()) / cue.std(correction=0)
    torch.testing.assert_close(seeing(x, index, grid), expected, atol=1e-4, rtol=1e-4)

    deep, prototypes, unlike = DeepSelector(32, cue=True), torch.randn(2, 32), torch.rand(42)
    assert deep.unlike is not None
    deep.unlike.data.fill_(0.3)
    expected = deep(x, prototypes) + 0.3 * (unlike - unlike.mean()) / unlike.std(correction=0)
    torch.testing.assert_close(deep(x, prototypes, unlike), expected, atol=1e-4, rtol=1e-4)


def test_selectors_of_the_reference_backbone_have_the_papers_size() -> None:
    count = sum(p.numel() for part in (ShallowSelector(1024), DeepSelector(1024)) for p in part.parameters())
    assert round(count / 1e6, 2) == 1.97
