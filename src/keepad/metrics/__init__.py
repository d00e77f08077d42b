"""How well scores rank, how well maps locate, and which defect tokens survive, in memory that does not grow.

Only NumPy and SciPy are needed. Every result is a plain fraction in [0, 1], or None where the measure does not exist.
"""

from keepad.metrics.pixel import PixelMetrics, PixelResult
from keepad.metrics.ranking import Estimate, auroc, average_precision, f1_max
from keepad.metrics.survival import Survival, SurvivalRate, SurvivalResult, clopper_pearson, defect_tokens

__all__ = [
    "Estimate",
    "PixelMetrics",
    "PixelResult",
    "Survival",
    "SurvivalRate",
    "SurvivalResult",
    "auroc",
    "average_precision",
    "clopper_pearson",
    "defect_tokens",
    "f1_max",
]
