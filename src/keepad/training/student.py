"""Student: the pruned pass as training sees it - hard gathers as at inference, and presences that carry gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from keepad.network import Evidence, KeepAD
from keepad.presets import OperatingPoint
from keepad.recovery import Known, recover
from keepad.routing import DeepChoice, keep_deep, keep_shallow, standardised
from keepad.tokens import Tokens
from keepad.training.relaxation import BlockValues, deep_presence, shallow_presence


@dataclass(frozen=True)
class SparsePass:
    """What a pruned pass over a batch leaves for the losses, one entry an image.

    Attributes:
        maps: (B, N) recovered responses, mean over the head layers.
        cls: (B, layers) responses of the CLS tokens.
        shallow: (N,) presences after the shallow router, of all tokens that entered it.
        deep: (n,) presences after the deep router, of all tokens that entered it.
        entered: (n,) grid indices of the tokens that entered the deep router.
        survivors: Grid indices of those that left it.
    """

    maps: Tensor
    cls: Tensor
    shallow: Sequence[Tensor]
    deep: Sequence[Tensor]
    entered: Sequence[Tensor]
    survivors: Sequence[Tensor]


def sparse_pass(model: KeepAD, tokens: Tokens, point: OperatingPoint, *, relaxed: bool = True) -> SparsePass:
    """A pruned pass from the tokens that enter the shallow router, through all head layers.

    Args:
        model: The detector; only its selectors get gradients.
        tokens: Whole images.
        point: What the routers may keep; both of them must run.
        relaxed: Let presences act. Without them the pass is that of inference.
    """
    assert point.shallow is not None
    assert point.deep is not None
    place, grid = model.placement, tokens.grid

    shallow, kept, all_scores = [], [], []
    for x, index in _images(tokens):
        scores = model.shallow(x, index, grid)
        chosen = keep_shallow(scores.detach(), index, grid, point.shallow)
        blocks = BlockValues.of(index, grid, point.shallow.block)
        shallow.append(shallow_presence(scores, index, chosen, blocks))
        kept.append(chosen)
        all_scores.append(standardised(scores))
    tokens = tokens.gather(kept)
    presence = torch.cat([values[chosen] for values, chosen in zip(shallow, kept, strict=True)])
    tokens = model.backbone.run(tokens, place.shallow, place.deep - 1, presence if relaxed else None)

    entered, deep, risks, choices = tokens.per_image(tokens.index), [], [], list[DeepChoice]()
    entry = model.dissimilarity(tokens) if model.reads_entry(point) else None
    for (x, index), unlike in zip(_images(tokens), _parts(tokens, entry), strict=True):
        risk = model.risk(x, unlike)
        choice = keep_deep(risk.detach(), index, grid, point.deep)
        deep.append(deep_presence(risk, index, grid, point.deep, choice.target))
        choices.append(choice)
        risks.append(standardised(risk))
    keep = [choice.keep for choice in choices]
    if entry is not None:
        entry = torch.cat([values[k] for values, k in zip(tokens.per_image(entry), keep, strict=True)])
    stays = torch.cat([values[k] for values, k in zip(deep, keep, strict=True)])
    presence = torch.cat([values[k] for values, k in zip(tokens.per_image(presence), keep, strict=True)]) * stays
    tokens = tokens.gather(keep)

    evidence, done = Evidence(entry), place.deep - 1
    for layer in place.head_layers:
        tokens = model.backbone.run(tokens, done + 1, layer, presence if relaxed else None)
        model.read(layer, tokens, evidence)
        done = layer
    survivors = tokens.per_image(tokens.index)
    weights = tokens.per_image(stays if relaxed else torch.ones_like(stays))
    maps = []
    for image, index in enumerate(survivors):
        responses = torch.stack([parts[image] for parts in evidence.responses.values()]).mean(0)
        known = Known(all_scores[image], entered[image], risks[image])
        grades = model.calibration.grades
        present = responses * weights[image]
        maps.append(recover(present, index, grid, mode=point.recovery, known=known, grades=grades).flatten())
    cls = torch.stack(list(evidence.cls.values()), dim=1)
    return SparsePass(torch.stack(maps), cls, shallow, deep, entered, survivors)


def _images(tokens: Tokens) -> zip[tuple[Tensor, Tensor]]:
    """Patches of each image and where they lie."""
    return zip(tokens.per_image(tokens.patches()), tokens.per_image(tokens.index), strict=True)


def _parts(tokens: Tokens, values: Tensor | None) -> Sequence[Tensor | None]:
    return [None] * tokens.images if values is None else tokens.per_image(values)
