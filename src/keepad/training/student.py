"""The pruned pass of training: the steps of inference with hard gathers, plus soft masks that carry gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from keepad.arrays import Array
from keepad.network import Network, Responses
from keepad.presets import OperatingPoint, resolved
from keepad.recovery import RouterScores, recover, smooth_scores
from keepad.routing import Grid, absolute_evidence, keep_deep, keep_shallow, standardise
from keepad.tokens import Tokens
from keepad.training.relaxation import BlockValues, deep_presence, shallow_presence


@dataclass(frozen=True)
class SparsePass:
    """Outputs of a pruned pass over a batch; sequences have one item per image.

    Attributes:
        maps: (B, N) recovered responses, mean over the head layers.
        responses: Responses of the survivors and of the CLS tokens, by layer.
        shallow: (N,) presences of the tokens that entered the shallow router.
        deep: (n,) presences of the tokens that entered the deep router.
        entered: (n,) grid indices of the tokens that entered the deep router.
        survivors: (k,) grid indices of the tokens that left it.
        grid: Rows and columns.
    """

    maps: Tensor
    responses: Responses
    shallow: Sequence[Tensor]
    deep: Sequence[Tensor]
    entered: Sequence[Array]
    survivors: Sequence[Array]
    grid: Grid


def sparse_pass(
    network: Network, tokens: Tokens, point: OperatingPoint, *, relaxed: bool = True, hard_choice: bool = False
) -> SparsePass:
    """A pruned pass from the tokens that enter the shallow router.

    Args:
        network: The network; only its selectors get gradients.
        tokens: Tokens of whole images, one per cell.
        point: Operating point; both routers must run.
        relaxed: Apply the soft masks; without them the pass is that of inference.
        hard_choice: The deep router chooses, and is relaxed, by the risks of the tokens that inference sees, which runs
            the blocks between the routers once more; else by those of tokens that the soft mask has scaled.
    """
    point = resolved(point, network.calibration)
    assert point.shallow is not None
    assert point.deep is not None
    grid, shallow_budget, deep_budget = tokens.grid, point.shallow, point.deep

    sigma = network.calibration.score_smoothing
    scores, cells = network.shallow_scores(tokens), tokens.indices()
    rows = [_array(own) for own in scores]
    keep = [
        keep_shallow(s, c, grid, shallow_budget, smoothed=smooth_scores(s, c, grid, sigma))
        for s, c in zip(rows, cells, strict=True)
    ]
    shallow = [
        shallow_presence(s, k, BlockValues.of(c, grid, shallow_budget.block, s.device))
        for s, k, c in zip(scores, keep, cells, strict=True)
    ]
    presence, entering = _take(shallow, keep), tokens.gather(keep, point.context)
    tokens = network.middle(entering, torch.cat(presence) if relaxed else None)

    seen = tokens
    if relaxed and hard_choice:
        with torch.no_grad():
            seen = network.middle(entering)
    risks, entered = network.risks(seen), tokens.indices()
    evidence: list[float | None] = [None] * len(risks)
    if deep_budget.evidence == "absolute":
        unusual = network.unusual_step(seen)
        evidence = [absolute_evidence(own, grid[0] * grid[1], deep_budget.tail) for own in unusual]
    choices = [
        keep_deep(_array(r), c, grid, deep_budget, own) for r, c, own in zip(risks, entered, evidence, strict=True)
    ]
    deep = [
        deep_presence(r, c, grid, deep_budget, choice.target)
        for r, c, choice in zip(risks, entered, choices, strict=True)
    ]
    keep = [choice.keep for choice in choices]
    stays = _take(deep, keep)
    presence = [before * now for before, now in zip(_take(presence, keep), stays, strict=True)]
    tokens = tokens.gather(keep)
    last = network.placement.exit if point.early_exit else None
    responses = network.respond(tokens, last, torch.cat(presence) if relaxed else None)

    survivors, maps = tokens.indices(), []
    for i, own in enumerate(zip(*responses.patch.values(), strict=True)):
        values = torch.stack(own).mean(0) * (stays[i] if relaxed else 1)
        known = RouterScores(standardise(scores[i]), entered[i], standardise(risks[i]))
        grades = network.calibration.grades
        maps.append(recover(values, survivors[i], grid, mode=point.recovery, scores=known, grades=grades).flatten())
    return SparsePass(torch.stack(maps), responses, shallow, deep, entered, survivors, grid)


def _take(values: Sequence[Tensor], keep: Sequence[Array]) -> list[Tensor]:
    return [part[torch.from_numpy(kept).to(part.device)] for part, kept in zip(values, keep, strict=True)]


def _array(values: Tensor) -> Array:
    array: Array = values.detach().float().cpu().numpy()
    return array
