"""The controller of absolute evidence: what a point keeps on the source stays what it was."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from keepad.network import Network
from keepad.presets import POINTS, DeepBudget
from keepad.routing import token_budget
from keepad.training.evidence import centre_for, fit_evidence


@pytest.mark.parametrize("share", [0.45, 0.65, 0.85])
def test_the_centre_gives_the_mean_share(share: float) -> None:
    evidence = np.random.default_rng(0).normal(0.3, 0.05, 200)
    budget = DeepBudget(0.4, 0.9, centre=centre_for(evidence, 0.02, share), temperature=0.02, kappa=1.0)
    shares = [token_budget(own, 10_000, budget) / 10_000 for own in evidence.tolist()]
    assert np.mean(shares) == pytest.approx(share, abs=1e-3)


def test_a_point_keeps_as_much_of_the_source_as_with_published_evidence(
    tiny: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    pixels = np.random.default_rng(3).integers(0, 256, (6, *tiny.image_size, 3), dtype=np.uint8)
    pixels[::2, 40:80, 40:90] //= 4
    images = torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255
    points = [replace(POINTS[name], pixels=None) for name in ("prune30", "prune70")]
    before = tiny.infer(pixels, points)
    with torch.no_grad():
        tokens = [partial(tiny.encode, image[None]) for image in images]
        rows = fit_evidence(tiny, tokens, np.array([False, True] * 3), points)
    assert [row[0] for row in rows] == [0.3, 0.7]
    monkeypatch.setattr(tiny, "calibration", replace(tiny.calibration, evidence=rows))
    after = tiny.infer(pixels, points)
    for point in points:
        kept = [np.mean([len(own.survivors) for own in results[point.name]]) for results in (before, after)]
        assert kept[1] == pytest.approx(kept[0], rel=0.05)
        assert len({own.evidence for own in after[point.name]}) == 6
