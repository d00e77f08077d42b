"""Shots: a few good images of each class as references, drawn several times."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from keepad.data import Dataset, Sample
from keepad.detector import Detector
from keepad.errors import KeepADError
from keepad.evaluate.markdown import number, table
from keepad.evaluate.results import mean
from keepad.evaluate.variants import Shots, Variant
from keepad.images import spread
from keepad.inference import NO_REFERENCES, References
from keepad.presets import OperatingPoint
from keepad.references.teaching import ROTATIONS, Known, teach_bank

Groups = dict[tuple[str, str], list[Sample]]

_COLUMNS = {
    "i_auroc": "I-AUROC",
    "p_auroc": "P-AUROC",
    "pro": "PRO",
    "dtr": "DTR",
    "cmr": "CMR",
    "keep_good": "kept, normal",
    "keep_defect": "kept, defective",
}


def shot_variants(
    points: Sequence[OperatingPoint], counts: Sequence[int], draws: int, rotate: str = "auto"
) -> list[Variant]:
    """Every point with every number of references, drawn `draws` times; without references it runs once.

    Args:
        points: Operating points.
        counts: Numbers of references.
        draws: How often references are drawn.
        rotate: Whether rotated copies join them, one of ROTATIONS.

    Raises:
        KeepADError: A number of references or draws makes no sense, or rotations are named wrongly.
    """
    if rotate not in ROTATIONS:
        raise KeepADError(f"rotations are {', '.join(ROTATIONS)}, not {rotate!r}.")
    if draws < 1:
        raise KeepADError(f"references must be drawn at least once, not {draws} times.")
    for count in counts:
        if not 0 <= count <= 1000:
            raise KeepADError(f"the number of references must lie between 0 and 1000, not at {count}.")
    return [
        Variant(_name(point.name, count, draw), point, shots=Shots(count, draw, rotate) if count else None)
        for point in points
        for count in counts
        for draw in range(draws if count else 1)
    ]


def _name(point: str, count: int, draw: int) -> str:
    return f"{point}, {count} shots, draw {draw + 1}" if count else f"{point}, zero-shot"


class ReferencePool:
    """Good images that references are drawn from: those of the train split, or else some of the test split.

    Args:
        dataset: The data set.
        groups: Its test samples by class.
        variants: Variants of the evaluation.

    Raises:
        KeepADError: A class has no good image.
    """

    def __init__(self, dataset: Dataset, groups: Groups, variants: Sequence[Variant]) -> None:
        self._variants = [(variant, variant.shots) for variant in variants if variant.shots is not None]
        self._pools: Groups = {}
        if not self._variants:
            return
        most = max(shots.count for _, shots in self._variants)
        train = dataset.select(split="train").by_class()
        for name, samples in groups.items():
            good = [sample for sample in train.get(name, ()) if sample.label == 0]
            if not good:
                normal = [sample for sample in samples if sample.label == 0]
                good = spread(normal, min(most, len(normal) // 2))
            if not good:
                raise KeepADError(f"{'/'.join(name)} has no good image to serve as a reference; leave that class out.")
            self._pools[name] = good

    @property
    def samples(self) -> list[Sample]:
        """All images that a draw can take."""
        return [sample for pool in self._pools.values() for sample in pool]

    def of(self, name: tuple[str, str]) -> list[Sample]:
        """The images of one class that a draw can take."""
        return self._pools[name]

    def without_references(self, groups: Groups) -> Groups:
        """The test samples that no draw can take."""
        taken = {sample.image for sample in self.samples}
        return {name: [sample for sample in group if sample.image not in taken] for name, group in groups.items()}

    def banks(self, detector: Detector, name: tuple[str, str]) -> References:
        """The bank of every variant with references, for one class."""
        known: dict[int, Known] = {}  # by detector
        banks = {}
        for variant, shots in self._variants:
            paths = [sample.image for sample in draw(self._pools[name], shots, name)]
            taught = variant.detector or detector
            recorded = known.setdefault(id(taught), {})
            banks[variant.name] = teach_bank(taught, paths, variant.point, recorded, shots.rotate, shots.size)
        return banks or NO_REFERENCES


def draw(pool: Sequence[Sample], shots: Shots, name: tuple[str, str]) -> list[Sample]:
    """The references of one draw; those of smaller counts are part of those of larger ones."""
    generator = np.random.default_rng([zlib.crc32("/".join(name).encode()), shots.draw])
    return [pool[position] for position in generator.permutation(len(pool))[: shots.count]]


def shots_markdown(contents: Mapping[str, dict[str, Any]]) -> str:
    """Tables of evaluations with references, by model and suite: means over draws, and deviations of the ranking."""
    parts = [
        "# References: a few good images of each class\n",
        "Mean over draws, with the deviation over draws where it is above 0. `kept`: tokens alive after both routers, "
        "in percent.\n",
    ]
    for model, content in contents.items():
        parts.append(f"## {model}\n\n`{content['settings']['command']}`\n")
        suites = {**content["averages"]["suites"], "mean over suites": content["averages"]["overall"]}
        for suite, points in suites.items() if len(suites) > 2 else list(suites.items())[:1]:
            parts.append(f"### {suite}\n\n{shots_table(points, content['settings']['points'])}\n")
        parts.append(f"### I-AUROC by class\n\n{_class_table(content)}\n")
    return "\n".join(parts)


def shots_table(points: Mapping[str, dict[str, Any]], described: Mapping[str, dict[str, Any]]) -> str:
    """One line for each operating point and number of references."""
    rows = []
    for label, names in _grouped(list(points), described).items():
        cells = [_with_deviation([points[name][metric] for name in names]) for metric in _COLUMNS]
        rows.append([*label, *cells])
    return table(["point", "references", *_COLUMNS.values()], rows, words=1)


def _class_table(content: dict[str, Any]) -> str:
    described = content["settings"]["points"]
    groups = _grouped(list(described), described)
    by_class: dict[str, dict[str, float | None]] = {}
    for record in content["records"]:
        by_class.setdefault(f"{record['suite']}/{record['class']}", {})[record["point"]] = record["i_auroc"]
    rows = [
        [name, *(_with_deviation([values[each] for each in names]) for names in groups.values())]
        for name, values in by_class.items()
    ]
    return table(["class", *(f"{point}, {count}" for point, count in groups)], rows, words=1)


def _grouped(names: Sequence[str], described: Mapping[str, dict[str, Any]]) -> dict[tuple[str, str], list[str]]:
    """Variants that differ in the draw only, by operating point and number of references."""
    groups: dict[tuple[str, str], list[str]] = {}
    for name in names:
        shots = described[name].get("shots")
        groups.setdefault((name.partition(",")[0], str(shots["count"]) if shots else "0"), []).append(name)
    return groups


def _with_deviation(values: Sequence[float | None]) -> str:
    deviation = np.std([value for value in values if value is not None]) if len(values) > 1 else 0.0
    return number(mean(values)) + (f" ± {deviation:.1f}" if deviation >= 0.05 else "")
