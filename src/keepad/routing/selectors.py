"""Selectors: the few learned weights that score tokens for the routers."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from keepad.dissimilarity import dissimilarity_to_landmarks
from keepad.routing.grid import standardise
from keepad.tokens import Merge


def selector_width(width: int) -> int:
    """Projection width h: 5/16 of the model's, which gives the paper's 1.97M selector parameters at width 1024."""
    return max(1, width * 5 // 16)


class VisualScore(nn.Module):
    """v_i = (Wq x_i) . (Wk mean(x)) / sqrt(h): response of a token to the mean token of its image."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = selector_width(width) ** -0.5
        self.query = nn.Linear(width, selector_width(width), bias=False)
        self.key = nn.Linear(width, selector_width(width), bias=False)

    def forward(self, x: Tensor, size: Tensor | None = None) -> Tensor:
        """Scores of the live patches of one image, (n, C) -> (n,); size: (n,) weight of each in the mean."""
        # The key is a single vector: Wq^T k once, instead of Wq on every token.
        mean = x.mean(0) if size is None else size @ x / size.sum()
        direction = self.query.weight.T @ self.key(mean)
        scores: Tensor = x @ direction * self.scale
        return scores


class ShallowSelector(VisualScore):
    """Scores for the shallow router: visual only, since shallow features do not separate defects yet.

    Args:
        width: Width of the backbone.
        cue: Add the dissimilarity to the rest of the image, with a learned weight.
    """

    def __init__(self, width: int, *, cue: bool = False) -> None:
        super().__init__(width)
        self.dissimilarity = nn.Parameter(torch.zeros(())) if cue else None

    def forward(  # type: ignore[override]
        self,
        x: Tensor,
        index: Tensor,
        grid: tuple[int, int],
        merge: Merge | None = None,
        landmarks: Tensor | None = None,
        one_in: int = 9,
    ) -> Tensor:
        """Scores of the live cells of one image, (n, C) -> (m,).

        Args:
            x: (n, C) tokens that enter the router.
            index: (m,) grid indices of the live cells.
            grid: Rows and columns of the grid.
            merge: Which token each cell uses; None if each has its own.
            landmarks: Positions of the landmarks among the cells; computed here if None.
            one_in: One in how many cells is a landmark.
        """
        score = _per_cell(super().forward(x, None if merge is None else merge.size), merge)
        if self.dissimilarity is None:
            return score
        dissimilarity = dissimilarity_to_landmarks(x, index, grid, merge=merge, landmarks=landmarks, one_in=one_in)
        return score + self.dissimilarity * standardise(dissimilarity)


class DeepSelector(nn.Module):
    """Risks for the deep router: visual score plus gated affinity to the anomaly prototype.

    Args:
        width: Width of the backbone.
        cue: Add the dissimilarity to the rest of the image, with a learned weight.
    """

    def __init__(self, width: int, *, cue: bool = False) -> None:
        super().__init__()
        self.visual = VisualScore(width)
        self.scale = selector_width(width) ** -0.5
        self.query = nn.Linear(width, selector_width(width), bias=False)
        self.key = nn.Linear(width, selector_width(width), bias=False)
        self.gate = nn.Parameter(torch.zeros(()))  # gamma
        self.dissimilarity = nn.Parameter(torch.zeros(())) if cue else None

    def anomaly(self, x: Tensor, prototypes: Tensor) -> Tensor:
        """alpha_i, (n, C) -> (n,) in (0, 1); prototypes: (2, C), normal and anomaly."""
        normal, anomaly = prototypes
        direction = self.query.weight.T @ self.key(anomaly - normal)
        return torch.sigmoid(x @ direction * self.scale)

    def forward(
        self, x: Tensor, prototypes: Tensor, dissimilarity: Tensor | None = None, merge: Merge | None = None
    ) -> Tensor:
        """Fused risk r_i of the live cells of one image, (n, C) -> (m,).

        Args:
            x: (n, C) tokens that enter the router.
            prototypes: (2, C), normal and anomaly.
            dissimilarity: (m,) of the live cells, for selectors with that cue.
            merge: Which token each cell uses; None if each has its own.
        """
        visual = self.visual(x, None if merge is None else merge.size)
        risk = visual + torch.tanh(self.gate) * self.anomaly(x, prototypes)
        risk = _per_cell(risk, merge)
        if self.dissimilarity is None or dissimilarity is None:
            return risk
        return risk + self.dissimilarity * standardise(dissimilarity)


def _per_cell(values: Tensor, merge: Merge | None) -> Tensor:
    """(m,) values of the cells from those of their tokens, (n,)."""
    return values if merge is None else values[merge.token]
