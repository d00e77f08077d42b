"""The layouts in which data sets are published: one function each, which reads a folder or says that it is another.

A reader gets the path that the user gave and returns None unless that is its layout. No reader writes anything.
"""

from __future__ import annotations

import csv
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from keepad.data.listing import by_stem, counted, folder_named, folders_in, images_in, some
from keepad.data.masks import defect_pixels
from keepad.data.samples import GOOD, SPLITS, Sample
from keepad.errors import ImageError, KeepADError

# The kind of defect where the data set does not name any.
_UNNAMED = "anomaly"
_MASK_FOLDERS = ("ground_truth", "masks", "mask")
_LABELS = {"0": 0, "1": 1, "normal": 0, "anomaly": 1}


class Reading(NamedTuple):
    """What a reader found: the samples in any order, and sentences about what it had to leave out."""

    samples: list[Sample]
    problems: list[str]


@dataclass(frozen=True)
class Layout:
    """One way of arranging a data set.

    Attributes:
        name: What users call it.
        sets: The data sets that are published so.
        expects: What has to be in the folder, to follow the word "expected".
        read: The folder's samples, or None if it is not in this layout.
    """

    name: str
    sets: str
    expects: str
    read: Callable[[Path], Reading | None]


# ---------------------------------------------------------------------------------------------------------------------
# Indexes: files that list the images
# ---------------------------------------------------------------------------------------------------------------------


class _Row(NamedTuple):
    suite: str
    cls: str
    split: str
    defect: str
    label: int
    image: str
    mask: str


def read_index(path: Path) -> Reading | None:
    """A CSV with the columns class, split, label, image and, where known, suite, defect and mask."""
    file = path / "index.csv" if path.is_dir() else path
    lines = _csv_lines(file, {"class", "split", "label", "image"})
    if lines is None:
        return None
    rows = []
    for number, line in lines:
        label = _label(line["label"], file, number)
        split = _split(line["split"], file, number)
        suite = line.get("suite") or _name(file.parent)
        rows.append(
            _Row(suite, line["class"], split, line.get("defect", ""), label, line["image"], line.get("mask", ""))
        )
    return _read_rows(file, file.parent, rows)


def read_visa(path: Path) -> Reading | None:
    """VisA: split_csv/1cls.csv lists the images of all objects."""
    file = path / "split_csv" / "1cls.csv"
    lines = _csv_lines(file, {"object", "split", "label", "image", "mask"})
    if lines is None:
        return None
    rows = []
    for number, line in lines:
        label, split = _label(line["label"], file, number), _split(line["split"], file, number)
        rows.append(_Row(_name(path), line["object"], split, "", label, line["image"], line["mask"]))
    return _read_rows(file, path, rows)


def read_meta(path: Path) -> Reading | None:
    """AnomalyCLIP's meta.json: lists of images by split (train or Train, test or Test) and class."""
    file = path / "meta.json" if path.is_dir() else path
    if file.suffix.lower() != ".json" or not file.is_file():
        return None
    try:
        meta = json.loads(file.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError):
        return None
    found = meta.items() if isinstance(meta, dict) else ()
    splits = {key.lower(): value for key, value in found if key.lower() in SPLITS and isinstance(value, dict)}
    if not splits:
        return None
    rows = []
    for split, classes in splits.items():
        for cls, listed in classes.items():
            rows += [_meta_row(file, split, cls, entry) for entry in listed or ()]
    return _read_rows(file, file.parent, rows)


def _meta_row(file: Path, split: str, cls: str, entry: Any) -> _Row:
    try:
        label = 1 if int(entry["anomaly"]) else 0
        defect, mask = entry.get("specie_name") or "", entry.get("mask_path") or ""
        return _Row(_name(file.parent), cls, split, defect, label, str(entry["img_path"]), mask)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise KeepADError(
            f"'{file}' has an entry for {cls} without a usable img_path or anomaly; generate the file again."
        ) from error


