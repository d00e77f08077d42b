"""Selectors: the few learned weights that score tokens for the routers."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from keepad.dissimilarity import dissimilarity_to_landmarks
from keepad.tokens import Shares


def selector_width(width: int) -> int:
    """Projection width h: 5/16 of the model's, which gives the paper's 1.97M selector parameters at width 1024."""
    return max(1, width * 5 // 16)


class VisualScore(nn.Module):
    """v_i = (Wq x_i) . (Wk mean(x)) / sqrt(h): how a token answers to the mean of its image."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = selector_width(width) ** -0.5
        self.query = nn.Linear(width, selector_width(width), bias=False)
        self.key = nn.Linear(width, selector_width(width), bias=False)

    def forward(self, x: Tensor, mass: Tensor | None = None) -> Tensor:
        """Scores of the live patches of one image, (n, C) -> (n,); mass: (n,) how often each counts in the mean."""
        # The key is one vector, so it is carried back through Wq once instead of Wq being applied to every token.
        mean = x.mean(0) if mass is None else mass @ x / mass.sum()
        direction = self.query.weight.T @ self.key(mean)
        return x @ direction * self.scale


class ShallowSelector(VisualScore):
    """Scores for the shallow router, without prototypes: shallow features know nothing of defects yet.

    Args:
        width: Width of the backbone.
        cue: Add how unlike the rest of its image a token is, by a learned weight.
    """

    def __init__(self, width: int, *, cue: bool = False) -> None:
        super().__init__(width)
        self.unlike = nn.Parameter(torch.zeros(())) if cue else None

    def forward(  # type: ignore[override]
        self,
        x: Tensor,
        index: Tensor,
        grid: tuple[int, int],
        shares: Shares | None = None,
        landmarks: Tensor | None = None,
    ) -> Tensor:
        """Scores of the live cells of one image, (n, C) -> (m,).

        Args:
            x: (n, C) tokens that enter the router.
            index: (m,) grid indices of the live cells.
            grid: Rows and columns of the grid.
            shares: Which of the tokens each cell has; None if each has its own.
            landmarks: Positions of the landmarks among the cells; found here if None.
        """
        place = None if shares is None else shares.place
        score = _on_cells(super().forward(x, None if shares is None else shares.mass), place)
        if self.unlike is None:
            return score
        unlike = dissimilarity_to_landmarks(x, index, grid, place=place, landmarks=landmarks)
        return score + self.unlike * standardised(unlike)


class DeepSelector(nn.Module):
    """Risks for the deep router: visual score plus gated likeness to the anomaly prototype.

    Args:
        width: Width of the backbone.
        cue: Add how unlike the rest of its image a token is, by a learned weight.
    """

    def __init__(self, width: int, *, cue: bool = False) -> None:
        super().__init__()
        self.visual = VisualScore(width)
        self.scale = selector_width(width) ** -0.5
        self.query = nn.Linear(width, selector_width(width), bias=False)
        self.key = nn.Linear(width, selector_width(width), bias=False)
        self.gate = nn.Parameter(torch.zeros(()))  # gamma
        self.unlike = nn.Parameter(torch.zeros(())) if cue else None

    def anomaly(self, x: Tensor, prototypes: Tensor) -> Tensor:
        """alpha_i, (n, C) -> (n,) in (0, 1); prototypes: (2, C), normal and anomaly."""
        normal, anomaly = prototypes
        direction = self.query.weight.T @ self.key(anomaly - normal)
        return torch.sigmoid(x @ direction * self.scale)

    def forward(
        self, x: Tensor, prototypes: Tensor, dissimilarity: Tensor | None = None, shares: Shares | None = None
    ) -> Tensor:
        """Fused risk r_i of the live cells of one image, (n, C) -> (m,).

        Args:
            x: (n, C) tokens that enter the router.
            prototypes: (2, C), normal and anomaly.
            dissimilarity: (m,) of the live cells, for a selector with that cue.
            shares: Which of the tokens each cell has; None if each has its own.
        """
        visual = self.visual(x, None if shares is None else shares.mass)
        risk = visual + torch.tanh(self.gate) * self.anomaly(x, prototypes)
        risk = _on_cells(risk, None if shares is None else shares.place)
        if self.unlike is None or dissimilarity is None:
            return risk
        return risk + self.unlike * standardised(dissimilarity)


def _on_cells(values: Tensor, place: Tensor | None) -> Tensor:
    """(m,) values of cells from those of their tokens, (n,)."""
    return values if place is None else values[place]


def standardised(values: Tensor) -> Tensor:
    """Zero mean and unit deviation over the cells of one image, (m,) -> (m,)."""
    return (values - values.mean()) / (values.std(correction=0) + 1e-6)
