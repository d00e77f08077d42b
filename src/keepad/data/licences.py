"""Licences of public data sets, so that a checkpoint can say what it was trained on and under which terms."""

from __future__ import annotations

_LICENCES = {
    "mvtec": "CC BY-NC-SA 4.0",
    "visa": "CC BY 4.0",
    "ksdd": "CC BY-NC-SA 4.0",
    "ksdd2": "CC BY-NC-SA 4.0",
}
UNKNOWN = "the terms of its publisher"


def licence_of(suite: str) -> str:
    """The licence of a data set by its usual short name; where it is not known here, a phrase that says so."""
    return _LICENCES.get(suite.lower(), UNKNOWN)
