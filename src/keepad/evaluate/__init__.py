"""Evaluation: many operating points over one shared prefix, resumable, with tables, plots and a page of cases."""

from keepad.evaluate.cases import write_cases
from keepad.evaluate.evaluation import evaluate
from keepad.evaluate.plots import write_plots
from keepad.evaluate.results import Results

__all__ = ["Results", "evaluate", "write_cases", "write_plots"]
