"""Scale and bias that turn cosines of a head layer into responses."""

from __future__ import annotations

from dataclasses import dataclass

TEMPERATURE = 0.07


@dataclass(frozen=True)
class LogitScale:
    """Scale and bias of a head layer: response = sigmoid(patch_scale * cosine gap + dissimilarities + patch_bias).

    The defaults are the plain softmax over cosine / 0.07 of a pair of prototypes.

    Attributes:
        patch_scale: Inverse temperature of the patches.
        patch_bias: Added to the logit of a patch.
        dissimilarity: Weight of the dissimilarity within the image in this layer; 0 where it is not used.
        entry: Weight of the dissimilarity at the entry of the deep router, where many more tokens are alive.
        cls_scale: Inverse temperature of the CLS token.
        cls_bias: Added to the logit of the CLS token.
    """

    patch_scale: float = 1 / TEMPERATURE
    patch_bias: float = 0.0
    dissimilarity: float = 0.0
    entry: float = 0.0
    cls_scale: float = 1 / TEMPERATURE
    cls_bias: float = 0.0
