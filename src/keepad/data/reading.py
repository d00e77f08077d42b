"""A folder becomes a Dataset: its layout is recognised, or taken as told."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from keepad.data.layouts import LAYOUTS, Layout, Reading
from keepad.data.listing import counted, entries_in, folders_in, some
from keepad.data.samples import Dataset, Sample, group_by_class
from keepad.errors import KeepADError


def read_dataset(path: str | Path, layout: str | None = None) -> Dataset:
    """The labelled images of a folder, with what is wrong about them as `problems`.

    Layouts are tried in the order of `LAYOUTS`, the most specific first. Where the folder itself fits none, each of its
    sub-folders is tried as a data set of its own, so that a folder of data sets is read as one with several suites. A
    suite has the name of its folder, unless an index names it.

    Args:
        path: A folder, or an index file (CSV, or JSON like AnomalyCLIP's meta.json).
        layout: Name of a layout in `LAYOUTS`; None recognises it.

    Raises:
        KeepADError: The folder fits no layout, or not the one that was asked for, or holds no image.
    """
    root = Path(path).expanduser()
    if layout is not None and layout not in LAYOUTS:
        raise KeepADError(f"There is no layout '{layout}'; choose from {', '.join(LAYOUTS)}.")
    if not root.exists():
        raise KeepADError(f"There is no file or folder '{root}'; check the path.")
    layouts = list(LAYOUTS.values()) if layout is None else [LAYOUTS[layout]]
    read = _read_one(root, layouts) or _read_each(root, layouts)
    if read is None:
        raise KeepADError(_not_recognised(root, layout))
    names, reading = read
    if not reading.samples:
        raise KeepADError(f"'{root}' is in the layout '{names}' but none of its images is there; unpack it again.")
    return Dataset(
        root=root if root.is_dir() else root.parent,
        layout=names,
        samples=tuple(sorted(reading.samples, key=_order)),
        problems=(*reading.problems, *_sample_problems(reading.samples)),
    )


def _read_one(root: Path, layouts: Iterable[Layout]) -> tuple[str, Reading] | None:
    for layout in layouts:
        reading = layout.read(root)
        if reading is not None:
            return layout.name, reading
    return None


def _read_each(root: Path, layouts: Sequence[Layout]) -> tuple[str, Reading] | None:
    """The sub-folders as data sets of their own, or None if none of them is one."""
    names: set[str] = set()
    samples: list[Sample] = []
    problems: list[str] = []
    strangers: list[str] = []
    for folder in folders_in(root):
        read = _read_one(folder, layouts)
        if read is None:
            strangers.append(f"{folder.name}/")
            continue
        names.add(read[0])
        samples += [replace(sample, root=root) for sample in read[1].samples]
        problems += read[1].problems
    if not names:
        return None
    if strangers:
        problems.append(f"No data set was recognised in {some(strangers)}; left out.")
    return " + ".join(name for name in LAYOUTS if name in names), Reading(samples, problems)


def _order(sample: Sample) -> tuple[str, str, str, str, str]:
    return sample.suite, sample.cls, sample.split, sample.defect, sample.image.as_posix()


def _sample_problems(samples: Iterable[Sample]) -> list[str]:
    """What each class lacks, and what cannot be measured for it."""
    problems = []
    for (suite, cls), group in sorted(group_by_class(samples).items()):
        test = [sample.label for sample in group if sample.split == "test"]
        if not test:
            problems.append(f"{suite}/{cls} has no test image, so nothing can be measured.")
        elif 0 not in test:
            problems.append(f"{suite}/{cls} has no normal test image, so only pixel metrics can be measured.")
        elif 1 not in test:
            problems.append(f"{suite}/{cls} has no anomalous test image, so only false alarms can be measured.")
        anomalous = [sample for sample in group if sample.label == 1]
        bare = [sample for sample in anomalous if sample.mask is None]
        if bare and len(bare) == len(anomalous):
            problems.append(
                f"{suite}/{cls} has no mask for any of its {counted(len(bare), 'anomalous image')}, "
                "so only image metrics can be measured."
            )
        elif bare:
            problems.append(
                f"{suite}/{cls} has no mask for {len(bare)} of its {counted(len(anomalous), 'anomalous image')}, "
                f"such as {bare[0].key}."
            )
    return problems


def _not_recognised(root: Path, layout: str | None) -> str:
    if root.is_dir():
        found = some([f"{entry.name}/" if entry.is_dir() else entry.name for entry in entries_in(root)])
    else:
        found = "a file"
    if layout is not None:
        expected = LAYOUTS[layout].expects
        return f"'{root}' is not in the layout '{layout}': expected {expected}, but found {found or 'nothing'}."
    usual = ("mvtec", "folder") if root.is_dir() else ("index", "meta")
    return (
        f"'{root}' is in no known layout ({', '.join(LAYOUTS)}): expected for example "
        f"{', or '.join(LAYOUTS[name].expects for name in usual)}, but found {found or 'nothing'}."
    )
