"""Layouts that label images by their folders and file names.

Each reader returns None unless the folder is in its layout.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

from keepad.data.listing import by_stem, counted, folder_named, folders_in, images_in, own_name, some
from keepad.data.masks import defect_pixels
from keepad.data.samples import GOOD, SPLITS, UNNAMED_DEFECT, Contents, Sample
from keepad.errors import ImageError

_MASK_FOLDERS = ("ground_truth", "masks", "mask")


def read_mvtec(path: Path) -> Contents | None:
    """Samples of MVTec AD and trees like it, or of the folder of a single class."""
    return _read_classes(path, _is_mvtec_class, lambda folder, cls: _read_mvtec_class(path, folder, cls, GOOD))


def read_btad(path: Path) -> Contents | None:
    """Samples of BTAD: MVTec's tree with ok and ko."""

    def is_class(folder: Path) -> bool:
        return any(folder_named(folder_named(folder, split), "ok", "ko") for split in SPLITS)

    return _read_classes(path, is_class, lambda folder, cls: _read_mvtec_class(path, folder, cls, "ok"))


def read_dagm(path: Path) -> Contents | None:
    """Samples of DAGM 2007; some archives unpack each class into a second folder of the same name."""

    def inner(folder: Path) -> Path:
        return folder_named(folder, folder.name) or folder

    def is_class(folder: Path) -> bool:
        return any(folder_named(folder_named(inner(folder), split), "Label") for split in SPLITS)

    return _read_classes(path, is_class, lambda folder, cls: _read_dagm_class(path, inner(folder), cls))


def read_ksdd2(path: Path) -> Contents | None:
    """Samples of KolektorSDD2: <n>.png beside <n>_GT.png, anomalous if that has a non-zero pixel."""
    splits = [(split, images_in(folder_named(path, split))) for split in SPLITS]
    if not any(by_stem(files, "_GT") for _, files in splits):
        return None
    return _read_beside(path, "surface", splits, "_GT")


def read_ksdd(path: Path) -> Contents | None:
    """Samples of KolektorSDD: kosNN/PartK.jpg beside PartK_label.bmp; published without a split, so all are test."""
    parts = [folder for folder in folders_in(path) if re.fullmatch(r"kos\d+", folder.name, re.IGNORECASE)]
    if not any(by_stem(images_in(folder), "_label") for folder in parts):
        return None
    return _read_beside(path, "commutator", [("test", images_in(folder)) for folder in parts], "_label")


def read_bmad(path: Path) -> Contents | None:
    """Samples of BMAD's trees (OCT17, Brain AD, HIS): good and Ungood, masks optional, without the valid split."""
    splits = [(split, folder) for split in SPLITS if (folder := folder_named(path, split))]
    has_ungood = any(folder_named(folder, "Ungood") for _, folder in splits)
    if not has_ungood and not any(folder_named(folder_named(folder, GOOD), "img") for _, folder in splits):
        return None
    cls = own_name(path)
    samples: list[Sample] = []
    masks: list[Path] = []
    for split, folder in splits:
        for group in folders_in(folder):
            images = images_in(folder_named(group, "img") or group)
            if group.name.lower() == GOOD:
                samples += [_normal(path, cls, split, image) for image in images]
                continue
            # Where both exist, "label" marks an organ.
            files = images_in(folder_named(group, "anomaly_mask", "label"))
            mask_of = by_stem(files, "")
            masks += files
            samples += [_anomalous(path, cls, split, group.name, image, mask_of.get(image.stem)) for image in images]
    return Contents(samples, _unused_masks(path, cls, masks, samples))


def read_brainmri(path: Path) -> Contents | None:
    """Samples of BrainMRI: yes and no, in the folder or in its brain_tumor_dataset; no masks."""
    for folder in (path, folder_named(path, "brain_tumor_dataset")):
        tumour, healthy = folder_named(folder, "yes"), folder_named(folder, "no")
        if tumour and healthy:
            samples = [_normal(path, "brain", "test", image) for image in images_in(healthy)]
            samples += [_anomalous(path, "brain", "test", "tumour", image, None) for image in images_in(tumour)]
            return Contents(samples, [])
    return None


