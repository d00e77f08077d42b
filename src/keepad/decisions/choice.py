"""The fastest operating point whose rate of missed defects is bounded, by fixed-sequence testing.

Points are tested in an order that was set before the defects were seen: dense first, then from slower to faster. Each
test is exact (binomial) at the full error rate, and the first point that fails ends the sequence; so the chosen point
exceeds the bound with a probability of at most 1 - confidence, however many points there are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from scipy.special import bdtr

from keepad.decisions.fields import Fields
from keepad.errors import KeepADError
from keepad.metrics.survival import clopper_pearson


@dataclass(frozen=True)
class TestedPoint:
    """One row of the table of a choice.

    Attributes:
        point: Name of the operating point.
        missed: Number of defects that it missed.
        rate: Share of the defects that it missed.
        bound: Upper limit of the true rate at the confidence of the choice, for this point alone (Clopper-Pearson).
        p_value: Probability of so few misses if the true rate were `max_miss`.
        result: `passed`, `failed`, or `not tested` after a point that failed.
    """

    point: str
    missed: int
    rate: float
    bound: float
    p_value: float
    result: Literal["passed", "failed", "not tested"]

    __test__ = False  # not a test class, pytest


@dataclass(frozen=True)
class Choice:
    """The chosen operating point, the bound that it keeps and the table behind it.

    Example:
        ```python
        choice = choose({"dense": 0, "prune50": 1, "prune70": 9}, defects=400, max_miss=0.02)
        choice.point  # "prune50"
        ```

    Attributes:
        point: The fastest point that passed; None if not even the first did.
        max_miss: Highest share of defects that may be missed.
        confidence: Probability that the true share of the chosen point is at most `max_miss`.
        defects: Number of defects behind the choice.
        table: All points, in the order of the tests.
    """

    point: str | None
    max_miss: float
    confidence: float
    defects: int
    table: tuple[TestedPoint, ...]

    @property
    def sentence(self) -> str:
        """The result in one sentence.

        Example:
            ```python
            print(choice.sentence)
            ```
        """
        return self.described("missed")

    def described(self, what: str) -> str:
        """The result in one sentence.

        Args:
            what: What was counted: "missed", or "lost" for defects that lost all tokens.

        Example:
            ```python
            print(choice.described("lost"))
            ```
        """
        promise = (
            f"at most {100 * self.max_miss:.3g} % of the defects {what}, at {100 * self.confidence:.3g} % confidence"
        )
        row = next(
            (row for row in reversed(self.table) if row.result == "passed"),
            self.table[0],
        )
        counts = f"{row.missed} of {self.defects} {what}, bound {100 * row.bound:.3g} %"
        if self.point is None:
            return f"No operating point can promise {promise}: {row.point} fails already ({counts})."
        return f"{self.point} is the fastest operating point with {promise} ({counts})."

    def to_dict(self) -> dict[str, Any]:
        """All fields, ready for JSON; `from_dict` reads them.

        Example:
            ```python
            json.dumps(choice.to_dict())
            ```
        """
        return {**asdict(self), "table": [asdict(row) for row in self.table]}

    @staticmethod
    def from_dict(values: object) -> Choice:
        """The choice that `to_dict` wrote; made again from its counts, so that a file cannot claim another one.

        Example:
            ```python
            Choice.from_dict(json.loads(text))
            ```
        """
        what = "a saved choice of an operating point"
        read = Fields(values, what, list(Choice.__dataclass_fields__))
        counts: dict[str, int] = {}
        for item in read.items("table"):
            row = Fields(item, f"a row of {what}", list(TestedPoint.__dataclass_fields__))
            counts[row.text("point")] = row.integer("missed")
        choice = choose(
            counts,
            defects=read.integer("defects", low=1),
            max_miss=read.number("max_miss"),
            confidence=read.number("confidence"),
        )
        if choice.point != read.value("point") or len(counts) != len(read.items("table")):
            raise KeepADError(f"This is not {what}: its point does not follow from its table.")
        return choice


def choose(missed: Mapping[str, int], *, defects: int, max_miss: float, confidence: float = 0.95) -> Choice:
    """The fastest point whose miss rate is at most `max_miss`, with the table of all tests.

    Args:
        missed: Number of missed defective images (or of defects that lost all tokens) by operating point; dense first,
            then from slower to faster. The order must not depend on these counts.
        defects: Number of defects that every point was tried on.
        max_miss: Highest share that may be missed.
        confidence: Probability with which this is to hold for the chosen point.

    Raises:
        KeepADError: So few defects that even a point without a miss would fail; the sentence says how many are needed.

    Example:
        ```python
        choose({"dense": 0, "prune50": 1, "prune70": 9}, defects=400, max_miss=0.02).point  # "prune50"
        ```
    """
    needed = defects_needed(max_miss, confidence)
    if defects < needed:
        raise KeepADError(
            f"{defects} defects cannot bound the missed ones by {100 * max_miss:.3g} % at {100 * confidence:.3g} % "
            f"confidence, even without a miss; {needed} are needed."
        )
    if not missed:
        raise KeepADError("There is no operating point to choose from.")
    rows: list[TestedPoint] = []
    chosen: str | None = None
    stopped = False
    for point, count in missed.items():
        if not 0 <= count <= defects:
            raise KeepADError(f"{point} cannot have missed {count} of {defects} defects.")
        p_value = float(bdtr(count, defects, max_miss))
        passed = not stopped and p_value <= 1 - confidence
        rows.append(
            TestedPoint(
                point=point,
                missed=count,
                rate=count / defects,
                bound=clopper_pearson(count, defects, tail=1 - confidence)[1],
                p_value=p_value,
                result="passed" if passed else "not tested" if stopped else "failed",
            )
        )
        chosen = point if passed else chosen
        stopped = not passed
    return Choice(chosen, max_miss, confidence, defects, tuple(rows))


def defects_needed(max_miss: float, confidence: float = 0.95) -> int:
    """Number of defects from which a point without a miss is bounded by `max_miss`.

    Args:
        max_miss: Highest share that may be missed.
        confidence: Probability with which this is to hold.

    Example:
        ```python
        defects_needed(0.02)  # 149
        ```
    """
    for what, value in (("a highest miss rate", max_miss), ("a confidence", confidence)):
        if not 0 < value < 1:
            raise KeepADError(f"{value:g} cannot be {what}; it must lie between 0 and 1, as in 0.02 for 2 %.")
    return max(1, math.ceil(math.log1p(-confidence) / math.log1p(-max_miss) - 1e-9))
