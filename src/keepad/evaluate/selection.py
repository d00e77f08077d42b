"""Which images an evaluation measures: test images by class, and the suites that a detector has not seen."""

from __future__ import annotations

from collections.abc import Sequence

from keepad.data import Dataset, Sample
from keepad.detector import Detector
from keepad.errors import KeepADError


def seen_suites(detector: Detector) -> set[str]:
    """Suites that the head or the routers of a detector were trained on, by its provenance."""
    stages = (detector.provenance, detector.provenance.get("routers") or {})
    return {entry["suite"] for stage in stages for entry in stage.get("data") or []}


def unseen(dataset: Dataset, detector: Detector) -> Dataset:
    """The suites of the data set that the detector was not trained on.

    Raises:
        KeepADError: It was trained on all of them.
    """
    seen = seen_suites(detector)
    suites = [suite for suite in dataset.suites if suite not in seen]
    if not suites:
        raise KeepADError(
            f"{detector.name} was trained on every suite chosen from '{dataset.root}'; choose others, or evaluate "
            "without --unseen."
        )
    return dataset.select(suites=suites)


def groups_of(dataset: Dataset, limit: int | None) -> dict[tuple[str, str], list[Sample]]:
    """Test samples by suite and class, at most `limit` per class.

    Raises:
        KeepADError: There are none.
    """
    groups = dataset.select(split="test").by_class()
    if not groups:
        raise KeepADError(f"'{dataset.root}' holds no test image of the chosen suites and classes; choose others.")
    return {name: list(samples) if limit is None else _subset(samples, limit) for name, samples in groups.items()}


def _subset(samples: Sequence[Sample], limit: int) -> list[Sample]:
    """At most `limit` samples in their order: half of them anomalous while there are enough, spread evenly."""
    by_label = [[index for index, sample in enumerate(samples) if sample.label == label] for label in (1, 0)]
    anomalous = min(len(by_label[0]), max((limit + 1) // 2, limit - len(by_label[1])))
    normal = min(len(by_label[1]), limit - anomalous)
    chosen = [
        indices[number * len(indices) // count]
        for indices, count in zip(by_label, (anomalous, normal), strict=True)
        for number in range(count)
    ]
    return [samples[index] for index in sorted(chosen)]
