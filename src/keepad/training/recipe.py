"""Recipes: hyperparameters of both training stages, as frozen dataclasses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from keepad.errors import KeepADError
from keepad.presets import Placement

Recipe = TypeVar("Recipe", "DetectorRecipe", "RouterRecipe")


@dataclass(frozen=True)
class DetectorRecipe:
    """Hyperparameters of the dense detector.

    Attributes:
        name: Name of the recipe.
        head: Blocks that feed the head, as 24ths of the depth.
        epochs: Passes over the source; validation may choose an earlier one.
        batch: Images per step.
        rate: Initial learning rate of AdamW; cosine schedule.
        decay: Weight decay.
        augmented: Share of the samples that are replaced by an augmented view.
        views: Cached views per image.
        pixel_loss: Compute focal and Dice at mask size instead of on the patch grid.
        validation: "images" holds every fifth image of each class out; "products" trains one head without each product
            (suite, or class where there are few suites) and validates that head on it.
        level: Scale the logits of every layer to the same spread instead of using one temperature.
        dissimilarity: Weight of a layer's dissimilarity beside its prototypes, in units of spread on source; 0 is none.
        entry: The same for the dissimilarity of the tokens that enter the deep router.
        centre: Logit above the source mean that maps to a response of 0.5, in units of spread.
        smoothing: Sigma of a Gaussian on the patch map, in patches.
        top_fraction: Share of the tokens whose responses form the patch score of an image.
        top_of: The tokens that share refers to: "survivors" or the whole "grid".
    """

    name: str
    head: tuple[int, ...] = (12, 15, 18, 21, 24)
    epochs: int = 15
    batch: int = 8
    rate: float = 1e-3
    decay: float = 0.01
    augmented: float = 0.5
    views: int = 1
    pixel_loss: bool = True
    validation: str = "images"
    level: bool = False
    dissimilarity: float = 0.0
    entry: float = 0.0
    centre: float = 0.0
    smoothing: float = 0.0
    top_fraction: float = 0.05
    top_of: str = "survivors"

    def layers(self, depth: int) -> tuple[int, ...]:
        """Blocks whose outputs are cached: the head layers, and the block before the deep router for `entry`."""
        placement = self.placement(depth)
        return (placement.deep - 1, *placement.head_layers) if self.entry else placement.head_layers

    def placement(self, depth: int) -> Placement:
        """Layers of routers, head and exit in a backbone of `depth` blocks."""
        return Placement.for_depth(depth, head=self.head)


RECIPES: dict[str, DetectorRecipe] = {
    "paper": DetectorRecipe("paper"),
    "keepad": DetectorRecipe(
        "keepad",
        head=(12, 15, 18),
        epochs=3,
        augmented=0.0,
        views=0,
        pixel_loss=False,
        validation="products",
        level=True,
        dissimilarity=0.5,
        entry=0.5,
        centre=4.0,
        smoothing=1.0,
        top_fraction=0.01,
        top_of="grid",
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
        start: Initial selectors: "drawn" from the seed, or "dissimilar", preferring tokens far from the image's mean.
        point: Operating point of training and validation.
        rescue: Tokens that the shallow router keeps beyond coverage in training; the point's own number if None.
        grades: Change of a recovered response, in logits, per deviation of the shallow score and of the risk.
        losses: Weight of each loss beside detection.
        points: Operating points that lambda and gate are fitted for; the second one sets the thresholds.
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
    losses: tuple[tuple[str, float], ...] = (("flops", 0.45), ("preserve", 0.22), ("teacher", 0.60), ("mask", 0.25))
    points: tuple[str, ...] = ("paper30", "paper50", "paper70")

    def without(self, names: Sequence[str]) -> RouterRecipe:
        """The recipe without the named losses, or a KeepADError."""
        known = [name for name, _ in self.losses]
        for name in names:
            if name not in known:
                raise KeepADError(f"there is no loss called {name!r} to leave out; choose from {', '.join(known)}.")
        return replace(self, losses=tuple((name, weight) for name, weight in self.losses if name not in names))


ROUTER_RECIPES: dict[str, RouterRecipe] = {
    "paper": RouterRecipe("paper"),
    "keepad": RouterRecipe(
        "keepad",
        epochs=1,
        rate=3e-4,
        cues=True,
        start="dissimilar",
        point="prune70",
        rescue=None,
        grades=(0.25, 1.0),
        points=("prune30", "prune50", "prune70"),
    ),
}


def recipe_named(recipes: Mapping[str, Recipe], name: str) -> Recipe:
    """The recipe of that name among RECIPES or ROUTER_RECIPES, or a KeepADError."""
    if name not in recipes:
        raise KeepADError(f"there is no recipe called {name!r}; choose one of {', '.join(recipes)}.")
    return recipes[name]
