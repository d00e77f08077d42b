"""Image score: from the physical survivors and the CLS token of one image, never from anything else in the test set."""

from __future__ import annotations

import torch
from torch import Tensor

from keepad.budgets import top_count
from keepad.errors import KeepADError
from keepad.presets import Calibration

SCORES = ("gated", "base", "mid", "recovered_topk")


def top_mean(responses: Tensor, count: int) -> Tensor:
    """Mean of the `count` highest responses; (n,) -> scalar."""
    return responses.topk(count).values.mean()


def blended_score(responses: Tensor, cls: Tensor, cells: int, calibration: Calibration) -> Tensor:
    """(1 - lambda) * CLS + lambda * patches over a set of layers.

    Args:
        responses: (layers, n) survivor responses.
        cls: (layers,) anomaly probability of the CLS token.
        cells: Tokens of the whole grid.
        calibration: Carries lambda and the token fraction.
    """
    patch = top_mean(responses.mean(0), top_count(responses.shape[1], cells, calibration))
    return torch.lerp(cls.mean(), patch, calibration.patch_weight)


def gate_of(base: Tensor, calibration: Calibration) -> Tensor:
    """q(I): how far the mid score replaces the base score."""
    z = (base - calibration.base_mean) / calibration.base_std
    return torch.sigmoid((z - calibration.gate_centre) / calibration.gate_temperature)


def image_score(
    responses: dict[int, Tensor],
    cls: dict[int, Tensor],
    recovered: Tensor,
    *,
    kind: str,
    base_layers: tuple[int, ...],
    mid_layers: tuple[int, ...],
    calibration: Calibration,
) -> Tensor:
    """The score of one image, a scalar in [0, 1].

    Args:
        responses: Survivor responses by layer, each (n,).
        cls: CLS anomaly probability by layer, each a scalar.
        recovered: (rows, columns) recovered map; only the control `recovered_topk` looks at its values.
        kind: "gated", "base", "mid" or "recovered_topk".
        base_layers: Layers of the base score.
        mid_layers: Layers of the mid score.
        calibration: What was fitted on source data.
    """

    def over(layers: tuple[int, ...]) -> Tensor:
        stacked = torch.stack([responses[layer] for layer in layers])
        return blended_score(stacked, torch.stack([cls[layer] for layer in layers]), recovered.numel(), calibration)

    if kind == "base":
        return over(base_layers)
    if kind == "mid":
        return over(mid_layers)
    if kind == "recovered_topk":
        cells = recovered.numel()
        return top_mean(recovered.flatten(), top_count(cells, cells, calibration))
    if kind == "gated":
        base = over(base_layers)
        return torch.lerp(base, over(mid_layers), gate_of(base, calibration))
    raise KeepADError(f"there is no image score called {kind!r}; choose one of {', '.join(SCORES)}.")
