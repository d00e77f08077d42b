"""Routers: pure functions (scores, grid, budget) -> positions of the tokens that stay, and the selectors that score."""

from keepad.budgets import block_ids, shallow_target, token_budget
from keepad.routing.deep import DeepChoice, choose_blocks, evidence_of, keep_deep
from keepad.routing.grid import rank_best_first
from keepad.routing.selectors import DeepSelector, ShallowSelector, VisualScore, selector_width, standardised
from keepad.routing.shallow import keep_shallow

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
