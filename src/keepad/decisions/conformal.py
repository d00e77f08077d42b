"""Thresholds with a guarantee: split-conformal p-values from good images, and verdicts at a promised false-alarm rate.

The promise holds for images that are exchangeable with the calibration images: good ones, of the same product, camera
and light, that were neither references nor training images. Without `confidence` it holds on average over calibration
sets; with it, for that share of all calibration sets.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import Any, Literal, TypeAlias

import numpy as np
from scipy.special import bdtr

from keepad.arrays import Array
from keepad.decisions.fields import Fields
from keepad.decisions.promises import SLACK, check_rate, images_needed, percent, require_images
from keepad.errors import KeepADError

Verdict: TypeAlias = Literal["ok", "review", "defect"]

_REVIEW = 5  # default review level, in false-alarm levels
_MAX_REVIEW = 0.5  # default review level at most: a "review" for most good images helps nobody
_OUTLIER = 5.0  # robust standard deviations above the median


@dataclass(frozen=True)
class Calibrated:
    """Scores of good images, and what they promise.

    An image is a `defect` if its p-value is at most `level` (with `confidence`: so low that the false-alarm rate is at
    most `level` for that share of all calibration sets), `review` if it is at most `review_level`, else `ok`.

    Example:
        ```python
        calibrated = calibrate([detector(path).pred_score for path in good], level=0.01)
        calibrated.p_value(0.7), calibrated.verdict(0.7), calibrated.threshold
        ```

    Attributes:
        scores: Score of every calibration image.
        level: Promised share of good images that are called `defect`.
        review_level: Promised share of good images that are called `review` or `defect`.
        confidence: Share of all calibration sets for which `level` holds; None: it holds on their average.
        pixel_threshold: Lowest map value of a defective pixel: at most `level` of the good images have one. None
            without maps.
        names: File of every calibration image, or empty.
        hashes: Hash of every calibration image, or empty; tells references and calibration images apart.

    Raises:
        KeepADError: A value out of range, or fewer images than the promise needs.
    """

    scores: tuple[float, ...]
    level: float
    review_level: float
    confidence: float | None = None
    pixel_threshold: float | None = None
    names: tuple[str, ...] = ()
    hashes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_rate("a false-alarm level", self.level)
        check_rate("a review level", self.review_level)
        if self.confidence is not None:
            check_rate("a confidence", self.confidence)
        if self.review_level < self.level:
            raise KeepADError(
                f"The review level {percent(self.review_level)} is below the false-alarm level "
                f"{percent(self.level)}; raise it or leave it out."
            )
        _finite("calibration scores", self.scores, self.names)
        for what, values in (("names", self.names), ("hashes", self.hashes)):
            if values and len(values) != len(self.scores):
                raise KeepADError(f"There are {len(values)} {what} for {len(self.scores)} calibration scores.")
        if copies := len(self.hashes) - len(set(self.hashes)):
            raise KeepADError(
                f"{copies} of the {len(self.hashes)} calibration images are copies of others and promise nothing more; "
                "remove them."
            )
        _rank(len(self.scores), self.level, self.confidence)

    @property
    def promise(self) -> str:
        """What is promised, and from how many images, in words.

        Example:
            ```python
            calibrated.promise  # "at most 1 % false alarms on average, from 120 good images"
            ```
        """
        sure = "on average" if self.confidence is None else f"at {percent(self.confidence)} confidence"
        return f"at most {percent(self.level)} false alarms {sure}, from {len(self.scores)} good images"

    @cached_property
    def threshold(self) -> float:
        """Lowest score of a `defect`."""
        return _just_above(self.scores, _rank(len(self.scores), self.level, self.confidence))

    @cached_property
    def review_threshold(self) -> float:
        """Lowest score of a `review`; equal to `threshold` where nothing lies between."""
        rank = max(_rank(len(self.scores), self.review_level, None), 1)
        return min(_just_above(self.scores, rank), self.threshold)

    def p_value(self, score: float) -> float:
        """Share of good images that score at least this high, never below 1 / (n + 1).

        Example:
            ```python
            calibrated.p_value(prediction.pred_score)
            ```
        """
        return float(p_values(self.scores, [score])[0])

    def verdict(self, score: float) -> Verdict:
        """`ok`, `review` or `defect`.

        Example:
            ```python
            calibrated.verdict(prediction.pred_score)
            ```
        """
        _finite("scores", [score])
        if score >= self.threshold:
            return "defect"
        return "review" if score >= self.review_threshold else "ok"

    def to_dict(self) -> dict[str, Any]:
        """All fields, ready for JSON; `from_dict` reads them.

        Example:
            ```python
            json.dumps(calibrated.to_dict())
            ```
        """
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}

    @staticmethod
    def from_dict(values: object) -> Calibrated:
        """The calibration that `to_dict` wrote, every value checked.

        Example:
            ```python
            Calibrated.from_dict(json.loads(text))
            ```
        """
        read = Fields(values, "a saved calibration", [field.name for field in fields(Calibrated)])
        return Calibrated(
            scores=read.numbers("scores"),
            level=read.number("level"),
            review_level=read.number("review_level"),
            confidence=read.number_or_none("confidence"),
            pixel_threshold=read.number_or_none("pixel_threshold"),
            names=read.texts("names"),
            hashes=read.texts("hashes"),
        )


def calibrate(
    scores: Sequence[float] | Array,
    *,
    level: float = 0.01,
    review_level: float | None = None,
    confidence: float | None = None,
    map_maxima: Sequence[float] | Array | None = None,
    images: Mapping[str, str] | None = None,
) -> Calibrated:
    """A calibration that promises `level`, or a KeepADError that says how many good images this needs.

    Args:
        scores: (n,) scores of good images.
        level: Share of good images that may be called `defect`.
        review_level: Share of good images that may be called `review` or `defect`; five times `level`, at most 50 %, if
            None.
        confidence: Promise `level` for this share of all calibration sets instead of on their average.
        map_maxima: (n,) highest value of each image's anomaly map, for the pixel threshold.
        images: Hash by file name, in the order of the scores.

    Example:
        ```python
        calibrate(scores, level=0.05, confidence=0.95).threshold
        ```
    """
    values = tuple(float(score) for score in scores)
    images = images or {}
    pixel_threshold = None
    if map_maxima is not None:
        if len(map_maxima) != len(values):
            raise KeepADError(f"There are {len(map_maxima)} map maxima for {len(values)} calibration scores.")
        _finite("map maxima", map_maxima, tuple(images))
        # Maps are float32: the next float64 would be rounded back down when compared with them.
        maxima = np.asarray(map_maxima, np.float32)
        pixel_threshold = _just_above(maxima, _rank(len(values), level, confidence))
    if review_level is None:
        review_level = max(level, min(_REVIEW * level, _MAX_REVIEW))
    return Calibrated(
        scores=values,
        level=level,
        review_level=review_level,
        confidence=confidence,
        pixel_threshold=pixel_threshold,
        names=tuple(images),
        hashes=tuple(images.values()),
    )


def p_values(calibration: Sequence[float] | Array, scores: Sequence[float] | Array) -> Array:
    """(m,) split-conformal p-values: (1 + number of calibration scores at or above the score) / (n + 1).

    Args:
        calibration: (n,) scores of good images, in any order.
        scores: (m,) scores of the images in question.

    Example:
        ```python
        p_values([0.1, 0.2, 0.3], [0.25])  # 0.5
        ```
    """
    _finite("calibration scores", calibration)
    if len(scores):
        _finite("scores", scores)
    below = np.searchsorted(np.sort(np.asarray(calibration, np.float64)), np.asarray(scores, np.float64), side="left")
    return np.asarray((1 + len(calibration) - below) / (len(calibration) + 1))


def fdr_verdicts(calibrated: Calibrated, scores: Sequence[float] | Array, rate: float) -> list[Verdict]:
    """Verdicts for a folder, of whose `defect` images at most the share `rate` is expected to be good.

    Benjamini-Hochberg on conformal p-values, which stays valid although they share their calibration images. The other
    images are `review` where their p-value is at most the review level. Among m images, d can only be called defective
    if d >= m / (rate * (n + 1)), with n calibration images.

    Args:
        calibrated: The calibration.
        scores: (m,) scores of all images of the folder.
        rate: Expected share of good images among those called `defect`, at most.

    Example:
        ```python
        fdr_verdicts(calibrated, [prediction.pred_score for prediction in predictions], 0.05)
        ```
    """
    from scipy.stats import false_discovery_control  # seconds to import; few callers want it

    check_rate("a false discovery rate", rate)
    images = len(calibrated.scores)
    if images < (needed := images_needed(rate)):
        raise KeepADError(
            f"{images} calibration images are too few for a false discovery rate of {percent(rate)}; use at least "
            f"{needed}."
        )
    if not len(scores):
        return []
    p = p_values(calibrated.scores, scores)
    defect = false_discovery_control(p) <= rate + SLACK
    review = p <= calibrated.review_level + SLACK
    return ["defect" if d else "review" if r else "ok" for d, r in zip(defect, review, strict=True)]


def fewest_discoveries(calibrated: Calibrated, images: int, rate: float) -> int:
    """Images of a folder that must score above all calibration images before `fdr_verdicts` can call any a defect.

    Args:
        calibrated: The calibration.
        images: Images in the folder.
        rate: False discovery rate.

    Example:
        ```python
        fewest_discoveries(calibrated, 200, 0.05)  # 40 with 99 calibration images
        ```
    """
    return math.ceil(images / (rate * (len(calibrated.scores) + 1)) - SLACK)


def suspicious_images(names: Sequence[str], scores: Sequence[float] | Array) -> list[str]:
    """Names of calibration images that score far above the others and may be defective; the highest first.

    Far is five robust standard deviations (1.4826 times the median absolute deviation) above the median. The rule works
    while fewer than half of the images are defective.

    Args:
        names: (n,) files.
        scores: (n,) their scores.

    Example:
        ```python
        suspicious_images(["a.png", "b.png", "c.png", "d.png"], [0.10, 0.11, 0.12, 0.90])  # ["d.png"]
        ```
    """
    _finite("calibration scores", scores, names)
    if len(names) != len(scores):
        raise KeepADError(f"There are {len(names)} names for {len(scores)} calibration scores.")
    values = np.asarray(scores, np.float64)
    median = np.median(values)
    spread = 1.4826 * np.median(np.abs(values - median))
    spread = max(spread, 1e-3 * abs(median))  # most scores equal: the smallest difference is no outlier
    order = np.argsort(-values, kind="stable")
    return [names[i] for i in order if values[i] > median + _OUTLIER * spread]


def _rank(images: int, level: float, confidence: float | None) -> int:
    """Rank k from the top (1 is the highest): scores above the k-th highest calibration score are beyond `level`."""
    require_images(images, level, confidence)
    rank = math.floor(level * (images + 1) + SLACK)
    if confidence is not None:
        # The rate above the k-th highest of n scores is Beta(k, n + 1 - k): at most `level` with probability
        # P(Binomial(n, level) >= k).
        rank = min(rank, int((bdtr(np.arange(rank), images, level) <= 1 - confidence).sum()))
    return max(rank, 1)  # `images_needed` has granted the first


def _just_above(scores: Sequence[float] | Array, rank: int) -> float:
    """The lowest float above the score of this rank, so that `score >= threshold` means "above it"."""
    values = np.asarray(scores)
    highest = np.partition(values, len(values) - rank)[len(values) - rank]
    return float(np.nextafter(highest, values.dtype.type(np.inf)))


def _finite(what: str, values: Sequence[float] | Array, names: Sequence[str] = ()) -> None:
    if not len(values):
        raise KeepADError(f"There are no {what}; at least one image is needed.")
    try:
        bad = np.flatnonzero(~np.isfinite(np.asarray(values, np.float64)))
    except (TypeError, ValueError, OverflowError):
        raise KeepADError(f"The {what} must be numbers.") from None
    if len(bad):
        first = f"of {names[bad[0]]}" if len(names) == len(values) else f"number {bad[0] + 1}"
        raise KeepADError(
            f"{len(bad)} of {len(values)} {what} are not finite, the first {first}; check or leave out these images."
        )
