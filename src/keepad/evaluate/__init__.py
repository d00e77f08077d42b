"""Evaluation: accuracy of variants side by side, resumable, with tables, plots and a page of cases."""

from keepad.evaluate.cases import write_cases
from keepad.evaluate.evaluation import Options, evaluate
from keepad.evaluate.plots import write_plots
from keepad.evaluate.results import Results
from keepad.evaluate.selection import seen_suites, unseen
from keepad.evaluate.summary import write_summary
from keepad.evaluate.variants import Variant, View

__all__ = [
    "Options",
    "Results",
    "Variant",
    "View",
    "evaluate",
    "seen_suites",
    "unseen",
    "write_cases",
    "write_plots",
    "write_summary",
]