def _csv_lines(file: Path, columns: set[str]) -> list[tuple[int, dict[str, str]]] | None:
    """Line numbers and stripped cells, or None if the file is no CSV with these columns."""
    if file.suffix.lower() != ".csv" or not file.is_file():
        return None
    try:
        with file.open(encoding="utf-8-sig", newline="") as opened:
            reader = csv.DictReader(opened)
            if not columns <= set(reader.fieldnames or ()):
                return None
            return [
                (reader.line_num, {name: (line[name] or "").strip() for name in reader.fieldnames or ()})
                for line in reader
            ]
    except (OSError, UnicodeDecodeError, csv.Error):
        return None


def _label(text: str, file: Path, line: int) -> int:
    if text not in _LABELS:
        raise KeepADError(f"Line {line} of '{file}' has the label '{text}'; write one of {', '.join(_LABELS)}.")
    return _LABELS[text]


def _split(text: str, file: Path, line: int) -> str:
    if text.lower() not in SPLITS:
        raise KeepADError(f"Line {line} of '{file}' has the split '{text}'; write one of {', '.join(SPLITS)}.")
    return text.lower()


def _read_rows(file: Path, root: Path, rows: Sequence[_Row]) -> Reading:
    """The listed files that exist."""
    skip = _leading_parts(root, (row.image for row in rows))
    samples: list[Sample] = []
    missing: list[str] = []
    for row in rows:
        image = root.joinpath(*_parts(row.image)[skip:])
        if not image.is_file():
            missing.append(row.image)
            continue
        mask = root.joinpath(*_parts(row.mask)[skip:]) if row.label and row.mask else None
        if mask is not None and not mask.is_file():
            mask = None
        defect = (row.defect or _UNNAMED) if row.label else GOOD
        samples.append(Sample(row.suite, row.cls, row.split, defect, row.label, image, mask, root))
    problems = []
    if missing:
        problems.append(
            f"{file.name} lists {counted(len(missing), 'image')} that cannot be found, such as {missing[0]}; left out."
        )
    return Reading(samples, problems)


def _leading_parts(root: Path, listed: Iterable[str]) -> int:
    """How many leading folders of the listed paths stand for the root; some indexes are written with it included."""
    for text in listed:
        parts = _parts(text)
        # An absolute path is tried as it stands only last, so that its key is relative to the root where that is right.
        order = [*range(1, len(parts)), 0] if parts[:1] == ("/",) else range(len(parts))
        for skip in order:
            if root.joinpath(*parts[skip:]).is_file():
                return skip
    return 0


def _parts(text: str) -> tuple[str, ...]:
    return PurePosixPath(text.replace("\\", "/")).parts


# ---------------------------------------------------------------------------------------------------------------------
# Trees of classes
# ---------------------------------------------------------------------------------------------------------------------


def read_mvtec(path: Path) -> Reading | None:
    """MVTec AD and every tree like it; the folder of a single class is read as well."""
    return _read_classes(path, _is_mvtec_class, lambda folder, cls: _read_tree(path, folder, cls, GOOD))


def read_btad(path: Path) -> Reading | None:
    """BTAD: MVTec's tree with ok and ko."""

    def is_class(folder: Path) -> bool:
        return any(folder_named(folder_named(folder, split), "ok", "ko") for split in SPLITS)

    return _read_classes(path, is_class, lambda folder, cls: _read_tree(path, folder, cls, "ok"))


def read_dagm(path: Path) -> Reading | None:
    """DAGM 2007; each class may lie in a second folder of its name, as some archives unpack."""

    def inner(folder: Path) -> Path:
        return folder_named(folder, folder.name) or folder

    def is_class(folder: Path) -> bool:
        return any(folder_named(folder_named(inner(folder), split), "Label") for split in SPLITS)

    return _read_classes(path, is_class, lambda folder, cls: _read_dagm_class(path, inner(folder), cls))


