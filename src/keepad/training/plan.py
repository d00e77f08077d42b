"""Plans: what a command trains, on which data, and where the checkpoint goes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from keepad.backbone import DEFAULT_BACKBONE
from keepad.data import Sample
from keepad.training.feature_cache import DEFAULT_LIMIT
from keepad.training.recipe import DetectorRecipe, RouterRecipe


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """Options of both stages.

    Attributes:
        samples: Labelled images of the source.
        out: Checkpoint to write.
        weights: File with the backbone's weights instead of the cached or downloaded ones.
        classes: Classes the samples were restricted to; all if empty.
        seed: Seed of initial values and order; equal seeds give equal checkpoints.
        cache: Folder of the feature cache; the user's own if None.
        cache_limit: Bytes that it may hold.
    """

    samples: Sequence[Sample]
    out: Path
    weights: Path | None = None
    classes: Sequence[str] = ()
    seed: int = 42
    cache: Path | None = None
    cache_limit: int = DEFAULT_LIMIT

    @property
    def views(self) -> int:
        """Augmented views per image."""
        return 0

    @property
    def state(self) -> Path:
        """State file of an interrupted run."""
        return self.out.with_name(f"{self.out.name}.state")


@dataclass(frozen=True, kw_only=True)
class DetectorPlan(TrainingPlan):
    """Options of stage 1.

    Attributes:
        recipe: Hyperparameters.
        backbone: Name of the backbone.
        sizes: Height and width of the network's input, or candidates of which tuning chooses one; the backbone's own
            if empty.
    """

    recipe: DetectorRecipe
    backbone: str = DEFAULT_BACKBONE
    sizes: tuple[tuple[int, int], ...] = ()

    @property
    def views(self) -> int:
        """Augmented views per image."""
        return self.recipe.views


@dataclass(frozen=True, kw_only=True)
class RouterPlan(TrainingPlan):
    """Options of stage 2.

    Attributes:
        recipe: Hyperparameters.
        detector: Checkpoint of stage 1.
        shallow: The shallow router acts on the tokens that enter this block; as in the detector if None.
        deep: The same for the deep router.
    """

    recipe: RouterRecipe
    detector: Path
    shallow: int | None = None
    deep: int | None = None