def read_segmentation(path: Path) -> Contents | None:
    """Samples of images with masks of the same names (CVC-ClinicDB, Endo, Kvasir), all anomalous."""
    if folder_named(path, GOOD):
        return None
    cls = own_name(path)
    for folder in (path, folder_named(path, "PNG")):
        for image_folder, mask_folder in (("images", "masks"), ("image", "mask"), ("Original", "Ground Truth")):
            images, truth = folder_named(folder, image_folder), folder_named(folder, mask_folder)
            if images and truth:
                masks = images_in(truth)
                mask_of = by_stem(masks, "_mask", "")
                samples = [
                    _anomalous(path, cls, "test", UNNAMED_DEFECT, image, mask_of.get(image.stem))
                    for image in images_in(images)
                ]
                return Contents(samples, _unused_masks(path, cls, masks, samples))
    return None


def read_folder(path: Path) -> Contents | None:
    """Samples of good/ beside a folder for each kind of defect and optionally one of masks; all are test."""
    good = folder_named(path, GOOD)
    if good is None:
        return None
    cls = own_name(path)
    truth = folder_named(path, *_MASK_FOLDERS)
    groups = [folder for folder in folders_in(path) if folder != good and folder.name.lower() not in _MASK_FOLDERS]
    stems = Counter(image.stem for group in groups for image in images_in(group))
    # In a mask folder that all defects share, a stem that two defects use is ambiguous.
    shared = {stem: mask for stem, mask in by_stem(images_in(truth), "_mask", "").items() if stems[stem] == 1}
    samples = [_normal(path, cls, "test", image) for image in images_in(good)]
    for group in groups:
        own = folder_named(truth, group.name)
        mask_of = by_stem(images_in(own), "_mask", "") if own else shared
        samples += [
            _anomalous(path, cls, "test", group.name, image, mask_of.get(image.stem)) for image in images_in(group)
        ]
    return Contents(samples, _unused_masks(path, cls, images_in(truth) + _defect_masks(truth, GOOD), samples))


def _read_classes(
    path: Path, is_class: Callable[[Path], bool], read: Callable[[Path, str], Contents]
) -> Contents | None:
    """Contents of all class folders, or of the folder itself if it is a class."""
    folders = [path] if is_class(path) else [folder for folder in folders_in(path) if is_class(folder)]
    if not folders:
        return None
    samples: list[Sample] = []
    problems: list[str] = []
    for folder in folders:
        contents = read(folder, own_name(folder))
        samples += contents.samples
        problems += contents.problems
        if not contents.samples:
            problems.append(f"The class folder '{folder}' holds no readable image; left out.")
    others = [f"{folder.name}/" for folder in folders_in(path) if folder not in folders]
    if others and folders != [path]:
        problems.append(f"{own_name(path)} has folders that are no classes in this layout: {some(others)}; left out.")
    return Contents(samples, problems)


def _is_mvtec_class(folder: Path) -> bool:
    splits = [folder_named(folder, split) for split in SPLITS]
    # BTAD and BMAD have the same tree, but their normal folders would be read as defects.
    if any(folder_named(split, "ok", "ko", "ungood") for split in splits):
        return False
    has_truth = folder_named(folder, "test") is not None and folder_named(folder, "ground_truth") is not None
    return has_truth or any(folder_named(split, GOOD) for split in splits)


def _read_mvtec_class(root: Path, folder: Path, cls: str, normal: str) -> Contents:
    """Contents of <split>/<normal or defect>/ and ground_truth/<defect>/."""
    truth = folder_named(folder, "ground_truth")
    samples: list[Sample] = []
    for split in SPLITS:
        for group in folders_in(folder_named(folder, split)):
            if group.name.lower() == normal:
                samples += [_normal(root, cls, split, image) for image in images_in(group)]
                continue
            # Masks belong to test images; a training image may have the same name.
            own = folder_named(truth, group.name) if split == "test" else None
            mask_of = by_stem(images_in(own), "_mask", "")
            samples += [
                _anomalous(root, cls, split, group.name, image, mask_of.get(image.stem)) for image in images_in(group)
            ]
    return Contents(samples, _unused_masks(root, cls, _defect_masks(truth, normal), samples))


