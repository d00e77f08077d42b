"""Routers: pure functions (scores, grid, budget) -> positions of the tokens that stay, and the selectors that score."""

from keepad.routing.deep import DeepChoice, choose_blocks, evidence_of, keep_deep, token_budget
from keepad.routing.grid import block_ids, rank_best_first
from keepad.routing.selectors import DeepSelector, ShallowSelector, VisualScore, selector_width, standardised
from keepad.routing.shallow import keep_shallow, shallow_target

__all__ = [
    "DeepChoice",
    "DeepSelector",
    "ShallowSelector",
    "VisualScore",
    "block_ids",
    "choose_blocks",
    "evidence_of",
    "keep_deep",
    "keep_shallow",
    "rank_best_first",
    "selector_width",
    "shallow_target",
    "standardised",
    "token_budget",
]
