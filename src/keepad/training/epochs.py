"""The epochs of both stages: batches, optimiser, validation, and a state file from which an interrupted run resumes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from keepad.console import Say
from keepad.errors import KeepADError
from keepad.files import replacing
from keepad.training.recipe import DetectorRecipe, RouterRecipe
from keepad.training.results import Epoch, Validation
from keepad.version import __version__

if TYPE_CHECKING:
    from lightning_fabric import Fabric

_STRIDE = 1_000_003  # added to the seed per epoch, so that the order does not depend on where a run resumed


@dataclass(frozen=True)
class RunOptions:
    """Settings of a training run.

    Attributes:
        recipe: Epochs, batch, learning rate and weight decay.
        seed: Seed of the order.
        fabric: Device, precision and processes.
        state: State file; removed once the checkpoint is written.
        identity: Whatever must be equal for a run to resume; JSON-serialisable.
        validation: Type of an epoch's validation.
        clip: Largest gradient norm of a step; unlimited if None.
        cosine: Let the learning rate fall along a cosine; else it is constant.
        keep: Epoch that is kept, counted from 1; the best in validation if None.
    """

    recipe: DetectorRecipe | RouterRecipe
    seed: int
    fabric: Fabric
    state: Path
    identity: Any
    validation: type[Validation] = Validation
    clip: float | None = None
    cosine: bool = True
    keep: int | None = None


class EpochLoop:
    """Trains a module epoch by epoch.

    Args:
        losses: Module whose forward gives each loss, a scalar or (heads,) with the reported head last; a module, so
            that several processes share its gradients.
        trained: Part of it whose trainable parameters are optimised and stored.
        images: (n,) indices of the images to train on.
        options: Settings of the run.
    """

    def __init__(self, losses: nn.Module, trained: nn.Module, images: Tensor, options: RunOptions) -> None:
        self.epochs: list[Epoch] = []
        self._trained, self._images, self._options = trained, images, options
        self._recipe, self._fabric = options.recipe, options.fabric
        parameters = [value for value in trained.parameters() if value.requires_grad]
        optimiser = torch.optim.AdamW(parameters, lr=self._recipe.rate, weight_decay=self._recipe.decay)
        steps = self._recipe.epochs * len(self._steps(images))
        self._schedule: torch.optim.lr_scheduler.LRScheduler
        if options.cosine:
            self._schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, max(1, steps))
        else:
            self._schedule = torch.optim.lr_scheduler.ConstantLR(optimiser, factor=1.0)
        self._losses, self._optimiser = self._fabric.setup(losses, optimiser)
        self._identity = json.dumps([asdict(self._recipe), options.seed, options.identity, self._world, __version__])

    def run(
        self, inputs: Callable[[Tensor, Tensor], tuple[Any, ...]], validate: Callable[[], Validation], say: Say
    ) -> int:
        """Run the epochs that are not done yet and return the one to keep, counted from 0, with its parameters loaded.

        Args:
            inputs: Arguments of the losses for a batch: (B,) image indices and (2, B) uniform draws for augmentation.
            validate: Validates the current parameters.
            say: Called with one line per epoch.
        """
        self._resume(say)
        for number in range(len(self.epochs), self._recipe.epochs):
            losses = self._train(number, inputs)
            self.epochs.append(Epoch(losses, validate(), self._parameters()))
            shown = ", ".join(f"{name} {value:.3f}" for name, value in losses.items())
            say(f"epoch {number + 1} of {self._recipe.epochs}: {shown}; {self.epochs[-1].validation}")
            if self._fabric.global_rank == 0:
                self._save()
        best = max(range(len(self.epochs)), key=lambda number: self.epochs[number].validation.quality)
        if self._options.keep is not None:
            best = self._options.keep - 1
        self._trained.load_state_dict(self.epochs[best].parameters, strict=False)
        return best

    def forget(self) -> None:
        """Remove the state file."""
        self._options.state.unlink(missing_ok=True)

    @property
    def _world(self) -> int:
        return self._fabric.world_size

    def _parameters(self) -> dict[str, Tensor]:
        named = self._trained.named_parameters()
        return {name: value.detach().cpu().clone() for name, value in named if value.requires_grad}

    def _train(self, number: int, inputs: Callable[[Tensor, Tensor], tuple[Any, ...]]) -> dict[str, float]:
        """One pass over the images; mean of each loss over the steps that have it."""
        reported: dict[str, list[float]] = {}
        for images, draws in self._batches(number):
            losses = self._losses(*inputs(images, draws))
            self._optimiser.zero_grad()
            self._fabric.backward(torch.stack([loss.sum() for loss in losses.values()]).sum())
            if self._options.clip is not None:
                self._fabric.clip_gradients(self._losses, self._optimiser, max_norm=self._options.clip)
            self._optimiser.step()
            self._schedule.step()
            for name, loss in losses.items():
                reported.setdefault(name, []).append(float(loss.detach().flatten()[-1]))
        return {name: float(np.mean(values)) for name, values in reported.items()}

    def _batches(self, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Image indices (B,) and uniform draws (2, B) of each step of this process."""
        generator = torch.Generator().manual_seed(self._options.seed + _STRIDE * (epoch + 1))
        order = torch.randperm(len(self._images), generator=generator)
        draws = torch.rand(2, len(self._images), generator=generator)
        for step in self._steps(order):
            own = step[self._fabric.global_rank :: self._world]
            yield self._images[own], draws[:, own]

    def _steps(self, order: Tensor) -> list[Tensor]:
        """The order cut into steps of all processes; a remainder too small for every process is left out."""
        steps = torch.split(order, self._recipe.batch * self._world)
        return [step for step in steps if len(step) >= self._world]

    # -- state -------------------------------------------------------------------------------------------------------

    def _save(self) -> None:
        content = {
            "identity": self._identity,
            "epochs": [{**vars(epoch), "validation": asdict(epoch.validation)} for epoch in self.epochs],
            "optimiser": self._optimiser.state_dict(),
            "schedule": self._schedule.state_dict(),
        }
        path = self._options.state
        try:
            with replacing(path) as partial:
                torch.save(content, partial)
        except (OSError, RuntimeError) as error:
            raise KeepADError(
                f"the state of the training could not be written to {path}; make room and start again."
            ) from error

    def _resume(self, say: Say) -> None:
        path = self._options.state
        if not path.is_file():
            return
        try:
            content: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
            same = content["identity"] == self._identity
            if same:
                self._restore(content)
        except Exception as error:  # torch raises many types for a damaged file
            raise KeepADError(f"{path} is damaged; remove it and start again.") from error
        resumed = f"going on after epoch {len(self.epochs)} of {self._recipe.epochs}"
        say(resumed if same else f"{path.name} belongs to another training; this one starts over.")

    def _restore(self, content: dict[str, Any]) -> None:
        for fields in content["epochs"]:
            validation = self._options.validation(**fields["validation"])
            self.epochs.append(Epoch(fields["losses"], validation, fields["parameters"]))
        self._optimiser.load_state_dict(content["optimiser"])
        self._schedule.load_state_dict(content["schedule"])
        self._trained.load_state_dict(self.epochs[-1].parameters, strict=False)
