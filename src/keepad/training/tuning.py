"""Tuning of a detector: head layers and constants of its score, chosen on held-out images of the source.

The rule, the same for every backbone and source: a choice is worth the mean of image and patch AUROC over products of
the source that the head was not trained on, less what its compute costs. Layers are added or taken away one at a time,
and one constant after the other is tried, until a round changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from keepad.backbone import Backbone
from keepad.benchmark.flops import backbone_flops, patches_entering, shape_of
from keepad.presets import Placement
from keepad.training.calibration import HeldOutLogits, fit_head
from keepad.training.recipe import DEEP_CANDIDATES, DetectorRecipe
from keepad.training.results import Validation

PRICE = 0.01  # AUROC that twice the compute must gain
_ROUNDS = 3
_CANDIDATES: dict[str, tuple[float, ...]] = {
    "deep": DEEP_CANDIDATES,
    "top_fraction": (0.005, 0.01, 0.02, 0.05, 0.1),
    "entry": (0.0, 0.5, 1.0, 2.0),
    "centre": (2.0, 4.0, 6.0),
    "smoothing": (0.5, 1.0, 1.5),
}
_KEPT = (0.30, 0.18)  # share of the tokens after each router, at prune70


@dataclass(frozen=True)
class Trial:
    """One choice and its worth.

    Attributes:
        recipe: The choice.
        validation: What it reaches on held-out products of the source.
        flops: FLOPs of a pruned pass with its layers.
    """

    recipe: DetectorRecipe
    validation: Validation
    flops: float

    @property
    def value(self) -> float:
        """What trials are compared by."""
        return worth(self.validation, self.flops)

    def record(self, depth: int) -> dict[str, Any]:
        """The choice and its worth in plain numbers, for the model card."""
        recipe = self.recipe
        return {
            "head_layers": list(recipe.placement(depth).head_layers),
            **{name: getattr(recipe, name) for name in _CANDIDATES if name != "deep"},
            "deep": recipe.placement(depth).deep,
            "image_auroc": self.validation.image_auroc,
            "patch_auroc": self.validation.patch_auroc,
            "gflops": round(self.flops / 1e9, 2),
        }


def worth(validation: Validation, flops: float) -> float:
    """Mean of both AUROCs less the price of the compute; only differences mean anything."""
    return validation.quality[0] - PRICE * math.log2(flops)


def tune(
    held_out: HeldOutLogits, recipe: DetectorRecipe, depth: int, flops: Callable[[Placement], float]
) -> list[Trial]:
    """All trials of the search, the choice last.

    Args:
        held_out: Logits of all candidate layers.
        recipe: Where the search starts; its head layers are the candidates.
        depth: Blocks of the backbone.
        flops: Compute of a pruned pass with a placement.
    """
    trials: list[Trial] = []

    def attempt(choice: DetectorRecipe) -> Trial:
        known = next((trial for trial in trials if trial.recipe == choice), None)
        if known is None:
            placement = choice.placement(depth)
            known = Trial(choice, fit_head(held_out, choice, placement).validation, flops(placement))
            trials.append(known)
        return known

    best = max((attempt(replace(recipe, head=(layer,))) for layer in recipe.head), key=_value)
    for _ in range(_ROUNDS):
        before = best
        best = _search_layers(best, recipe.head, attempt)
        for name, values in _CANDIDATES.items():
            choices = (replace(best.recipe, **{name: value}) for value in values)  # type: ignore[arg-type]
            best = max(best, *(attempt(choice) for choice in choices if _fits(choice)), key=_value)
        if best is before:
            break
    return [*trials, best]


def _search_layers(best: Trial, candidates: Sequence[int], attempt: Callable[[DetectorRecipe], Trial]) -> Trial:
    """The best trial that adding or taking away one layer at a time leads to."""
    while True:
        head = best.recipe.head
        changed = (replace(best.recipe, head=tuple(sorted({*head} ^ {layer}))) for layer in candidates)
        after = max((attempt(choice) for choice in changed if _fits(choice)), key=_value)
        if after.value <= best.value:
            return best
        best = after


def _fits(choice: DetectorRecipe) -> bool:
    """Whether there is a head layer, and none before the deep router."""
    return bool(choice.head) and choice.head[0] >= choice.deep


def _value(trial: Trial) -> float:
    return trial.value


def pruned_flops(backbone: Backbone, grid: tuple[int, int], placement: Placement) -> float:
    """FLOPs of the backbone in a pass of prune70."""
    cells = grid[0] * grid[1]
    kept = [round(share * cells) for share in _KEPT]
    entering = patches_entering(placement, cells, *kept, early_exit=True)
    return float(sum(backbone_flops(shape_of(backbone), cells, entering)))
