"""Fitting: the epochs that train a bank of heads on cached features, with validation, state and resumption."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from keepad.presets import Placement
from keepad.training.calibration import HeldOut, Validation
from keepad.training.dataset import Entry, Say, Source, folds_of, masks_of
from keepad.training.feature_cache import FeatureCache
from keepad.training.head_bank import HeadBank, responses_of
from keepad.training.losses import dice, focal, label_entropy
from keepad.training.recipe import DetectorRecipe
from keepad.training.state import RunState
from keepad.version import __version__

if TYPE_CHECKING:
    from lightning_fabric import Fabric

# Added to the seed for each epoch, so that an epoch's order does not depend on where a run was interrupted.
_STRIDE = 1_000_003


@dataclass(frozen=True)
class Epoch:
    """What one pass over the source did, and the parameters of the bank after it.

    Attributes:
        losses: Mean losses of the head that sees the whole source.
        validation: What held-out images say.
        patch: (heads, layers, 2, C) patch prototypes.
        cls: (heads, layers, 2, C) CLS prototypes.
    """

    losses: dict[str, float]
    validation: Validation
    patch: Tensor
    cls: Tensor


class Fitting:
    """One training run of a bank of heads.

    Args:
        source: The pictures.
        cache: Their features.
        recipe: How to train.
        placement: Where the head reads.
        norm: The backbone's final norm.
        judge: What held-out evidence says about an epoch.
        seed: First values and order.
        fabric: Device, precision and processes.
        state: File in which a run that is interrupted finds itself again.
        digest: Digest of the backbone's weights.
    """

    def __init__(
        self,
        source: Source,
        cache: FeatureCache,
        recipe: DetectorRecipe,
        *,
        placement: Placement,
        norm: Callable[[Tensor], Tensor],
        judge: Callable[[HeldOut], Validation],
        seed: int,
        fabric: Fabric,
        state: Path,
        digest: str,
    ) -> None:
        self.epochs: list[Epoch] = []
        self._source, self._cache, self._recipe = source, cache, recipe
        self._placement, self._layers = placement, placement.head_layers
        self._norm, self._judge, self._seed, self._fabric = norm, judge, seed, fabric
        self._folds = folds_of(source, recipe.validation)
        heads = int(self._folds.max()) + 2
        # (n, heads): the last head sees every image, the others all but those of their fold.
        self._sees = (self._folds[:, None] != torch.arange(heads)).float()
        width = int(cache.load(source.images[0].key, self._layers[:1]).shape[-1])
        bank = HeadBank(heads - 1, self._layers, width, torch.Generator().manual_seed(seed))
        optimiser = torch.optim.AdamW(bank.parameters(), lr=recipe.rate, weight_decay=recipe.decay)
        steps = recipe.epochs * len(self._steps(torch.arange(len(source.images))))
        self._schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
        self._bank, self._optimiser = fabric.setup(bank, optimiser)
        keys = hashlib.sha256("".join(source.keys()).encode()).hexdigest()
        identity = [asdict(recipe), self._layers, seed, digest, keys, fabric.world_size, __version__]
        self._state = RunState(state, json.dumps(identity))

    def run(self, say: Say) -> None:
        """All epochs that are not done yet."""
        self._resume(say)
        for number in range(len(self.epochs), self._recipe.epochs):
            losses = self._train(number)
            patch, cls = (tensor.detach().cpu().clone() for tensor in (self._bank.patch, self._bank.cls))
            epoch = Epoch(losses, self._judge(self.held_out(patch, cls)), patch, cls)
            self.epochs.append(epoch)
            told = ", ".join(f"{name} {value:.3f}" for name, value in losses.items())
            say(f"epoch {number + 1} of {self._recipe.epochs}: {told}; {epoch.validation}")
            if self._fabric.global_rank == 0:
                self._save()

    def forget(self) -> None:
        """Drop what a later run would resume from."""
        self._state.forget()

    @torch.no_grad()
    def held_out(self, patch: Tensor, cls: Tensor) -> HeldOut:
        """What each held-out image looks like to the head that has not seen it."""
        bank = HeadBank(len(patch) - 1, self._layers, patch.shape[-1], torch.Generator())
        bank.patch.copy_(patch)
        bank.cls.copy_(cls)
        bank.to(self._fabric.device)
        places = (self._folds >= 0).nonzero().squeeze(1).tolist()
        patches, tokens = [], []
        for place in places:
            gaps, cls_gaps = bank(self._features([self._source.images[place]]))
            fold = int(self._folds[place])
            patches.append(gaps[0, ..., fold].half().cpu())
            tokens.append(cls_gaps[0, ..., fold].cpu())
        images = [self._source.images[place] for place in places]
        unlike = self._unlikeness(images, self._layers) if self._recipe.unlike else None
        entry = self._unlikeness(images, [self._placement.deep - 1])[:, 0] if self._recipe.entry else None
        return HeldOut(
            patch=torch.stack(patches),
            cls=torch.stack(tokens),
            unlike=unlike,
            entry=entry,
            labels=np.array([image.label for image in images]),
            defects=[image.defect for image in images],
            classes=[self._source.classes[place] for place in places],
            layers=self._layers,
            grid=self._source.grid,
        )

    def _unlikeness(self, images: Sequence[Entry], layers: Sequence[int]) -> Tensor:
        """(n, layers, N) how unlike the rest of its image each patch is."""
        return torch.stack([self._cache.dissimilarity(image.key, layers, self._source.grid) for image in images])

    # -- one epoch ---------------------------------------------------------------------------------------------------

    def _train(self, number: int) -> dict[str, float]:
        """One pass over the source; mean losses of the head that sees all of it."""
        sums: dict[str, float] = {}
        steps = 0
        for places, entries in self._batches(number):
            losses = self._losses(entries, self._sees[places].to(self._fabric.device))
            self._optimiser.zero_grad()
            self._fabric.backward(torch.stack([loss.sum() for loss in losses.values()]).sum())
            self._optimiser.step()
            self._schedule.step()
            for name, loss in losses.items():
                sums[name] = sums.get(name, 0.0) + float(loss[-1].detach())
            steps += 1
        return {name: value / steps for name, value in sums.items()}

    def _losses(self, entries: Sequence[Entry], sees: Tensor) -> dict[str, Tensor]:
        """Each loss of every head, (heads,), from a batch and (B, heads) which head may see which picture."""
        device = self._fabric.device
        maps, cls = responses_of(*self._bank(self._features(entries)))  # (heads, B, N), (heads, B, layers)
        masked = torch.tensor([entry.mask is not None for entry in entries], device=device)
        target = self._targets(entries).to(device)
        label = torch.tensor([float(entry.label) for entry in entries], device=device)
        found: dict[str, list[Tensor]] = {"focal": [], "dice": [], "CLS": []}
        for head in range(len(maps)):
            seen = sees[:, head]
            response = self._at_target(maps[head])
            found["focal"].append(_mean(focal(response, target), seen * masked))
            found["dice"].append(_mean(dice(response, target), seen * masked))
            found["CLS"].append(_mean(label_entropy(cls[head], label), seen))
        return {name: torch.stack(values) for name, values in found.items()}

    def _features(self, entries: Sequence[Entry]) -> Tensor:
        """(B, layers, 1 + N, C) unit features as the head sees them."""
        raw = torch.stack([self._cache.load(entry.key, self._layers) for entry in entries])
        return F.normalize(self._norm(raw.to(self._fabric.device).float()), dim=-1)

    def _targets(self, entries: Sequence[Entry]) -> Tensor:
        """(B, N) defect patches, or (B, H * W) defect pixels; zeros where they are unknown."""
        if self._recipe.mask_loss:
            return masks_of(entries, self._source.size).flatten(1).float()
        empty = np.zeros(self._source.grid, dtype=bool).reshape(-1)
        rows = [empty if entry.defect is None else entry.defect for entry in entries]
        return torch.from_numpy(np.stack(rows)).float()

    def _at_target(self, maps: Tensor) -> Tensor:
        """(B, N) responses where the targets are."""
        if not self._recipe.mask_loss:
            return maps
        grids = maps.unflatten(1, self._source.grid)[:, None]
        return F.interpolate(grids, self._source.size, mode="bilinear", align_corners=False).flatten(1)

    def _batches(self, epoch: int) -> Iterator[tuple[Tensor, list[Entry]]]:
        """Places of this process's images in each step, and the pictures that stand for them in this epoch."""
        generator = torch.Generator().manual_seed(self._seed + _STRIDE * (epoch + 1))
        count = len(self._source.images)
        order = torch.randperm(count, generator=generator)
        augmented = torch.rand(count, generator=generator) < self._recipe.augmented
        drawn = torch.rand(count, generator=generator)
        for step in self._steps(order):
            places = step[self._fabric.global_rank :: self._fabric.world_size]
            entries = []
            for place in places.tolist():
                views = self._source.views[place]
                use = bool(augmented[place]) and len(views) > 0
                entries.append(views[int(drawn[place] * len(views))] if use else self._source.images[place])
            yield places, entries

    def _steps(self, order: Tensor) -> list[Tensor]:
        """The order cut into steps of all processes together; a rest that would leave one idle is left out."""
        world = self._fabric.world_size
        return [step for step in order.split(self._recipe.batch * world) if len(step) >= world]

    # -- state -------------------------------------------------------------------------------------------------------

    def _save(self) -> None:
        self._state.save(
            {
                "epochs": [
                    {"losses": one.losses, "validation": asdict(one.validation), "patch": one.patch, "cls": one.cls}
                    for one in self.epochs
                ],
                "optimiser": self._optimiser.state_dict(),
                "schedule": self._schedule.state_dict(),
            }
        )

    def _resume(self, say: Say) -> None:
        content = self._state.load(self._fabric.device, say)
        if content is None:
            return
        try:
            self.epochs = [
                Epoch(one["losses"], Validation(**one["validation"]), one["patch"].cpu(), one["cls"].cpu())
                for one in content["epochs"]
            ]
            self._optimiser.load_state_dict(content["optimiser"])
            self._schedule.load_state_dict(content["schedule"])
        except Exception as error:
            raise self._state.damaged() from error
        with torch.no_grad():
            self._bank.patch.copy_(self.epochs[-1].patch)
            self._bank.cls.copy_(self.epochs[-1].cls)
        say(f"going on after epoch {len(self.epochs)} of {self._recipe.epochs}")


def _mean(values: Tensor, weights: Tensor) -> Tensor:
    """Weighted mean; 0 where nothing weighs."""
    return (values * weights).sum() / weights.sum().clamp(min=1)
