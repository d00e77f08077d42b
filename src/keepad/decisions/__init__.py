"""Decisions that one can sign for: thresholds with a guarantee, the choice of an operating point, drift. No torch."""

from keepad.decisions.choice import Choice, TestedPoint, choose, defects_needed
from keepad.decisions.conformal import (
    Calibrated,
    Verdict,
    calibrate,
    fdr_verdicts,
    fewest_discoveries,
    p_values,
    suspicious_images,
)
from keepad.decisions.drift import HORIZON, Change, DriftMonitor, DriftState, bets
from keepad.decisions.promises import images_needed, lowest_level, require_images
from keepad.decisions.watch import WATCHED, DriftWatch

__all__ = [
    "HORIZON",
    "WATCHED",
    "Calibrated",
    "Change",
    "Choice",
    "DriftMonitor",
    "DriftState",
    "DriftWatch",
    "TestedPoint",
    "Verdict",
    "bets",
    "calibrate",
    "choose",
    "defects_needed",
    "fdr_verdicts",
    "fewest_discoveries",
    "images_needed",
    "lowest_level",
    "p_values",
    "require_images",
    "suspicious_images",
]
