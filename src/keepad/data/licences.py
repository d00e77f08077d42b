"""Licences of public data sets, for the provenance in checkpoints."""

from __future__ import annotations

_LICENCES = {
    "mvtec": "CC BY-NC-SA 4.0",
    "visa": "CC BY 4.0",
    "ksdd": "CC BY-NC-SA 4.0",
    "ksdd2": "CC BY-NC-SA 4.0",
}
_UNKNOWN = "the terms of its publisher"


def licence_of(suite: str) -> str:
    """The licence of a data set by its usual short name, or a phrase for unknown ones."""
    return _LICENCES.get(suite.lower(), _UNKNOWN)
