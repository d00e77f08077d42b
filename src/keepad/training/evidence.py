"""Controller of absolute evidence: its centre and temperature, fitted on source images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch

from keepad.arrays import Array
from keepad.network import Network
from keepad.presets import ABSOLUTE_SHARES, DeepBudget, OperatingPoint, resolved
from keepad.recovery import smooth_scores
from keepad.routing import absolute_evidence, evidence_of, keep_shallow, token_budget
from keepad.tokens import Tokens

_WIDTH = 0.5  # of the controller's transition, in deviations of the evidence of normal source images
_STEPS = 60  # of a bisection


def fit_evidence(
    network: Network, images: Sequence[Callable[[], Tokens]], normal: Array, points: Sequence[OperatingPoint]
) -> tuple[tuple[float, float, float], ...]:
    """Rows of (rho, centre, temperature) of the operating points, ascending (see `presets.Calibration.evidence`).

    On the mean of the source, a point keeps as many tokens as with the published evidence; they are shared out
    differently.

    Args:
        network: The network with its selectors.
        images: Give the tokens of a source image where they enter the shallow router.
        normal: (n,) bool, the images without a defect.
        points: Operating points with both routers.
    """
    rows = []
    for point in points:
        assert point.shallow is not None
        measured = [_measure(network, tokens(), point) for tokens in images]
        evidence, shares = (np.array(column) for column in zip(*measured, strict=True))
        known = evidence[normal] if normal.any() else evidence
        temperature = max(_WIDTH * float(known.std()), 1e-6)
        rows.append((point.shallow.rho, centre_for(evidence, temperature, float(shares.mean())), temperature))
    return tuple(sorted(rows))


@torch.no_grad()
def _measure(network: Network, tokens: Tokens, point: OperatingPoint) -> tuple[float, float]:
    """Absolute evidence of an image, and the share of its live tokens that the published controller leaves."""
    published = resolved(point, replace(network.calibration, evidence=()))
    assert published.shallow is not None
    assert published.deep is not None
    grid, (cells,) = tokens.grid, tokens.indices()
    (scores,) = network.shallow_step(tokens)
    smoothed = smooth_scores(scores, cells, grid, network.calibration.score_smoothing)
    keep = keep_shallow(scores, cells, grid, published.shallow, smoothed=smoothed)
    tokens = network.middle(tokens.gather([keep], published.context))
    (unusual,), (risk,) = network.unusual_step(tokens), network.risk_step(tokens)
    budget = token_budget(evidence_of(risk, published.deep.tail), len(risk), published.deep)
    return absolute_evidence(unusual, len(cells), published.deep.tail), budget / len(risk)


def centre_for(evidence: Array, temperature: float, share: float) -> float:
    """The centre with which images of this evidence keep a given share of their live tokens on the mean."""
    low, high = ABSOLUTE_SHARES
    reach = 60 * temperature
    first, last = float(evidence.min()) - reach, float(evidence.max()) + reach
    live = 1_000_000  # so many that rounding does not matter
    for _ in range(_STEPS):
        centre = (first + last) / 2
        budget = DeepBudget(rho_min=low, rho_max=high, centre=centre, temperature=temperature, kappa=1.0)
        mean = float(np.mean([token_budget(own, live, budget) for own in evidence.tolist()])) / live
        first, last = (centre, last) if mean > share else (first, centre)
    return (first + last) / 2
