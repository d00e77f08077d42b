"""Results: the numbers of an evaluation, from its finished images to averages over classes and suites.

`results.json` holds, all metrics in percent and null where a metric does not exist:

- settings: detector, variants (`points`), data, command, and seconds per image.
- averages: `suites` (suite -> point -> mean over classes), `overall` (point -> mean over suites) and, where the
  checkpoint has seen some suites in training, `unseen` (the same without these); each with `delta` to the reference.
- survival: the same without the means, as point -> router -> defect size, pooled over images; `uncounted` images had a
  defect too small to be left in the mask at input size. Where a reducer merges tokens, a position survives in "final"
  if a token grew from it, however many were averaged into that, and in "alone" if its token was averaged with no other.
- records: one for each suite, class and point.
- pixel_error: the most by which a pixel metric of any record can be off because of binning.
- errors: images that could not be used, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from keepad.evaluate.state import Row
from keepad.evaluate.variants import Variant
from keepad.metrics import Estimate, PixelResult, Survival, SurvivalRate, auroc, average_precision, f1_max

METRICS = (
    *("i_auroc", "p_auroc", "i_ap", "p_ap", "i_f1", "p_f1", "pro"),
    *("dtr_shallow", "dtr", "cmr_shallow", "cmr", "keep_pixels", "keep_shallow", "keep"),
    *("keep_good", "keep_defect"),
)
REFERENCE = "dense"  # what deltas are against by default
# Field of a row that counts the surviving defect tokens, by router.
_ROUTERS = {"shallow": "defect_shallow", "final": "defect"}


@dataclass(frozen=True)
class Results:
    """The numbers of an evaluation, and the folder that holds them.

    Attributes:
        out: Folder with results.json and results.md.
        content: Content of results.json.
        images: One row for every finished image, with `suite` and `class`.
        computed: How many of them this run computed; the others were there already.
        variants: The variants, in the order of all tables.
        records: One for each suite, class and variant.
        averages: Means over classes and suites.
        errors: Images that could not be used.
    """

    out: Path
    content: dict[str, Any]
    images: list[Row]
    computed: int
    variants: tuple[Variant, ...]

    @property
    def records(self) -> list[dict[str, Any]]:
        records: list[dict[str, Any]] = self.content["records"]
        return records

    @property
    def averages(self) -> dict[str, Any]:
        averages: dict[str, Any] = self.content["averages"]
        return averages

    @property
    def errors(self) -> list[dict[str, str]]:
        errors: list[dict[str, str]] = self.content["errors"]
        return errors


@dataclass(frozen=True)
class ClassOutcome:
    """The finished images of a class and the pixel metrics of every point."""

    suite: str
    cls: str
    rows: list[Row]
    pixels: dict[str, PixelResult]
    seen: bool


def make_records(outcomes: Iterable[ClassOutcome], points: Sequence[str]) -> list[dict[str, Any]]:
    """One record for each suite, class and point, in this order."""
    return [_record(outcome, point) for outcome in outcomes for point in points]


def _record(outcome: ClassOutcome, point: str) -> dict[str, Any]:
    rows, pixels = outcome.rows, outcome.pixels[point]
    labels = [row["label"] for row in rows]
    at_point = [row["points"][point] for row in rows]
    scores = [values["score"] for values in at_point]
    survival = _survival(rows, point)
    shallow, final = survival["shallow"]["all"], survival["final"]["all"]
    return {
        "suite": outcome.suite,
        "class": outcome.cls,
        "point": point,
        "n_good": labels.count(0),
        "n_defect": labels.count(1),
        "i_auroc": _percent(auroc(scores, labels) if rows else None),
        "p_auroc": _percent(pixels.auroc),
        "i_ap": _percent(average_precision(scores, labels) if rows else None),
        "p_ap": _percent(pixels.ap),
        "i_f1": _percent(f1_max(scores, labels) if rows else None),
        "p_f1": _percent(pixels.f1_max),
        "pro": _percent(pixels.pro),
        "dtr_shallow": shallow["dtr"],
        "dtr": final["dtr"],
        "cmr_shallow": shallow["cmr"],
        "cmr": final["cmr"],
        "keep_pixels": _percent(mean(values["keep_pixels"] for values in at_point)),
        "keep_shallow": _percent(mean(values["keep_shallow"] for values in at_point)),
        "keep": _percent(mean(values["keep"] for values in at_point)),
        "keep_good": _percent(_mean_keep(rows, point, 0)),
        "keep_defect": _percent(_mean_keep(rows, point, 1)),
        "seen_in_training": outcome.seen,
    }


def _mean_keep(rows: Iterable[Row], point: str, label: int) -> float | None:
    return mean(row["points"][point]["keep"] for row in rows if row["label"] == label)


def make_averages(
    records: Sequence[dict[str, Any]], points: Sequence[str], reference: str = REFERENCE
) -> dict[str, Any]:
    """Means over the classes of each suite, and means of these over suites; a metric's mean is over where it exists."""
    suites = {
        suite: {
            point: average([record for record in records if (record["suite"], record["point"]) == (suite, point)])
            for point in points
        }
        for suite in dict.fromkeys(record["suite"] for record in records)
    }
    seen = {record["suite"] for record in records if record["seen_in_training"]}
    averages: dict[str, Any] = {"suites": suites, "overall": _over_suites(suites.values(), points)}
    unseen = [of_points for suite, of_points in suites.items() if suite not in seen]
    if seen and unseen:
        averages["unseen"] = _over_suites(unseen, points)
    for of_points in (*suites.values(), *(averages[name] for name in ("overall", "unseen") if name in averages)):
        add_deltas(of_points, reference)
    return averages


