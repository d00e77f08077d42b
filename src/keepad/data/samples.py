"""Sample and Dataset: which images there are, what is known of each, and what was wrong."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from keepad.errors import KeepADError

SPLITS = ("train", "test")
GOOD = "good"


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
        mask: File that marks the defect's pixels; None for normal images and where there is none.
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
        """The image's path from the data set's root, with forward slashes: the same on every machine."""
        inside = self.image.is_relative_to(self.root)
        return (self.image.relative_to(self.root) if inside else self.image).as_posix()


@dataclass(frozen=True)
class Dataset:
    """The samples of one folder.

    Attributes:
        root: Folder of the whole data set.
        layout: Name of the layout in which it was read; several names joined by " + " for a folder of data sets.
        samples: Sorted by suite, class, split, defect and file.
        problems: What is missing or odd, one sentence each, about the folder as a whole.
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
        """The samples of each (suite, class), which is what metrics are computed over."""
        return group_by_class(self.samples)

    def select(
        self,
        *,
        suites: str | Iterable[str] | None = None,
        classes: str | Iterable[str] | None = None,
        split: str | None = None,
    ) -> Dataset:
        """The same data set with only the samples that are asked for; None asks for all.

        Raises:
            KeepADError: A suite, class or split is asked for that is not there.
        """
        samples = self.samples
        if suites is not None:
            wanted = _known(suites, self.suites, "suite", self.root)
            samples = tuple(sample for sample in samples if sample.suite in wanted)
        if classes is not None:
            present = tuple(dict.fromkeys(sample.cls for sample in samples))
            wanted = _known(classes, present, "class", self.root)
            samples = tuple(sample for sample in samples if sample.cls in wanted)
        if split is not None:
            wanted = _known(split, SPLITS, "split", self.root)
            samples = tuple(sample for sample in samples if sample.split in wanted)
        return replace(self, samples=samples)


def group_by_class(samples: Iterable[Sample]) -> dict[tuple[str, str], tuple[Sample, ...]]:
    """The samples of each (suite, class), in the order given."""
    groups: dict[tuple[str, str], list[Sample]] = {}
    for sample in samples:
        groups.setdefault((sample.suite, sample.cls), []).append(sample)
    return {name: tuple(group) for name, group in groups.items()}


def _known(asked: str | Iterable[str], present: tuple[str, ...], what: str, root: Path) -> set[str]:
    wanted = [asked] if isinstance(asked, str) else list(asked)
    for name in wanted:
        if name not in present:
            raise KeepADError(f"There is no {what} '{name}' in '{root}'; choose from {', '.join(present)}.")
    return set(wanted)