def _read_classes(path: Path, is_class: Callable[[Path], bool], read: Callable[[Path, str], Reading]) -> Reading | None:
    """All classes in the folder, or the folder itself if it is one."""
    folders = [path] if is_class(path) else [folder for folder in folders_in(path) if is_class(folder)]
    if not folders:
        return None
    samples: list[Sample] = []
    problems: list[str] = []
    for folder in folders:
        reading = read(folder, _name(folder))
        samples += reading.samples
        problems += reading.problems
        if not reading.samples:
            problems.append(f"The class folder '{folder}' holds no readable image; left out.")
    if folders != [path]:
        strangers = [f"{folder.name}/" for folder in folders_in(path) if folder not in folders]
        if strangers:
            problems.append(
                f"{_name(path)} has folders that are no classes in this layout: {some(strangers)}; left out."
            )
    return Reading(samples, problems)


def _is_mvtec_class(folder: Path) -> bool:
    splits = [found for split in SPLITS if (found := folder_named(folder, split))]
    # Other layouts in the same tree, whose normal images would be taken for defects.
    if any(folder_named(split, "ok", "ko", "ungood") for split in splits):
        return False
    has_truth = folder_named(folder, "test") is not None and folder_named(folder, "ground_truth") is not None
    return has_truth or any(folder_named(split, GOOD) for split in splits)


def _read_tree(root: Path, folder: Path, cls: str, normal: str) -> Reading:
    """<split>/<normal or defect>/ and ground_truth/<defect>/ of one class."""
    truth = folder_named(folder, "ground_truth")
    samples: list[Sample] = []
    for split in SPLITS:
        for group in folders_in(folder_named(folder, split)):
            if group.name.lower() == normal:
                samples += [_normal(root, cls, split, image) for image in images_in(group)]
            else:
                # The ground truth is the test images'; a training image may share a name with one of them.
                own = folder_named(truth, group.name) if split == "test" else None
                masks = by_stem(images_in(own), "_mask", "")
                samples += [
                    _anomalous(root, cls, split, group.name, image, masks.get(image.stem)) for image in images_in(group)
                ]
    groups = [group for group in folders_in(truth) if group.name.lower() != normal]
    masks_there = [mask for group in groups for mask in images_in(group)]
    return Reading(samples, _unused(root, cls, masks_there, samples))


def _read_dagm_class(root: Path, folder: Path, cls: str) -> Reading:
    samples: list[Sample] = []
    masks_there: list[Path] = []
    for split in SPLITS:
        images = folder_named(folder, split)
        labels = folder_named(images, "Label")
        masks = by_stem(images_in(labels), "_label")
        masks_there += masks.values()
        listed = _dagm_listed(labels)
        for image in images_in(images):
            if image.stem in masks or image.stem in listed:
                samples.append(_anomalous(root, cls, split, _UNNAMED, image, masks.get(image.stem)))
            else:
                samples.append(_normal(root, cls, split, image))
    return Reading(samples, _unused(root, cls, masks_there, samples))


def _dagm_listed(labels: Path | None) -> set[str]:
    """Stems that Labels.txt calls defective; its columns are number, label, image, whether labelled, label image."""
    file = labels / "Labels.txt" if labels else None
    if file is None or not file.is_file():
        return set()
    lines = (line.split() for line in file.read_text(encoding="utf-8-sig", errors="replace").splitlines())
    return {Path(cells[2]).stem for cells in lines if len(cells) > 2 and cells[1] == "1"}


# ---------------------------------------------------------------------------------------------------------------------
# Data sets of one class
# ---------------------------------------------------------------------------------------------------------------------


def read_ksdd2(path: Path) -> Reading | None:
    """KolektorSDD2: <n>.png with <n>_GT.png beside it; anomalous where that has any non-zero pixel."""
    splits = [(split, images_in(folder_named(path, split))) for split in SPLITS]
    if not any(by_stem(files, "_GT") for _, files in splits):
        return None
    return _read_beside(path, "surface", splits, "_GT")


def read_ksdd(path: Path) -> Reading | None:
    """KolektorSDD: kosNN/PartK.jpg with PartK_label.bmp beside it; published without a split, so all is test."""
    parts = [folder for folder in folders_in(path) if re.fullmatch(r"kos\d+", folder.name, re.IGNORECASE)]
    if not any(by_stem(images_in(folder), "_label") for folder in parts):
        return None
    return _read_beside(path, "commutator", [("test", images_in(folder)) for folder in parts], "_label")


