"""Training of a bank of heads on cached features: the losses of stage 1, and the logits of held-out images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from keepad.console import Say
from keepad.training.calibration import FittedHead, HeldOutLogits, fit_head
from keepad.training.dataset import CachedImage, Source, folds_of, masks_of
from keepad.training.epochs import EpochLoop, RunOptions
from keepad.training.feature_cache import FeatureCache
from keepad.training.head_bank import HeadBank, bank_responses
from keepad.training.losses import dice, focal, label_cross_entropy
from keepad.training.plan import DetectorPlan
from keepad.training.recipe import DetectorRecipe

if TYPE_CHECKING:
    from lightning_fabric import Fabric


_MAP_LOSSES = {"focal": focal, "dice": dice}


class HeadLosses(nn.Module):
    """Losses of all heads of a bank.

    Args:
        bank: The heads.
        recipe: Whether maps are compared with masks at pixel size, and each layer's or their mean.
        source: Input size and grid.
    """

    def __init__(self, bank: HeadBank, recipe: DetectorRecipe, source: Source) -> None:
        super().__init__()
        self.bank, self._pixels, self._size, self._grid = bank, recipe.pixel_loss, source.size, source.grid
        self._by_layer = recipe.layer_losses

    def forward(self, features: Tensor, images: Sequence[CachedImage], seen: Tensor) -> dict[str, Tensor]:
        """Each loss of every head, (heads,).

        Args:
            features: (B, layers, 1 + N, C) unit features.
            images: Annotations of the batch.
            seen: (B, heads) 1 where a head trains on an image.
        """
        device = features.device
        gaps = (values.float() for values in self.bank(features))  # out of mixed precision
        maps, cls = bank_responses(*gaps)  # (heads, layers, B, N), (heads, B, layers)
        if not self._by_layer:
            maps = maps.mean(1, keepdim=True)
        masked = torch.tensor([image.mask is not None for image in images], device=device)
        target = self._targets(images).to(device)
        label = torch.tensor([float(image.label) for image in images], device=device)
        heads, layers = len(maps), maps.shape[1]
        response, wanted = self._at_target_size(maps.flatten(0, 2)), target.repeat(heads * layers, 1)
        by_map = {
            name: loss(response, wanted).view(heads, layers, -1).mean(1) for name, loss in _MAP_LOSSES.items()
        }  # (heads, B)
        by_label = label_cross_entropy(cls.flatten(0, 1), label.repeat(heads)).view(heads, -1)
        return {
            **{name: _means(values, (seen * masked[:, None]).T) for name, values in by_map.items()},
            "CLS": _means(by_label, seen.T),
        }

    def _targets(self, images: Sequence[CachedImage]) -> Tensor:
        """(B, H * W) defect pixels or (B, N) defect patches; zeros where unknown."""
        if self._pixels:
            return masks_of(images, self._size).flatten(1).float()
        empty = np.zeros(self._grid, dtype=bool).reshape(-1)
        return torch.from_numpy(np.stack([empty if i.defect is None else i.defect for i in images])).float()

    def _at_target_size(self, maps: Tensor) -> Tensor:
        """(B, N) responses, upsampled to (B, H * W) where targets are pixels."""
        if not self._pixels:
            return maps
        return F.interpolate(
            maps.reshape(-1, 1, *self._grid), self._size, mode="bilinear", align_corners=False
        ).flatten(1)


class HeadTraining:
    """Trains a bank of heads and fits scales and calibration on held-out images.

    Args:
        source: The images.
        cache: Their features.
        plan: Options of stage 1.
        fabric: Device, precision and processes.
    """

    def __init__(self, source: Source, cache: FeatureCache, plan: DetectorPlan, fabric: Fabric) -> None:
        self._source, self._cache, self._recipe = source, cache, plan.recipe
        self._norm, self._device = cache.backbone.norm, fabric.device
        self._placement = plan.recipe.placement(cache.backbone.depth)
        self._layers = self._placement.head_layers
        self._folds = folds_of(source, plan.recipe.validation)
        heads = int(self._folds.max()) + 2
        # (n, heads): the last head sees every image, the others all but those of their fold.
        self._seen = (self._folds[:, None] != torch.arange(heads)).float()
        generator = torch.Generator().manual_seed(plan.seed)
        self.bank = HeadBank(heads - 1, self._layers, cache.backbone.width, generator)
        identity = [self._layers, cache.digest, source.digest]
        options = RunOptions(plan.recipe, plan.seed, fabric, plan.state, identity)
        losses = HeadLosses(self.bank, plan.recipe, source)
        self.loop = EpochLoop(losses, self.bank, torch.arange(len(source.images)), options)

    def run(self, say: Say) -> int:
        """Run the epochs and return the best one, counted from 0, whose parameters the bank then has."""
        return self.loop.run(self._inputs, lambda: self.fit(self._recipe).validation, say)

    def fit(self, recipe: DetectorRecipe) -> FittedHead:
        """Scales, calibration and validation of the bank's heads by a recipe, on images they were not trained on."""
        return fit_head(self.held_out(), recipe, recipe.placement(self._cache.backbone.depth))

    @torch.no_grad()
    def held_out(self) -> HeldOutLogits:
        """Logits of every image that is held out by some head, from that head."""
        indices = (self._folds >= 0).nonzero().squeeze(1).tolist()
        patches, tokens = [], []
        for i in indices:
            patch, cls = self.bank(self._features([self._source.images[i]]))
            fold = int(self._folds[i])
            patches.append(patch[0, ..., fold].half().cpu())
            tokens.append(cls[0, ..., fold].cpu())
        keys = [self._source.images[i].key for i in indices]
        recipe = self._recipe
        entries = {place.deep - 1 for place in recipe.placements(self._cache.backbone.depth)} if recipe.entry else ()
        return HeldOutLogits(
            patch=torch.stack(patches),
            cls=torch.stack(tokens),
            dissimilarity=self._dissimilarity(keys, self._layers) if recipe.dissimilarity else None,
            entry={layer: self._dissimilarity(keys, [layer])[:, 0] for layer in sorted(entries)},
            truth=self._source.annotations(indices),
            layers=self._layers,
            grid=self._source.grid,
        )

    def prototypes(self, layers: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Prototypes of patches and of CLS in some layers, (heads, layers, 2, width) each."""
        chosen = [self._layers.index(layer) for layer in layers]
        return self.bank.patch[:, chosen].detach(), self.bank.cls[:, chosen].detach()

    def _dissimilarity(self, keys: Sequence[str], layers: Sequence[int]) -> Tensor:
        """(n, layers, N)"""
        return torch.stack([self._cache.dissimilarity(key, layers, self._source.grid) for key in keys])

    def _inputs(self, indices: Tensor, draws: Tensor) -> tuple[Tensor, list[CachedImage], Tensor]:
        """Arguments of HeadLosses: part of the images is replaced by one of their views."""
        images = []
        for i, (augment, choice) in zip(indices.tolist(), draws.T.tolist(), strict=True):
            views = self._source.views[i]
            use = augment < self._recipe.augmented and len(views) > 0
            images.append(views[int(choice * len(views))] if use else self._source.images[i])
        return self._features(images), images, self._seen[indices].to(self._device)

    def _features(self, images: Sequence[CachedImage]) -> Tensor:
        """(B, layers, 1 + N, C) unit features after the backbone's final norm."""
        raw = torch.stack([self._cache.load(image.key, self._layers) for image in images])
        return F.normalize(self._norm(raw.to(self._device).float()), dim=-1)


def _means(values: Tensor, weights: Tensor) -> Tensor:
    """Weighted means of rows; 0 where all weights of a row are 0."""
    return (values * weights).sum(1) / weights.sum(1).clamp(min=1)
