"""Numbers of a table's cells, from the rows of an evaluation and the records of a benchmark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from keepad.evaluate import Results
from keepad.evaluate.results import mean
from keepad.metrics import auroc

Numbers = dict[str, float | None]


@dataclass(frozen=True)
class Measured:
    """One direction: what was evaluated and timed.

    Attributes:
        name: "first" or "second".
        title: Source and target in words.
        targets: Suites of the target.
        others: Further suites that the checkpoint has not seen.
        contents: Content of results.json of each wave of variants.
        images: Rows of every image with the values of all variants.
        milliseconds: Of the timed variants, per image.
        absent: Why a variant has no numbers, by its name.
    """

    name: str
    title: str
    targets: tuple[str, ...]
    others: tuple[str, ...]
    contents: list[dict[str, Any]] = field(default_factory=list)
    images: dict[str, dict[str, Any]] = field(default_factory=dict)
    milliseconds: dict[str, float] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)

    def add(self, results: Results) -> None:
        """Take in the numbers of a wave."""
        self.contents.append(results.content)
        for row in results.images:
            known = self.images.setdefault(row["key"], {**row, "points": {}})
            known["points"].update(row["points"])

    def has(self, variant: str) -> bool:
        return any(variant in content["settings"]["points"] for content in self.contents)

    def numbers(self, variant: str, suites: Sequence[str]) -> Numbers:
        """Metrics of a variant on some suites, in percent: AUROCs are means over suites, DTR and CMR over images."""
        if not self.has(variant):
            return {}
        averages = next(
            content["averages"]["suites"] for content in self.contents if variant in content["settings"]["points"]
        )
        rows = [row["points"][variant] for row in self.rows(variant, suites)]
        survival = self.survival(variant, suites)
        known = [averages[suite][variant] for suite in suites if suite in averages]
        keep, keep_shallow = (mean(row[name] for row in rows) for name in ("keep", "keep_shallow"))
        shares = [row["keep"] / row["keep_shallow"] for row in rows if row["keep_shallow"]]
        return {
            **{name: mean(values[name] for values in known) for name in ("i_auroc", "p_auroc", "pro")},
            "keep": None if keep is None else 100 * keep,
            "keep_shallow": None if keep_shallow is None else 100 * keep_shallow,
            "keep_deep": 100 * float(np.mean(shares)) if shares else None,
            "dtr": 100 * float(np.mean(survival[0])) if len(survival[0]) else None,
            "cmr": 100 * float(np.mean(survival[1])) if len(survival[1]) else None,
            "gflops": mean(row["gflops"] for row in rows),
            "speed": 1e3 / self.milliseconds[variant] if variant in self.milliseconds else None,
        }

    def rows(self, variant: str, suites: Sequence[str]) -> list[dict[str, Any]]:
        """Rows of the images of some suites that have this variant."""
        return [row for row in self.images.values() if row["suite"] in suites and variant in row["points"]]

    def survival(
        self, variant: str, suites: Sequence[str], field: str = "defect", sizes: tuple[int, float] = (1, np.inf)
    ) -> tuple[np.ndarray, np.ndarray]:
        """Share of defect tokens that survive and whether none does, (n,) each, over images with defects of a size."""
        rows = [
            row
            for row in self.rows(variant, suites)
            if row["defect_tokens"] and sizes[0] <= row["defect_tokens"] <= sizes[1]
        ]
        kept = [row["points"][variant].get(field) for row in rows]
        shares = [own / row["defect_tokens"] for own, row in zip(kept, rows, strict=True) if own is not None]
        return np.array(shares), np.array([share == 0 for share in shares], dtype=float)


@dataclass(frozen=True)
class Difference:
    """A difference of two variants in one metric, in points, with the interval that holds 95 % of its resamples."""

    value: float
    low: float
    high: float


_RESAMPLES = 400


def difference(measured: Measured, metric: str, pair: tuple[str, str], suites: Sequence[str]) -> Difference | None:
    """The first variant minus the second, resampled over images (P-AUROC: over classes); None where one is missing.

    The images of a class are drawn anew from those of the same class and label, the same ones for both variants.
    """
    if not all(measured.has(name) for name in pair):
        return None
    random = np.random.default_rng(0)
    if metric == "p_auroc":
        gaps = _class_gaps(measured, metric, pair, suites)
        if len(gaps) < 2:
            return None
        draws = gaps[random.integers(len(gaps), size=(_RESAMPLES, len(gaps)))].mean(1)
        return _difference(float(gaps.mean()), draws)
    if metric in ("dtr", "cmr"):
        position = 0 if metric == "dtr" else 1
        first, second = (measured.survival(name, suites)[position] for name in pair)
        if not len(first) or len(first) != len(second):
            return None
        gaps = 100 * (first - second)
        return _difference(float(gaps.mean()), gaps[random.integers(len(gaps), size=(_RESAMPLES, len(gaps)))].mean(1))
    classes = _scores(measured, pair, suites)
    if not classes:
        return None

    def gap(draw: bool) -> float:
        gaps = []
        for normal, defective in classes:  # (n, 2) scores
            if draw:
                normal = normal[random.integers(len(normal), size=len(normal))]
                defective = defective[random.integers(len(defective), size=len(defective))]
            labels = [0] * len(normal) + [1] * len(defective)
            both = [auroc(np.concatenate([normal[:, i], defective[:, i]]), labels) for i in (0, 1)]
            gaps.append(100 * (float(both[0] or 0) - float(both[1] or 0)))
        return float(np.mean(gaps))

    return _difference(gap(False), np.array([gap(True) for _ in range(_RESAMPLES)]))


def _difference(value: float, draws: np.ndarray) -> Difference:
    low, high = np.percentile(draws, (2.5, 97.5))
    return Difference(value, float(low), float(high))


def _class_gaps(measured: Measured, metric: str, pair: tuple[str, str], suites: Sequence[str]) -> np.ndarray:
    values: dict[tuple[str, str], dict[str, float]] = {}
    for content in measured.contents:
        for record in content["records"]:
            if record["suite"] in suites and record["point"] in pair and record[metric] is not None:
                values.setdefault((record["suite"], record["class"]), {})[record["point"]] = record[metric]
    return np.array([own[pair[0]] - own[pair[1]] for own in values.values() if len(own) == len(set(pair))])


def _scores(measured: Measured, pair: tuple[str, str], suites: Sequence[str]) -> list[tuple[np.ndarray, np.ndarray]]:
    """(n, 2) scores of normal and of anomalous images of each class that has both."""
    classes: dict[tuple[str, str], tuple[list[list[float]], list[list[float]]]] = {}
    for row in measured.images.values():
        if row["suite"] in suites and all(name in row["points"] for name in pair):
            group = classes.setdefault((row["suite"], row["class"]), ([], []))
            group[row["label"]].append([row["points"][name]["score"] for name in pair])
    return [(np.array(normal), np.array(bad)) for normal, bad in classes.values() if normal and bad]


def merged_means(runs: Sequence[Mapping[str, float | None]]) -> tuple[Numbers, Numbers]:
    """Mean and population deviation of every metric over runs."""
    names = dict.fromkeys(name for run in runs for name in run)
    values = {name: [run[name] for run in runs if run.get(name) is not None] for name in names}
    means: Numbers = {name: mean(own) for name, own in values.items()}
    deviations: Numbers = {
        name: float(np.std([v for v in own if v is not None])) if own else None for name, own in values.items()
    }
    return means, deviations
