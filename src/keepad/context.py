"""Context: tokens that the shallow router dropped, and that the survivors still attend to until the deep router.

A dropped token has no query, no MLP and no response; only its keys and values are computed, a sixth of a block. It is
carried from block to block by the change of the survivors that it resembled most when it was dropped, so that its keys
and values belong to their layer. Without it a survivor sees nothing but other suspicious tokens, and its features are
no longer those that the head was trained on. Behind the deep router it gained nothing on the sources, so it ends there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

CARRIERS = 2  # survivors whose change a dropped token takes; more blur it, one alone is noisy


@dataclass(frozen=True)
class Context:
    """Dropped tokens of one image.

    Attributes:
        x: (m, C) features.
        cells: (k,) grid indices of the dropped cells.
        token: (k,) position of each cell's token among the m.
        size: (m,) cells per token; attention to it is proportional to that. Rows of size 0 are padding.
        carriers: (m, CARRIERS) positions of the survivors that carry it, among the live patches; None until they are
            known.
        rope: Rotary table with one row per token, (m, D) or (depth, heads, m, D), or None.
    """

    x: Tensor
    cells: Tensor
    token: Tensor
    size: Tensor
    carriers: Tensor | None = None
    rope: Tensor | None = None

    def carried_by(self, patches: Tensor, size: Tensor | None = None) -> Context:
        """The context with its carriers: the live patches, (n, C), that each token resembles most.

        Args:
            patches: Features of the live patches.
            size: (n,) cells per patch; those of size 0 are padding and carry nothing.
        """
        cosine = F.normalize(self.x, dim=-1) @ F.normalize(patches, dim=-1).T
        if size is not None:
            cosine = cosine.masked_fill(size == 0, -torch.inf)
        count = CARRIERS if torch.compiler.is_exporting() else min(CARRIERS, len(patches))
        return replace(self, carriers=cosine.topk(count, dim=1).indices)

    def moved(self, change: Tensor) -> Context:
        """The context behind a block, from the change of the live patches, (n, C)."""
        assert self.carriers is not None
        return replace(self, x=self.x + change[self.carriers].mean(1))
