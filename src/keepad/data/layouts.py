"""The layouts in which data sets are published, in the order in which they are tried."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from keepad.data import indexes, trees
from keepad.data.samples import Contents


@dataclass(frozen=True)
class Layout:
    """One way of arranging a data set.

    Attributes:
        name: Name on the command line.
        sets: The data sets that are published in this layout.
        expects: Required contents of the folder; completes "expected ..." in error messages.
        read: Returns the folder's contents, or None if it is not in this layout.
    """

    name: str
    sets: str
    expects: str
    read: Callable[[Path], Contents | None]


# Tried in this order: index files, layouts of a single data set, then the general ones.
LAYOUTS: dict[str, Layout] = {
    layout.name: layout
    for layout in (
        Layout(
            "index",
            "a CSV that lists the images",
            "index.csv with the columns class, split, label, image and perhaps suite, defect, mask",
            indexes.read_index,
        ),
        Layout(
            "meta",
            "AnomalyCLIP's index",
            "meta.json with train and test, each a list of images by class",
            indexes.read_meta,
        ),
        Layout(
            "visa", "VisA", "split_csv/1cls.csv with the columns object, split, label, image, mask", indexes.read_visa
        ),
        Layout(
            "dagm", "DAGM 2007", "ClassN/{Train,Test}/*.PNG and ClassN/{Train,Test}/Label/*_label.PNG", trees.read_dagm
        ),
        Layout("btad", "BTAD", "<class>/{train,test}/{ok,ko}/ and <class>/ground_truth/ko/", trees.read_btad),
        Layout("ksdd2", "KolektorSDD2", "{train,test}/<n>.png with <n>_GT.png beside each", trees.read_ksdd2),
        Layout("ksdd", "KolektorSDD", "kosNN/PartK.jpg with PartK_label.bmp beside each", trees.read_ksdd),
        Layout(
            "bmad",
            "BMAD: OCT17, Brain AD, HIS",
            "{train,test}/{good,Ungood}/ with images or with img/ and anomaly_mask/ or label/",
            trees.read_bmad,
        ),
        Layout("brainmri", "BrainMRI", "yes/ and no/", trees.read_brainmri),
        Layout(
            "mvtec",
            "MVTec AD, MPDD, DTD-Synthetic and trees like theirs",
            "<class>/{train,test}/<good or defect>/ with <class>/ground_truth/<defect>/<name>_mask.png",
            trees.read_mvtec,
        ),
        Layout(
            "segmentation",
            "CVC-ClinicDB, Endo, Kvasir",
            "images/ and masks/, or Original/ and Ground Truth/",
            trees.read_segmentation,
        ),
        Layout("folder", "any folder of images", "good/ beside a folder for each kind of defect", trees.read_folder),
    )
}
