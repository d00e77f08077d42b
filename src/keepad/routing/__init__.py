"""Routers: pure NumPy functions (scores, grid, budget) -> positions of the tokens that stay. Selectors need torch."""

from keepad.routing.deep import DeepChoice, absolute_evidence, choose_blocks, evidence_of, keep_deep, token_budget
from keepad.routing.grid import Grid, block_ids, cell_ids, is_landmark, relabel, standardise
from keepad.routing.pixel import PixelRouting, route_pixels
from keepad.routing.shallow import keep_shallow, shallow_target
from keepad.routing.shared import far_from_others, pooled, share_deep, share_shallow

__all__ = [
    "DeepChoice",
    "Grid",
    "PixelRouting",
    "absolute_evidence",
    "block_ids",
    "cell_ids",
    "choose_blocks",
    "evidence_of",
    "far_from_others",
    "is_landmark",
    "keep_deep",
    "keep_shallow",
    "pooled",
    "relabel",
    "route_pixels",
    "shallow_target",
    "share_deep",
    "share_shallow",
    "standardise",
    "token_budget",
]
