"""Sample and Dataset: labelled images and the problems of the folder they were read from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from keepad.errors import KeepADError

SPLITS = ("train", "test")
GOOD = "good"
UNNAMED_DEFECT = "anomaly"  # kind of defect in data sets that name none


@dataclass(frozen=True)
class Sample:
    """One labelled image.

    Attributes:
        suite: Name of the data set.
        cls: Name of the object or texture within the suite.
        split: "train" or "test".
        defect: Kind of defect; "good" for normal images.
        label: 1 if anomalous, 0 if normal.
        image: File of the image.
        mask: File that marks the defect's pixels; None for normal images and for missing masks.
        root: Folder of the whole data set.
    """

    suite: str
    cls: str
    split: str
    defect: str
    label: int
    image: Path
    mask: Path | None
    root: Path

    @property
    def key(self) -> str:
        """The image's path relative to the root, with forward slashes; the same on every machine."""
        inside = self.image.is_relative_to(self.root)
        return (self.image.relative_to(self.root) if inside else self.image).as_posix()


class Contents(NamedTuple):
    """Samples of one folder in one layout, unsorted, and one sentence for each problem."""

    samples: list[Sample]
    problems: list[str]


@dataclass(frozen=True)
class Dataset:
    """The samples of one folder.

    Attributes:
        root: Folder of the whole data set.
        layout: Name of its layout; several names joined by " + " for a folder of data sets.
        samples: Sorted by suite, class, split, defect and file.
        problems: One sentence for each thing that is missing or inconsistent in the folder.
    """

    root: Path
    layout: str
    samples: tuple[Sample, ...]
    problems: tuple[str, ...] = ()

    @property
    def suites(self) -> tuple[str, ...]:
        """Names of the suites, each once, in the order of the samples."""
        return tuple(dict.fromkeys(sample.suite for sample in self.samples))

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes of all suites, each once, in the order of the samples."""
        return tuple(dict.fromkeys(sample.cls for sample in self.samples))

    def by_class(self) -> dict[tuple[str, str], tuple[Sample, ...]]:
        """The samples of each (suite, class), the unit over which metrics are computed."""
        return group_by_class(self.samples)

    def select(
        self,
        *,
        suites: str | Iterable[str] | None = None,
        classes: str | Iterable[str] | None = None,
        split: str | None = None,
    ) -> Dataset:
        """The data set restricted to the named suites, classes and split; None selects all.

        Raises:
            KeepADError: The data set has no suite, class or split of that name.
        """
        samples = self.samples
        if suites is not None:
            names = _checked(suites, self.suites, "suite", self.root)
            samples = tuple(sample for sample in samples if sample.suite in names)
        if classes is not None:
            present = tuple(dict.fromkeys(sample.cls for sample in samples))
            names = _checked(classes, present, "class", self.root)
            samples = tuple(sample for sample in samples if sample.cls in names)
        if split is not None:
            names = _checked(split, SPLITS, "split", self.root)
            samples = tuple(sample for sample in samples if sample.split in names)
        return replace(self, samples=samples)


def group_by_class(samples: Iterable[Sample]) -> dict[tuple[str, str], tuple[Sample, ...]]:
    """The samples of each (suite, class), in their order."""
    groups: dict[tuple[str, str], list[Sample]] = {}
    for sample in samples:
        groups.setdefault((sample.suite, sample.cls), []).append(sample)
    return {name: tuple(group) for name, group in groups.items()}


def _checked(names: str | Iterable[str], present: tuple[str, ...], kind: str, root: Path) -> set[str]:
    """The names as a set, all of which are present."""
    selected = [names] if isinstance(names, str) else list(names)
    for name in selected:
        if name not in present:
            raise KeepADError(f"There is no {kind} '{name}' in '{root}'; choose from {', '.join(present)}.")
    return set(selected)
