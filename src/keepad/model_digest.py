"""Digest of a detector: equal where the scores are."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict

from keepad.detector import Detector
from keepad.references.teaching import owner_of


def model_digest(detector: Detector) -> str:
    """A short digest of all that determines scores and verdicts: checkpoint, backbone, point, precision, profile.

    Example:
        >>> model_digest(keepad.load())
        '5c1d0b7a90f2e6d4'
    """
    digest = hashlib.sha256(json.dumps(asdict(owner_of(detector, detector.point)), sort_keys=True).encode())
    if detector.profile is not None:
        bank, calibrated = detector.profile.bank, detector.profile.calibrated
        if bank is not None:
            for rows in (bank.shallow, bank.deep, bank.layers):
                digest.update(rows.tobytes())
            digest.update(repr((bank.level, bank.spread)).encode())
        if calibrated is not None:  # p-values and verdicts
            digest.update(json.dumps(calibrated.to_dict(), sort_keys=True).encode())
    return digest.hexdigest()[:16]
