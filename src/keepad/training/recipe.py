"""Recipes: hyperparameters of both training stages, as frozen dataclasses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from keepad.errors import KeepADError
from keepad.presets import Placement

DEEP_CANDIDATES = (12, 14, 16)  # where tuning may put the deep router, as 24ths of the depth

Recipe = TypeVar("Recipe", "DetectorRecipe", "RouterRecipe")


@dataclass(frozen=True)
class DetectorRecipe:
    """Hyperparameters of the dense detector.

    Attributes:
        name: Name of the recipe.
        head: Blocks that feed the head, as 24ths of the depth; with `tuned`, the candidates.
        deep: Block that the deep router precedes, as 24ths of the depth; with `tuned`, the first candidate.
        exit: Block after which pruned passes stop, as 24ths of the depth.
        gate: Mix a base score (first and last head layer) with a mid score (all of them) by the gate; without it, both
            are over all head layers.
        epochs: Passes over the source; validation may choose an earlier one.
        batch: Images per step.
        rate: Initial learning rate of AdamW; cosine schedule.
        decay: Weight decay.
        augmented: Share of the samples that are replaced by an augmented view.
        views: Cached views per image, drawn once for all epochs: features of a fresh draw would have to be computed in
            every epoch. More views come nearer to that.
        pixel_loss: Compute focal and Dice at mask size instead of on the patch grid.
        layer_losses: Compute the losses of each layer's map instead of their mean, so that a layer's prototypes do not
            depend on which others are used.
        validation: "images" holds every fifth image of each class out; "products" trains one head without each product
            (suite, or class where there are few suites) and validates that head on it.
        level: Scale the logits of every layer to the same spread instead of using one temperature.
        dissimilarity: Weight of a layer's dissimilarity beside its prototypes, in units of spread on source; 0 is none.
        entry: The same for the dissimilarity of the tokens that enter the deep router.
        centre: Logit above the source mean that maps to a response of 0.5, in units of spread.
        smoothing: Sigma of a Gaussian on the patch map, in patches.
        patch_weight: Weight of the patch score beside the CLS score (lambda); fitted on held-out images if None.
        top_fraction: Share of the tokens whose responses form the patch score of an image.
        top_of: The tokens that share refers to: "survivors" or the whole "grid".
        tuned: Choose head layers, place of the deep router, weight of `entry`, centre, smoothing and top fraction on
            held-out source images (see `keepad.training.tuning`); the values here are where the search starts.
    """

    name: str
    head: tuple[int, ...] = (12, 15, 18, 21, 24)
    deep: int = 12
    exit: int = 21
    gate: bool = True
    epochs: int = 15
    batch: int = 8
    rate: float = 1e-3
    decay: float = 0.01
    augmented: float = 0.5
    views: int = 1
    pixel_loss: bool = True
    layer_losses: bool = False
    validation: str = "images"
    level: bool = False
    dissimilarity: float = 0.0
    entry: float = 0.0
    centre: float = 0.0
    smoothing: float = 0.0
    patch_weight: float | None = None
    top_fraction: float = 0.05
    top_of: str = "survivors"
    tuned: bool = False

    def layers(self, depth: int) -> tuple[int, ...]:
        """Blocks whose outputs are cached: the head layers and, for `entry`, the blocks before a deep router."""
        before = {placement.deep - 1 for placement in self.placements(depth)} if self.entry else set()
        return tuple(sorted(before.union(self.placement(depth).head_layers)))

    def placement(self, depth: int) -> Placement:
        """Layers of routers, head and exit in a backbone of `depth` blocks."""
        placement = Placement.for_depth(depth, head=self.head, deep=self.deep, exit=self.exit)
        return placement if self.gate else replace(placement, base_layers=placement.mid_layers)

    def placements(self, depth: int) -> list[Placement]:
        """The placements that tuning may choose from, by their deep router; head layers before it are left out."""
        choices = DEEP_CANDIDATES if self.tuned else (self.deep,)
        heads = {deep: tuple(layer for layer in self.head if layer >= deep) for deep in choices}
        return [replace(self, deep=deep, head=head).placement(depth) for deep, head in heads.items() if head]


RECIPES: dict[str, DetectorRecipe] = {
    "paper": DetectorRecipe("paper"),
    "keepad": DetectorRecipe(
        "keepad",
        head=(12, 14, 16, 18, 20, 22, 24),
        exit=24,
        gate=False,
        epochs=3,
        augmented=0.0,
        views=0,
        pixel_loss=False,
        layer_losses=True,
        validation="products",
        level=True,
        entry=0.5,
        centre=4.0,
        smoothing=1.0,
        patch_weight=0.5,
        top_fraction=0.01,
        top_of="grid",
        tuned=True,
    ),
}


@dataclass(frozen=True)
class RouterRecipe:
    """Hyperparameters of the selectors of both routers.

    Attributes:
        name: Name of the recipe.
        epochs: Passes over the source; validation may choose an earlier one.
        batch: Images per step.
        rate: Initial learning rate of AdamW; cosine schedule.
        decay: Weight decay.
        cues: Add dissimilarity to the scores of both routers, with learned weights.
        start: Initial selectors: "drawn" from the seed, "unit" (the same, scaled so that scores deviate by one within
            the images of the source, which the temperatures of the relaxation take for granted), or "dissimilar",
            preferring tokens far from the image's mean.
        point: Operating point of training and validation.
        rescue: Tokens that the shallow router keeps beyond coverage in training; the point's own number if None.
        grades: Change of a recovered response, in logits, per deviation of the shallow score and of the risk.
        landmarks: One in how many cells is a landmark of the shallow router, 9 or 2.
        score_smoothing: Sigma of a Gaussian on the scores that rescue goes by, in patches.
        context: Whether survivors of the shallow router attend to what it dropped, until the deep router.
        images: Largest number of images per epoch, drawn evenly; all if None.
        losses: Weight of each loss beside detection.
        points: Operating points to calibrate; the second one sets the thresholds.
        refit: Fit lambda and gate again for these points; else they stay those of the dense detector.
        cosine: Let the learning rate fall along a cosine; else it is constant.
        clip: Largest gradient norm of a step; unlimited if None.
        held_out: Validate on every fifth image of a class, which is not trained on; else train and validate on all.
        pixel_loss: Detection loss at mask size, as in stage 1 of the published recipe, instead of on the patch grid.
        hard_choice: Training chooses tokens by the scores that inference sees, instead of by those of rows that its
            soft masks have scaled.
        keep_epoch: Epoch that is kept, counted from 1; the best in validation if None.
        tuned: Choose the place of the shallow router, smoothing of its scores, coverage, kappa and grades on the source
            (see `keepad.training.router_tuning`); the values here are where the search starts.
    """

    name: str
    epochs: int = 10
    batch: int = 4
    rate: float = 5e-5
    decay: float = 0.01
    cues: bool = False
    start: str = "drawn"
    point: str = "paper70"
    rescue: int | None = 64
    grades: tuple[float, float] = (0.0, 0.0)
    landmarks: int = 9
    score_smoothing: float = 0.0
    context: bool = False
    images: int | None = None
    losses: tuple[tuple[str, float], ...] = (("flops", 0.45), ("preserve", 0.22), ("teacher", 0.60), ("mask", 0.25))
    points: tuple[str, ...] = ("paper30", "paper50", "paper70")
    refit: bool = True
    cosine: bool = True
    clip: float | None = 1.0
    held_out: bool = True
    pixel_loss: bool = False
    hard_choice: bool = False
    keep_epoch: int | None = None
    tuned: bool = False

    def without(self, names: Sequence[str]) -> RouterRecipe:
        """The recipe without the named losses, or a KeepADError."""
        known = [name for name, _ in self.losses]
        for name in names:
            if name not in known:
                raise KeepADError(f"there is no loss called {name!r} to leave out; choose from {', '.join(known)}.")
        return replace(self, losses=tuple((name, weight) for name, weight in self.losses if name not in names))


ROUTER_RECIPES: dict[str, RouterRecipe] = {
    "paper": RouterRecipe(
        "paper", start="unit", cosine=False, clip=None, held_out=False, pixel_loss=True, hard_choice=True
    ),
    "keepad": RouterRecipe(
        "keepad",
        epochs=1,
        rate=3e-4,
        cues=True,
        start="dissimilar",
        point="prune70",
        rescue=None,
        grades=(0.25, 1.0),
        landmarks=2,
        score_smoothing=1.0,
        context=True,
        images=240,
        points=("prune30", "prune50", "prune70"),
        refit=False,
        tuned=True,
    ),
}


def recipe_named(recipes: Mapping[str, Recipe], name: str) -> Recipe:
    """The recipe of that name among RECIPES or ROUTER_RECIPES, or a KeepADError."""
    if name not in recipes:
        raise KeepADError(f"there is no recipe called {name!r}; choose one of {', '.join(recipes)}.")
    return recipes[name]
