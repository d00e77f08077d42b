"""Image, pixel and token-survival metrics in constant memory, with NumPy and SciPy only.

Every result is a fraction in [0, 1], or None where the metric is undefined.
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