def _over_suites(suites: Iterable[dict[str, Any]], points: Sequence[str]) -> dict[str, Any]:
    listed = list(suites)
    return {point: average([of_points[point] for of_points in listed]) for point in points}


def average(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The mean of every metric over the records that have it."""
    return {metric: mean(record[metric] for record in records) for metric in METRICS}


def add_deltas(of_points: dict[str, Any], reference: str) -> None:
    """Add `delta`, the change of every metric against the reference, to each point; None without the reference."""
    base = of_points.get(reference)
    for values in of_points.values():
        values["delta"] = base and {metric: _difference(values[metric], base[metric]) for metric in METRICS}


def make_survival(outcomes: Sequence[ClassOutcome], points: Sequence[str]) -> dict[str, Any]:
    """DTR and CMR of both routers by defect size, pooled over the images of each suite and over all."""
    rows: dict[str, list[Row]] = {}
    for outcome in outcomes:
        rows.setdefault(outcome.suite, []).extend(outcome.rows)
    seen = {outcome.suite for outcome in outcomes if outcome.seen}

    def pooled(suites: Iterable[str]) -> dict[str, Any]:
        together = [row for suite in suites for row in rows[suite]]
        return {point: _survival(together, point) for point in points}

    survival: dict[str, Any] = {"suites": {suite: pooled([suite]) for suite in rows}, "overall": pooled(rows)}
    unseen = [suite for suite in rows if suite not in seen]
    if seen and unseen:
        survival["unseen"] = pooled(unseen)
    return survival


def _survival(rows: Iterable[Row], point: str) -> dict[str, Any]:
    marked = [row for row in rows if row["defect_tokens"] is not None]
    rates: dict[str, Any] = {}
    merging = any(row["points"][point].get("defect_alone") is not None for row in marked)
    for router, field in {**_ROUTERS, **({"alone": "defect_alone"} if merging else {})}.items():
        survival = Survival()
        for row in marked:
            # Rows hold counts only, which is all the rates depend on: let the first tokens of the defect survive.
            survival.update(np.arange(row["points"][point][field]), np.ones((1, row["defect_tokens"]), dtype=bool))
        result = survival.compute()
        rates[router] = {"all": _rate(result.overall), **{size: _rate(rate) for size, rate in result.by_size.items()}}
        rates["uncounted"] = result.uncounted
    return rates


def _rate(rate: SurvivalRate) -> dict[str, Any]:
    return {
        "images": rate.images,
        "missed": rate.missed,
        "dtr": _percent(rate.dtr),
        "cmr": _percent(rate.cmr),
        "cmr_low": _percent(rate.cmr_low),
        "cmr_high": _percent(rate.cmr_high),
    }


def make_pixel_error(outcomes: Iterable[ClassOutcome]) -> dict[str, float | None]:
    """For each pixel metric the largest distance, in percent, that any record can have from its exact value."""
    results = [result for outcome in outcomes for result in outcome.pixels.values() if result.auroc is not None]

    def largest(estimates: Iterable[Estimate | None]) -> float | None:
        return _percent(max((estimate.error for estimate in estimates if estimate is not None), default=None))

    return {
        "p_auroc": largest(result.auroc for result in results),
        "p_ap": largest(result.ap for result in results),
        "p_f1": largest(result.f1_max for result in results),
        "pro": largest(result.pro for result in results),
    }


def _percent(value: float | Estimate | None) -> float | None:
    if value is None:
        return None
    return 100 * (value.value if isinstance(value, Estimate) else value)


def mean(values: Iterable[float | None]) -> float | None:
    """The mean of the values that exist, or None."""
    present = [value for value in values if value is not None]
    return sum(present) / len(present) if present else None


def _difference(value: float | None, reference: float | None) -> float | None:
    return None if value is None or reference is None else value - reference