def _read_beside(root: Path, cls: str, folders: Iterable[tuple[str, list[Path]]], ending: str) -> Reading:
    """Images whose label is what their mask shows; the mask lies beside them, with an ending to its name."""
    samples: list[Sample] = []
    unused: list[Path] = []
    unknown: list[Path] = []
    for split, files in folders:
        masks = by_stem(files, ending)
        beside = set(masks.values())
        images = [file for file in files if file not in beside]
        unused += beside - {masks[image.stem] for image in images if image.stem in masks}
        for image in images:
            mask = masks.get(image.stem)
            defective = None if mask is None else _is_marked(mask)
            if defective is None:
                unknown.append(image)
            elif defective:
                samples.append(_anomalous(root, cls, split, _UNNAMED, image, mask))
            else:
                samples.append(_normal(root, cls, split, image))
    problems = _unused(root, cls, sorted(unused), samples)
    if unknown:
        problems.append(
            f"{_name(root)}/{cls} has {counted(len(unknown), 'image')} without a readable {ending} file, such as "
            f"{unknown[0].relative_to(root).as_posix()}, so that no label is known; left out."
        )
    return Reading(samples, problems)


def _is_marked(mask: Path) -> bool | None:
    """Whether the mask marks any pixel, or None if it cannot be read."""
    try:
        return bool(defect_pixels(mask).any())
    except ImageError:
        return None


def read_bmad(path: Path) -> Reading | None:
    """BMAD's trees (OCT17, Brain AD, HIS): good and Ungood, with or without masks; the valid split is not read."""
    splits = [(split, found) for split in SPLITS if (found := folder_named(path, split))]
    named = any(folder_named(folder, "Ungood") for _, folder in splits)
    if not named and not any(folder_named(folder_named(folder, GOOD), "img") for _, folder in splits):
        return None
    cls = _name(path)
    samples: list[Sample] = []
    masks_there: list[Path] = []
    for split, folder in splits:
        for group in folders_in(folder):
            images = images_in(folder_named(group, "img") or group)
            if group.name.lower() == GOOD:
                samples += [_normal(path, cls, split, image) for image in images]
                continue
            # Where both exist, "label" marks an organ.
            files = images_in(folder_named(group, "anomaly_mask", "label"))
            masks = by_stem(files, "")
            masks_there += files
            samples += [_anomalous(path, cls, split, group.name, image, masks.get(image.stem)) for image in images]
    return Reading(samples, _unused(path, cls, masks_there, samples))


def read_brainmri(path: Path) -> Reading | None:
    """BrainMRI: yes and no, in the folder itself or in its brain_tumor_dataset; image labels only."""
    for folder in (path, folder_named(path, "brain_tumor_dataset")):
        tumour, healthy = folder_named(folder, "yes"), folder_named(folder, "no")
        if tumour and healthy:
            samples = [_normal(path, "brain", "test", image) for image in images_in(healthy)]
            samples += [_anomalous(path, "brain", "test", "tumour", image, None) for image in images_in(tumour)]
            return Reading(samples, [])
    return None


def read_segmentation(path: Path) -> Reading | None:
    """Images with masks of the same names (CVC-ClinicDB, Endo, Kvasir); every image is anomalous."""
    if folder_named(path, GOOD):
        return None
    for folder in (path, folder_named(path, "PNG")):
        for of_images, of_masks in (("images", "masks"), ("image", "mask"), ("Original", "Ground Truth")):
            images, masks = folder_named(folder, of_images), folder_named(folder, of_masks)
            if images and masks:
                cls, files = _name(path), images_in(masks)
                found = by_stem(files, "_mask", "")
                samples = [
                    _anomalous(path, cls, "test", _UNNAMED, image, found.get(image.stem)) for image in images_in(images)
                ]
                return Reading(samples, _unused(path, cls, files, samples))
    return None


