"""Results of training: losses and validation of an epoch, and the trained detector."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from keepad.network import Network


def percent(value: float | None) -> str:
    """A share as a percentage with one decimal, or "unknown"."""
    return "unknown" if value is None else f"{100 * value:.1f}"


@dataclass(frozen=True)
class Validation:
    """Metrics of the dense detector on held-out source images, mean over classes, then suites.

    Attributes:
        image_auroc: None where no class has both normal and anomalous images.
        patch_auroc: On the patch grid; None where no class has defects with masks.
    """

    image_auroc: float | None
    patch_auroc: float | None

    def __str__(self) -> str:
        return f"held-out source I-AUROC {percent(self.image_auroc)}, patch AUROC {percent(self.patch_auroc)}"

    @property
    def quality(self) -> tuple[float, ...]:
        """Key by which epochs are compared: the mean of the known AUROCs."""
        return (_mean(self.image_auroc, self.patch_auroc),)


@dataclass(frozen=True)
class RouterValidation(Validation):
    """Metrics of a pruned detector on source images.

    Attributes:
        dtr: Share of the defect tokens that survive, mean over anomalous images.
        missed: Anomalous images of which no defect token survives.
        anomalous: Anomalous images with known defects.
        keep: Share of all tokens that survive, mean over images.
    """

    dtr: float
    missed: int
    anomalous: int
    keep: float

    def __str__(self) -> str:
        survival = f"DTR {percent(self.dtr)}, {self.missed} of {self.anomalous} defects lost, keep {percent(self.keep)}"
        return f"{super().__str__()}, {survival}"

    @property
    def quality(self) -> tuple[float, ...]:
        """Key by which epochs are compared: fewest defects lost, then the mean of DTR and the known AUROCs."""
        return -self.missed, _mean(self.dtr, self.image_auroc, self.patch_auroc)


@dataclass(frozen=True)
class Epoch:
    """One pass over the source: mean losses, validation, and the trained parameters after it."""

    losses: dict[str, float]
    validation: Validation
    parameters: dict[str, Tensor]


@dataclass(frozen=True)
class Trained:
    """A trained network.

    Attributes:
        network: The network.
        chosen: Epoch that was kept, counted from 0.
        validation: Validation by operating point, after calibration.
        seconds: Seconds spent on "features" and on "training".
    """

    network: Network
    chosen: int
    validation: dict[str, Validation]
    seconds: dict[str, float]


def _mean(*values: float | None) -> float:
    known = [value for value in values if value is not None]
    return sum(known) / max(1, len(known))
