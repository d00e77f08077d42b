"""Selectors that make sense before they are trained, so that a detector can be pruned as soon as it exists."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from keepad.data import Sample
from keepad.images import read_image, to_input
from keepad.network import KeepAD
from keepad.routing import VisualScore, selector_width

_IMAGES = 24  # enough to know how far a score spreads
_SHALLOW_SPREAD = 0.5  # deviation of the visual score within an image; two and a half times the softmax's temperature


@torch.no_grad()
def set_up_selectors(model: KeepAD, samples: Sequence[Sample], *, seed: int) -> None:
    """Make the selectors prefer tokens unlike the image's mean and, in the deep router, like the anomaly prototype.

    Both projections are the same random orthonormal frame, so a query times a key is a plain inner product within it;
    a minus sign turns likeness to the mean into dissimilarity. The frame of the deep router holds the direction between
    its two prototypes, and its scale makes one deviation of that likeness on source tokens two units of alpha. Where a
    selector has the cue of dissimilarity, it weighs as much as the visual score of the shallow router, or a third of a
    unit of risk in the deep one.

    Args:
        model: The detector.
        samples: Source images, of which some tell how far scores spread.
        seed: Draws the frames.
    """
    width, device = model.backbone.width, model.device
    generator = torch.Generator().manual_seed(seed)
    frame = _orthonormal(torch.randn(selector_width(width), width, generator=generator)).to(device)
    for visual in (model.shallow, model.deep.visual):
        visual.key.weight.copy_(frame)
        visual.query.weight.copy_(-frame)

    normal, anomaly = F.normalize(model.head.patch[0], dim=-1)
    direction = anomaly - normal
    # Prototypes live behind the final norm, tokens before it.
    gain = model.backbone.norm_gain()
    rows = torch.randn(selector_width(width), width, generator=generator).to(device)
    rows[0] = direction
    deep_frame = _orthonormal(rows)
    model.deep.key.weight.copy_(deep_frame)
    model.deep.query.weight.copy_(deep_frame * gain)

    like, spread, shallow = [], [], []
    for sample in samples[:: max(1, len(samples) // _IMAGES)]:
        pixels = torch.from_numpy(to_input(read_image(sample.image), model.image_size)).to(device)
        tokens = model.prefix(pixels.permute(2, 0, 1)[None].float() / 255)
        shallow.append(VisualScore.forward(model.shallow, tokens.patches()).std())
        tokens = model.backbone.run(tokens, model.placement.shallow, model.placement.deep - 1)
        like.append((tokens.patches() @ (gain * direction) * model.deep.scale).std())
        spread.append(model.deep.visual(tokens.patches()).std())
    model.deep.query.weight.mul_(2 / torch.stack(like).mean())
    model.deep.visual.query.weight.mul_(0.1 / torch.stack(spread).mean())
    model.deep.gate.fill_(1.0)
    model.shallow.query.weight.mul_(_SHALLOW_SPREAD / torch.stack(shallow).mean())
    if model.shallow.unlike is not None:
        model.shallow.unlike.fill_(_SHALLOW_SPREAD)
    if model.deep.unlike is not None:
        model.deep.unlike.fill_(0.3)


def _orthonormal(rows: Tensor) -> Tensor:
    """The first row's direction first, then the rest made perpendicular."""
    q, r = torch.linalg.qr(rows.T)
    return (q * r.diagonal().sign()).T.contiguous()
