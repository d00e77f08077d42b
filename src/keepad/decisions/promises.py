"""How many good images a promise needs, and what a number of good images can promise."""

from __future__ import annotations

import math

from keepad.errors import KeepADError

SLACK = 1e-9  # 0.29 * 100 is 28.999999999999996


def images_needed(level: float, confidence: float | None = None) -> int:
    """Number of good images that the promise of a false-alarm level needs.

    Args:
        level: Promised false-alarm rate.
        confidence: Share of all calibration sets for which it is to hold; None: on their average.

    Example:
        ```python
        images_needed(0.01), images_needed(0.01, 0.95)  # 99, 299
        ```
    """
    check_rate("a false-alarm level", level)
    needed = max(1, math.ceil(1 / level - SLACK) - 1)
    if confidence is not None:
        check_rate("a confidence", confidence)
        needed = max(needed, math.ceil(math.log1p(-confidence) / math.log1p(-level) - SLACK))
    return needed


def lowest_level(images: int, confidence: float | None = None) -> float:
    """Lowest false-alarm level that this number of good images can promise.

    Args:
        images: Number of good images.
        confidence: Share of all calibration sets for which it is to hold; None: on their average.

    Example:
        ```python
        lowest_level(99), lowest_level(299, 0.95)  # 0.01, 0.00997
        ```
    """
    if images < 1:
        raise KeepADError(f"{images} good images can promise nothing; use at least one.")
    level = 1 / (images + 1)
    if confidence is not None:
        check_rate("a confidence", confidence)
        level = max(level, -math.expm1(math.log1p(-confidence) / images))
    return level


def require_images(images: int, level: float, confidence: float | None = None) -> None:
    """Refuse a promise that this number of good images cannot keep, in a sentence that says what they can.

    Args:
        images: Number of good images.
        level: Promised false-alarm rate.
        confidence: Share of all calibration sets for which it is to hold; None: on their average.

    Raises:
        KeepADError: They are too few.

    Example:
        ```python
        require_images(3, 0.01)  # KeepADError: ... that needs 99; they can promise 25 %.
        ```
    """
    needed = images_needed(level, confidence)
    if images < needed:
        sure = "" if confidence is None else f" at {percent(confidence)} confidence"
        raise KeepADError(
            f"{images} good images cannot promise {percent(level)} false alarms{sure}: that needs {needed}; "
            f"they can promise {percent(lowest_level(images, confidence))}."
        )


def check_rate(what: str, value: float) -> None:
    """Raise a KeepADError unless a rate lies between 0 and 1."""
    if not 0 < value < 1:
        raise KeepADError(f"{value:g} cannot be {what}; it must lie between 0 and 1, as in 0.05 for 5 %.")


def percent(value: float) -> str:
    """A rate in words, as in "5 %"."""
    return f"{100 * value:.3g} %"