def _read_dagm_class(root: Path, folder: Path, cls: str) -> Contents:
    samples: list[Sample] = []
    masks: list[Path] = []
    for split in SPLITS:
        images = folder_named(folder, split)
        labels = folder_named(images, "Label")
        mask_of = by_stem(images_in(labels), "_label")
        masks += mask_of.values()
        defective = mask_of.keys() | _dagm_defective(labels)
        for image in images_in(images):
            if image.stem in defective:
                samples.append(_anomalous(root, cls, split, UNNAMED_DEFECT, image, mask_of.get(image.stem)))
            else:
                samples.append(_normal(root, cls, split, image))
    return Contents(samples, _unused_masks(root, cls, masks, samples))


def _dagm_defective(labels: Path | None) -> set[str]:
    """Stems labelled 1 in Labels.txt; its columns are number, label, image, whether labelled, label image."""
    file = labels / "Labels.txt" if labels else None
    if file is None or not file.is_file():
        return set()
    lines = (line.split() for line in file.read_text(encoding="utf-8-sig", errors="replace").splitlines())
    return {Path(cells[2]).stem for cells in lines if len(cells) > 2 and cells[1] == "1"}


def _read_beside(root: Path, cls: str, folders: Iterable[tuple[str, list[Path]]], ending: str) -> Contents:
    """Contents of (split, files) whose masks lie beside the images, with `ending`, and are their labels."""
    samples: list[Sample] = []
    unused: list[Path] = []
    unlabelled: list[Path] = []
    for split, files in folders:
        mask_of = by_stem(files, ending)
        masks = set(mask_of.values())
        images = [file for file in files if file not in masks]
        unused += masks - {mask_of[image.stem] for image in images if image.stem in mask_of}
        for image in images:
            mask = mask_of.get(image.stem)
            defective = None if mask is None else _has_defect(mask)
            if defective is None:
                unlabelled.append(image)
            elif defective:
                samples.append(_anomalous(root, cls, split, UNNAMED_DEFECT, image, mask))
            else:
                samples.append(_normal(root, cls, split, image))
    problems = _unused_masks(root, cls, sorted(unused), samples)
    if unlabelled:
        problems.append(
            f"{own_name(root)}/{cls} has {counted(len(unlabelled), 'image')} without a readable {ending} file, such as "
            f"{unlabelled[0].relative_to(root).as_posix()}, so that no label is known; left out."
        )
    return Contents(samples, problems)


def _has_defect(mask: Path) -> bool | None:
    """Whether the mask marks any pixel, or None if it cannot be read."""
    try:
        return bool(defect_pixels(mask).any())
    except ImageError:
        return None


def _normal(root: Path, cls: str, split: str, image: Path) -> Sample:
    return Sample(own_name(root), cls, split, GOOD, 0, image, None, root)


def _anomalous(root: Path, cls: str, split: str, defect: str, image: Path, mask: Path | None) -> Sample:
    return Sample(own_name(root), cls, split, defect, 1, image, mask, root)


def _defect_masks(truth: Path | None, normal: str) -> list[Path]:
    """The files of all defects' mask folders."""
    return [mask for group in folders_in(truth) if group.name.lower() != normal for mask in images_in(group)]


def _unused_masks(root: Path, cls: str, masks: Iterable[Path], samples: Iterable[Sample]) -> list[str]:
    """The problem, if any, of masks that belong to none of the samples."""
    used = {sample.mask for sample in samples}
    unused = [mask for mask in masks if mask not in used]
    if not unused:
        return []
    example = unused[0].relative_to(root).as_posix()
    return [f"{own_name(root)}/{cls} has {counted(len(unused), 'mask')} without an image, such as {example}."]
