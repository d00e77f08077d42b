"""Reads a folder as a Dataset, in a named or a recognised layout."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from keepad.data.layouts import LAYOUTS, Layout
from keepad.data.listing import counted, entries_in, folders_in, some
from keepad.data.samples import Contents, Dataset, Sample, group_by_class
from keepad.errors import KeepADError


def read_dataset(path: str | Path, layout: str | None = None) -> Dataset:
    """The labelled images of a folder and its problems.

    Layouts are tried in the order of `LAYOUTS`. If the folder is in none, each sub-folder is tried as a suite of its
    own. A suite has the name of its folder, unless an index names it.

    Args:
        path: A folder, or an index file (CSV, or JSON like AnomalyCLIP's meta.json).
        layout: Name of a layout in `LAYOUTS`; None tries all of them.

    Raises:
        KeepADError: The folder is in no layout, or not in the named one, or holds no image.
    """
    root = Path(path).expanduser()
    if layout is not None and layout not in LAYOUTS:
        raise KeepADError(f"There is no layout '{layout}'; choose from {', '.join(LAYOUTS)}.")
    if not root.exists():
        raise KeepADError(f"There is no file or folder '{root}'; check the path.")
    layouts = list(LAYOUTS.values()) if layout is None else [LAYOUTS[layout]]
    recognised = _recognise(root, layouts) or _recognise_each(root, layouts)
    if recognised is None:
        raise KeepADError(_not_recognised(root, layout))
    names, contents = recognised
    if not contents.samples:
        raise KeepADError(f"'{root}' is in the layout '{names}' but none of its images is there; unpack it again.")
    return Dataset(
        root=root if root.is_dir() else root.parent,
        layout=names,
        samples=tuple(sorted(contents.samples, key=_order)),
        problems=(*contents.problems, *_class_problems(contents.samples)),
    )


def _recognise(root: Path, layouts: Iterable[Layout]) -> tuple[str, Contents] | None:
    """Name and contents of the first layout the folder is in."""
    for layout in layouts:
        contents = layout.read(root)
        if contents is not None:
            return layout.name, contents
    return None


def _recognise_each(root: Path, layouts: Sequence[Layout]) -> tuple[str, Contents] | None:
    """Joined names and contents of the sub-folders that are data sets; None if none of them is."""
    names: set[str] = set()
    samples: list[Sample] = []
    problems: list[str] = []
    others: list[str] = []
    for folder in folders_in(root):
        recognised = _recognise(folder, layouts)
        if recognised is None:
            others.append(f"{folder.name}/")
            continue
        name, contents = recognised
        names.add(name)
        samples += [replace(sample, root=root) for sample in contents.samples]
        problems += contents.problems
    if not names:
        return None
    if others:
        problems.append(f"No data set was recognised in {some(others)}; left out.")
    return " + ".join(name for name in LAYOUTS if name in names), Contents(samples, problems)


def _order(sample: Sample) -> tuple[str, str, str, str, str]:
    return sample.suite, sample.cls, sample.split, sample.defect, sample.image.as_posix()


def _class_problems(samples: Iterable[Sample]) -> list[str]:
    """One sentence for each kind of image or mask that a class lacks."""
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
        unmasked = [sample for sample in anomalous if sample.mask is None]
        if unmasked and len(unmasked) == len(anomalous):
            problems.append(
                f"{suite}/{cls} has no mask for any of its {counted(len(unmasked), 'anomalous image')}, "
                "so only image metrics can be measured."
            )
        elif unmasked:
            problems.append(
                f"{suite}/{cls} has no mask for {len(unmasked)} of its {counted(len(anomalous), 'anomalous image')}, "
                f"such as {unmasked[0].key}."
            )
    return problems


def _not_recognised(root: Path, layout: str | None) -> str:
    if root.is_dir():
        present = some([f"{entry.name}/" if entry.is_dir() else entry.name for entry in entries_in(root)]) or "nothing"
    else:
        present = "a file"
    if layout is not None:
        expected = LAYOUTS[layout].expects
        return f"'{root}' is not in the layout '{layout}': expected {expected}, but found {present}."
    common = ("mvtec", "folder") if root.is_dir() else ("index", "meta")
    return (
        f"'{root}' is in no known layout ({', '.join(LAYOUTS)}): expected for example "
        f"{', or '.join(LAYOUTS[name].expects for name in common)}, but found {present}."
    )