def read_folder(path: Path) -> Reading | None:
    """good/ beside a folder for each kind of defect, and perhaps one of masks; all of it is test."""
    good = folder_named(path, GOOD)
    if good is None:
        return None
    cls = _name(path)
    truth = folder_named(path, *_MASK_FOLDERS)
    groups = [folder for folder in folders_in(path) if folder != good and folder.name.lower() not in _MASK_FOLDERS]
    stems = Counter(image.stem for group in groups for image in images_in(group))
    # Masks of all defects in one folder tell nothing about a name that two defects share.
    together = {stem: mask for stem, mask in by_stem(images_in(truth), "_mask", "").items() if stems[stem] == 1}
    samples = [_normal(path, cls, "test", image) for image in images_in(good)]
    for group in groups:
        own = folder_named(truth, group.name)
        masks = by_stem(images_in(own), "_mask", "") if own else together
        samples += [
            _anomalous(path, cls, "test", group.name, image, masks.get(image.stem)) for image in images_in(group)
        ]
    masks_there = images_in(truth)
    for folder in folders_in(truth):
        masks_there += images_in(folder) if folder.name.lower() != GOOD else []
    return Reading(samples, _unused(path, cls, masks_there, samples))


# ---------------------------------------------------------------------------------------------------------------------
# What all readers share
# ---------------------------------------------------------------------------------------------------------------------


def _name(path: Path) -> str:
    """The folder's own name, also for "." and for links."""
    return os.path.basename(os.path.abspath(path))


def _normal(root: Path, cls: str, split: str, image: Path) -> Sample:
    return Sample(_name(root), cls, split, GOOD, 0, image, None, root)


def _anomalous(root: Path, cls: str, split: str, defect: str, image: Path, mask: Path | None) -> Sample:
    return Sample(_name(root), cls, split, defect, 1, image, mask, root)


def _unused(root: Path, cls: str, masks: Iterable[Path], samples: Iterable[Sample]) -> list[str]:
    """A sentence about the masks that belong to none of the samples, if there are any."""
    used = {sample.mask for sample in samples}
    unused = [mask for mask in masks if mask not in used]
    if not unused:
        return []
    example = unused[0].relative_to(root).as_posix()
    return [f"{_name(root)}/{cls} has {counted(len(unused), 'mask')} without an image, such as {example}."]


# In the order in which they are tried: indexes, then what only one data set has, then what many share.
LAYOUTS: dict[str, Layout] = {
    layout.name: layout
    for layout in (
        Layout(
            "index",
            "a CSV that lists the images",
            "index.csv with the columns class, split, label, image and perhaps suite, defect, mask",
            read_index,
        ),
        Layout(
            "meta",
            "AnomalyCLIP's index",
            "meta.json with train and test, each a list of images by class",
            read_meta,
        ),
        Layout("visa", "VisA", "split_csv/1cls.csv with the columns object, split, label, image, mask", read_visa),
        Layout("dagm", "DAGM 2007", "ClassN/{Train,Test}/*.PNG and ClassN/{Train,Test}/Label/*_label.PNG", read_dagm),
        Layout("btad", "BTAD", "<class>/{train,test}/{ok,ko}/ and <class>/ground_truth/ko/", read_btad),
        Layout("ksdd2", "KolektorSDD2", "{train,test}/<n>.png with <n>_GT.png beside each", read_ksdd2),
        Layout("ksdd", "KolektorSDD", "kosNN/PartK.jpg with PartK_label.bmp beside each", read_ksdd),
        Layout(
            "bmad",
            "BMAD: OCT17, Brain AD, HIS",
            "{train,test}/{good,Ungood}/ with images or with img/ and anomaly_mask/ or label/",
            read_bmad,
        ),
        Layout("brainmri", "BrainMRI", "yes/ and no/", read_brainmri),
        Layout(
            "mvtec",
            "MVTec AD, MPDD, DTD-Synthetic and trees like theirs",
            "<class>/{train,test}/<good or defect>/ with <class>/ground_truth/<defect>/<name>_mask.png",
            read_mvtec,
        ),
        Layout(
            "segmentation",
            "CVC-ClinicDB, Endo, Kvasir",
            "images/ and masks/, or Original/ and Ground Truth/",
            read_segmentation,
        ),
        Layout("folder", "any folder of images", "good/ beside a folder for each kind of defect", read_folder),
    )
}
