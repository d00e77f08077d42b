"""Recipes: everything that decides how a detector and its routers are trained, as frozen dataclasses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from keepad.errors import KeepADError
from keepad.presets import Placement


@dataclass(frozen=True)
class DetectorRecipe:
    """How the dense detector is trained.

    Attributes:
        name: What users call it.
        head: Blocks that feed the head, as 24ths of the depth.
        epochs: Passes over the source; validation may choose an earlier one.
        batch: Images in a step.
        rate: Learning rate of AdamW at its start; it falls along a cosine.
        decay: Weight decay.
        augmented: Share of the samples that are replaced by one of their views.
        views: Views of each image that are cached.
        mask_loss: Compare maps and masks at mask size instead of on the patch grid.
        validation: "images" holds every fifth image of each class out; "products" trains one head for each product
            (suite, or class where there are few suites) without it and asks that head about it.
        level: Give every layer the same spread of evidence instead of one temperature.
        unlike: Weight of dissimilarity beside the prototypes, both in units of their spread on source; 0 is without.
        entry: The same for dissimilarity where the tokens enter the deep router.
        centre: Evidence above the source's mean that becomes a response of one half, in units of spread.
        smoothing: Sigma of a Gaussian on the patch map, in patches.
        top_fraction: Share of the tokens whose responses make the patch evidence of an image.
        top_of: Of which tokens: "survivors" or the whole "grid".
    """

    name: str
    head: tuple[int, ...] = (12, 15, 18, 21, 24)
    epochs: int = 15
    batch: int = 8
    rate: float = 1e-3
    decay: float = 0.01
    augmented: float = 0.5
    views: int = 1
    mask_loss: bool = True
    validation: str = "images"
    level: bool = False
    unlike: float = 0.0
    entry: float = 0.0
    centre: float = 0.0
    smoothing: float = 0.0
    top_fraction: float = 0.05
    top_of: str = "survivors"

    def layers(self, depth: int) -> tuple[int, ...]:
        """Blocks whose outputs are needed: those of the head, and the one before the deep router if it is looked at."""
        place = self.placement(depth)
        return (place.deep - 1, *place.head_layers) if self.entry else place.head_layers

    def placement(self, depth: int) -> Placement:
        """Where routers, head and exit sit in a backbone of `depth` blocks."""
        return Placement.for_depth(depth, head=self.head)


RECIPES: dict[str, DetectorRecipe] = {
    "paper": DetectorRecipe("paper"),
    "keepad": DetectorRecipe(
        "keepad",
        head=(12, 15, 18),
        epochs=3,
        augmented=0.0,
        views=0,
        mask_loss=False,
        validation="products",
        level=True,
        unlike=0.5,
        entry=0.5,
        centre=4.0,
        smoothing=1.0,
        top_fraction=0.01,
        top_of="grid",
    ),
}
DEFAULT_RECIPE = "keepad"


def recipe_named(name: str) -> DetectorRecipe:
    """The recipe of that name, or a KeepADError."""
    if name not in RECIPES:
        raise KeepADError(f"there is no recipe called {name!r}; choose one of {', '.join(RECIPES)}.")
    return RECIPES[name]


@dataclass(frozen=True)
class RouterRecipe:
    """How the selectors of both routers are trained.

    Attributes:
        name: What users call it.
        epochs: Passes over the source; validation may choose an earlier one.
        batch: Images in a step.
        rate: Learning rate of AdamW.
        decay: Weight decay.
        cues: Add dissimilarity to the scores of both routers, by learned weights.
        start: First values of the selectors: "drawn" from the seed, or "unlike" the mean of the image.
        point: Operating point whose routers run in training and validation.
        rescue: Tokens that the shallow router keeps beyond coverage in training; the point's own number if None.
        grades: How much a deviation of the shallow score, and of the risk, moves a recovered response, in logits.
        losses: Weight of each loss beside that of detection.
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
        """The same without some of its losses, or a KeepADError."""
        known = [name for name, _ in self.losses]
        for name in names:
            if name not in known:
                raise KeepADError(f"there is no loss called {name!r} to leave out; choose from {', '.join(known)}.")
        return replace(self, losses=tuple(one for one in self.losses if one[0] not in names))


ROUTER_RECIPES: dict[str, RouterRecipe] = {
    "paper": RouterRecipe("paper"),
    "keepad": RouterRecipe(
        "keepad",
        epochs=1,
        rate=3e-4,
        cues=True,
        start="unlike",
        point="prune70",
        rescue=None,
        grades=(0.25, 1.0),
        points=("prune30", "prune50", "prune70"),
    ),
}


def router_recipe_named(name: str) -> RouterRecipe:
    """The recipe of that name, or a KeepADError."""
    if name not in ROUTER_RECIPES:
        raise KeepADError(f"there is no recipe called {name!r}; choose one of {', '.join(ROUTER_RECIPES)}.")
    return ROUTER_RECIPES[name]
