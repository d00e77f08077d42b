"""Selectors against the formulas of the method."""

from __future__ import annotations

import math

import torch

from keepad.dissimilarity import dissimilarity_to_landmarks
from keepad.routing.selectors import DeepSelector, ShallowSelector


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


def test_a_cue_adds_standardised_dissimilarity_by_its_weight() -> None:
    torch.manual_seed(0)
    index, grid, x = torch.arange(42), (6, 7), torch.randn(42, 32)
    plain, with_cue = ShallowSelector(32), ShallowSelector(32, cue=True)
    with_cue.load_state_dict({**plain.state_dict(), "dissimilarity": torch.tensor(0.7)})
    cue = dissimilarity_to_landmarks(x, index, grid)
    expected = plain(x, index, grid) + 0.7 * (cue - cue.mean()) / cue.std(correction=0)
    torch.testing.assert_close(with_cue(x, index, grid), expected, atol=1e-4, rtol=1e-4)

    deep, prototypes, entry = DeepSelector(32, cue=True), torch.randn(2, 32), torch.rand(42)
    assert deep.dissimilarity is not None
    deep.dissimilarity.data.fill_(0.3)
    expected = deep(x, prototypes) + 0.3 * (entry - entry.mean()) / entry.std(correction=0)
    torch.testing.assert_close(deep(x, prototypes, entry), expected, atol=1e-4, rtol=1e-4)


def test_selectors_of_the_reference_backbone_have_the_papers_size() -> None:
    count = sum(p.numel() for part in (ShallowSelector(1024), DeepSelector(1024)) for p in part.parameters())
    assert round(count / 1e6, 2) == 1.97
