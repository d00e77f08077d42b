"""Initial selectors that rank tokens sensibly before any training."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from keepad.data import Sample
from keepad.images import read_image, to_input
from keepad.network import Network
from keepad.routing.selectors import VisualScore, selector_width

_IMAGES = 24  # enough to estimate the spread of a score
_SHALLOW_SPREAD = 0.5  # deviation of the visual score within an image: 2.5 temperatures of the relaxation


@torch.no_grad()
def init_selectors(network: Network, samples: Sequence[Sample], *, seed: int) -> None:
    """Make the selectors prefer tokens far from the image's mean and, in the deep router, near the anomaly prototype.

    Query and key of the visual scores are one random orthonormal projection with opposite signs, so that the score is
    the negative inner product with the mean token. The projection of the deep router contains the direction between its
    prototypes, scaled so that one deviation on source tokens is two units of alpha's logit. Where a selector has the
    dissimilarity cue, it weighs as much as the shallow visual score, or 0.3 units of risk.

    Args:
        network: The network.
        samples: Source images, some of which set the scale of the scores.
        seed: Draws the projections.
    """
    width, device, deep = network.backbone.width, network.device, network.deep
    generator = torch.Generator().manual_seed(seed)
    projection = _orthonormal(torch.randn(selector_width(width), width, generator=generator)).to(device)
    for visual in (network.shallow, deep.visual):
        visual.key.weight.copy_(projection)
        visual.query.weight.copy_(-projection)

    normal, anomaly = F.normalize(network.head.patch[0], dim=-1)
    direction = anomaly - normal
    gain = network.backbone.norm_gain()  # prototypes live behind the final norm, tokens before it
    rows = torch.randn(selector_width(width), width, generator=generator).to(device)
    rows[0] = direction
    projection = _orthonormal(rows)
    deep.key.weight.copy_(projection)
    deep.query.weight.copy_(projection * gain)

    spreads = []
    for sample in samples[:: max(1, len(samples) // _IMAGES)]:
        pixels = torch.from_numpy(to_input(read_image(sample.image), network.image_size)).to(device)
        early = network.encode(pixels.permute(2, 0, 1)[None].float() / 255)
        patches = network.middle(early).patches()
        affinity = patches @ (gain * direction) * deep.scale
        scores = VisualScore.forward(network.shallow, early.patches()), affinity, deep.visual(patches)
        spreads.append(torch.stack([score.std() for score in scores]))
    shallow_spread, affinity_spread, visual_spread = torch.stack(spreads).mean(0)
    network.shallow.query.weight.mul_(_SHALLOW_SPREAD / shallow_spread)
    deep.query.weight.mul_(2 / affinity_spread)
    deep.visual.query.weight.mul_(0.1 / visual_spread)
    deep.gate.fill_(1.0)
    if network.shallow.dissimilarity is not None:
        network.shallow.dissimilarity.fill_(_SHALLOW_SPREAD)
    if deep.dissimilarity is not None:
        deep.dissimilarity.fill_(0.3)


@torch.no_grad()
def scale_selectors(network: Network, samples: Sequence[Sample]) -> None:
    """Scale freshly drawn selectors so that their scores deviate by one within an image, on average over the source.

    Scores of selectors as they are drawn depend on width and scale of the backbone's tokens; the relaxation's
    temperatures do not.

    Args:
        network: The network.
        samples: Source images, some of which are passed.
    """
    deep, device = network.deep, network.device
    normal, anomaly = F.normalize(network.head.patch[0], dim=-1)
    spreads = []
    for sample in samples[:: max(1, len(samples) // _IMAGES)]:
        pixels = torch.from_numpy(to_input(read_image(sample.image), network.image_size)).to(device)
        early = network.encode(pixels.permute(2, 0, 1)[None].float() / 255)
        patches = network.middle(early).patches()
        affinity = patches @ (deep.query.weight.T @ deep.key(anomaly - normal)) * deep.scale
        scores = VisualScore.forward(network.shallow, early.patches()), affinity, deep.visual(patches)
        spreads.append(torch.stack([score.std(correction=0) for score in scores]))
    spread = torch.stack(spreads).mean(0).clamp(min=torch.finfo(torch.float32).tiny)
    for query, own in zip((network.shallow.query, deep.query, deep.visual.query), spread, strict=True):
        query.weight.div_(own)


def _orthonormal(rows: Tensor) -> Tensor:
    """Orthonormal rows that span the same space, the first with the direction of the first."""
    q, r = torch.linalg.qr(rows.T)
    signed: Tensor = q * r.diagonal().sign()
    return signed.T.contiguous()
