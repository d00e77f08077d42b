"""Decisions that one can sign for: thresholds with a guarantee, the choice of an operating point, drift. No torch."""

from keepad.decisions.choice import Choice, TestedPoint, choose, defects_needed
from keepad.decisions.conformal import (
    Calibrated,
    Verdict,
    calibrate,
    fdr_verdicts,
    images_needed,
    lowest_level,
    p_values,
    suspicious_images,
)

__all__ = [
    "Calibrated",
    "Choice",
    "TestedPoint",
    "Verdict",
    "calibrate",
    "choose",
    "defects_needed",
    "fdr_verdicts",
    "images_needed",
    "lowest_level",
    "p_values",
    "suspicious_images",
]
