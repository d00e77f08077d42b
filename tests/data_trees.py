"""Small data sets on disk, given by the files that their archives unpack to."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from keepad.data import Dataset


def write_image(path: Path, *, defect: bool = False, size: tuple[int, int] = (4, 6)) -> Path:
    """Writes a black image of `size` (height, width), with a white pixel if it is the mask of a defect."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.zeros(size, dtype=np.uint8)
    pixels[0, 0] = 255 if defect else 0
    # By format: Pillow does not know every spelling of a suffix.
    Image.fromarray(pixels).save(path, {".jpg": "JPEG", ".bmp": "BMP", ".tif": "TIFF"}.get(path.suffix.lower(), "PNG"))
    return path


def write_tree(root: Path, files: str) -> Path:
    """Writes an image for each line; a line that ends in "!" is a mask with a defect."""
    for line in filter(None, map(str.strip, files.splitlines())):
        write_image(root / line.rstrip(" !"), defect=line.endswith("!"))
    return root


def described(dataset: Dataset) -> list[str]:
    """One line for each sample: class, split, defect, label, image, and its mask if it has one."""
    lines = []
    for sample in dataset.samples:
        mask = f" <- {sample.mask.relative_to(dataset.root).as_posix()}" if sample.mask else ""
        lines.append(f"{sample.cls} {sample.split} {sample.defect} {sample.label} {sample.key}{mask}")
    return lines


def write_visa(root: Path) -> Path:
    """Writes VisA with one object."""
    write_tree(
        root,
        """
        candle/Data/Images/Normal/0000.JPG
        candle/Data/Images/Normal/0001.JPG
        candle/Data/Images/Anomaly/000.JPG
        candle/Data/Masks/Anomaly/000.png !
        """,
    )
    (root / "split_csv").mkdir()
    (root / "split_csv" / "1cls.csv").write_text(
        "object,split,label,image,mask\n"
        "candle,train,normal,candle/Data/Images/Normal/0000.JPG,\n"
        "candle,test,normal,candle/Data/Images/Normal/0001.JPG,\n"
        "candle,test,anomaly,candle/Data/Images/Anomaly/000.JPG,candle/Data/Masks/Anomaly/000.png\n"
    )
    return root


# layout, name of the folder, files of the archive, expected samples
PUBLISHED = {
    "MVTec AD": (
        "mvtec",
        "mvtec_anomaly_detection",
        """
        bottle/train/good/000.png
        bottle/test/good/000.png
        bottle/test/broken_large/000.png
        bottle/test/broken_large/001.png
        bottle/ground_truth/broken_large/000_mask.png !
        bottle/ground_truth/broken_large/001_mask.png !
        screw/train/good/000.png
        screw/test/good/003.png
        screw/test/scratch/007.png
        screw/ground_truth/scratch/007_mask.png !
        """,
        [
            "bottle test broken_large 1 bottle/test/broken_large/000.png"
            " <- bottle/ground_truth/broken_large/000_mask.png",
            "bottle test broken_large 1 bottle/test/broken_large/001.png"
            " <- bottle/ground_truth/broken_large/001_mask.png",
            "bottle test good 0 bottle/test/good/000.png",
            "bottle train good 0 bottle/train/good/000.png",
            "screw test good 0 screw/test/good/003.png",
            "screw test scratch 1 screw/test/scratch/007.png <- screw/ground_truth/scratch/007_mask.png",
            "screw train good 0 screw/train/good/000.png",
        ],
    ),
    "MPDD": (
        "mvtec",
        "MPDD",
        """
        bracket_black/train/good/000.png
        bracket_black/test/good/000.png
        bracket_black/test/hole/001.png
        bracket_black/ground_truth/hole/001_mask.png !
        """,
        [
            "bracket_black test good 0 bracket_black/test/good/000.png",
            "bracket_black test hole 1 bracket_black/test/hole/001.png <- bracket_black/ground_truth/hole/001_mask.png",
            "bracket_black train good 0 bracket_black/train/good/000.png",
        ],
    ),
    "DTD-Synthetic": (
        "mvtec",
        "DTD-Synthetic",
        """
        Woven_001/train/good/000.png
        Woven_001/test/good/000.png
        Woven_001/test/bad/001.png
        Woven_001/ground_truth/bad/001.png !
        """,
        [
            "Woven_001 test bad 1 Woven_001/test/bad/001.png <- Woven_001/ground_truth/bad/001.png",
            "Woven_001 test good 0 Woven_001/test/good/000.png",
            "Woven_001 train good 0 Woven_001/train/good/000.png",
        ],
    ),
    "one class of MVTec AD": (
        "mvtec",
        "screw",
        """
        train/good/000.png
        test/good/003.png
        test/scratch/007.png
        ground_truth/scratch/007_mask.png !
        """,
        [
            "screw test good 0 test/good/003.png",
            "screw test scratch 1 test/scratch/007.png <- ground_truth/scratch/007_mask.png",
            "screw train good 0 train/good/000.png",
        ],
    ),
    "BTAD": (
        "btad",
        "BTech_Dataset_transformed",
        """
        01/train/ok/0000.bmp
        01/test/ok/0001.bmp
        01/test/ko/0002.bmp
        01/ground_truth/ko/0002.png !
        03/train/ok/0000.bmp
        03/test/ok/0001.bmp
        03/test/ko/0002.bmp
        03/ground_truth/ko/0002.bmp !
        """,
        [
            "01 test good 0 01/test/ok/0001.bmp",
            "01 test ko 1 01/test/ko/0002.bmp <- 01/ground_truth/ko/0002.png",
            "01 train good 0 01/train/ok/0000.bmp",
            "03 test good 0 03/test/ok/0001.bmp",
            "03 test ko 1 03/test/ko/0002.bmp <- 03/ground_truth/ko/0002.bmp",
            "03 train good 0 03/train/ok/0000.bmp",
        ],
    ),
    "KolektorSDD2": (
        "ksdd2",
        "KolektorSDD2",
        """
        train/10000.png
        train/10000_GT.png
        train/10001.png
        train/10001_GT.png !
        test/20000.png
        test/20000_GT.png
        test/20001.png
        test/20001_GT.png !
        """,
        [
            "surface test anomaly 1 test/20001.png <- test/20001_GT.png",
            "surface test good 0 test/20000.png",
            "surface train anomaly 1 train/10001.png <- train/10001_GT.png",
            "surface train good 0 train/10000.png",
        ],
    ),
    "KolektorSDD": (
        "ksdd",
        "KolektorSDD",
        """
        kos01/Part0.jpg
        kos01/Part0_label.bmp
        kos01/Part5.jpg
        kos01/Part5_label.bmp !
        """,
        [
            "commutator test anomaly 1 kos01/Part5.jpg <- kos01/Part5_label.bmp",
            "commutator test good 0 kos01/Part0.jpg",
        ],
    ),
    "DAGM 2007": (
        "dagm",
        "DAGM_KaggleUpload",
        """
        Class1/Train/0576.PNG
        Class1/Train/0577.PNG
        Class1/Train/Label/0577_label.PNG !
        Class1/Test/0001.PNG
        Class1/Test/0002.PNG
        Class1/Test/Label/0002_label.PNG !
        """,
        [
            "Class1 test anomaly 1 Class1/Test/0002.PNG <- Class1/Test/Label/0002_label.PNG",
            "Class1 test good 0 Class1/Test/0001.PNG",
            "Class1 train anomaly 1 Class1/Train/0577.PNG <- Class1/Train/Label/0577_label.PNG",
            "Class1 train good 0 Class1/Train/0576.PNG",
        ],
    ),
    "DAGM 2007, each class in two folders": (
        "dagm",
        "DAGM2007",
        """
        Class1/Class1/Test/0001.PNG
        Class1/Class1/Test/0002.PNG
        Class1/Class1/Test/Label/0002_label.PNG !
        """,
        [
            "Class1 test anomaly 1 Class1/Class1/Test/0002.PNG <- Class1/Class1/Test/Label/0002_label.PNG",
            "Class1 test good 0 Class1/Class1/Test/0001.PNG",
        ],
    ),
    "BMAD with masks": (
        "bmad",
        "Brain_AD",
        """
        train/good/img/00003_60.png
        valid/good/img/00025_99.png
        valid/Ungood/img/00124_60.png
        valid/Ungood/anomaly_mask/00124_60.png !
        test/good/img/00000_96.png
        test/good/label/00000_96.png
        test/Ungood/img/00002_60.png
        test/Ungood/anomaly_mask/00002_60.png !
        test/Ungood/label/00002_60.png !
        """,
        [
            "Brain_AD test Ungood 1 test/Ungood/img/00002_60.png <- test/Ungood/anomaly_mask/00002_60.png",
            "Brain_AD test good 0 test/good/img/00000_96.png",
            "Brain_AD train good 0 train/good/img/00003_60.png",
        ],
    ),
    "BMAD with masks called label": (
        "bmad",
        "RESC",
        """
        test/good/img/0.png
        test/Ungood/img/1.png
        test/Ungood/label/1.png !
        """,
        [
            "RESC test Ungood 1 test/Ungood/img/1.png <- test/Ungood/label/1.png",
            "RESC test good 0 test/good/img/0.png",
        ],
    ),
    "BMAD with images only": (
        "bmad",
        "OCT17",
        """
        train/good/1000.png
        valid/good/1080.png
        valid/Ungood/1000.png
        test/good/1000.png
        test/Ungood/100.png
        """,
        [
            "OCT17 test Ungood 1 test/Ungood/100.png",
            "OCT17 test good 0 test/good/1000.png",
            "OCT17 train good 0 train/good/1000.png",
        ],
    ),
    "BrainMRI": (
        "brainmri",
        "archive",
        """
        brain_tumor_dataset/no/1 no.jpg
        brain_tumor_dataset/yes/Y1.JPG
        """,
        [
            "brain test good 0 brain_tumor_dataset/no/1 no.jpg",
            "brain test tumour 1 brain_tumor_dataset/yes/Y1.JPG",
        ],
    ),
    "Kvasir and Endo": (
        "segmentation",
        "Kvasir-SEG",
        """
        images/cju0.jpg
        masks/cju0.jpg !
        """,
        ["Kvasir-SEG test anomaly 1 images/cju0.jpg <- masks/cju0.jpg"],
    ),
    "CVC-ClinicDB": (
        "segmentation",
        "CVC-ClinicDB",
        """
        Original/1.tif
        Ground Truth/1.tif !
        """,
        ["CVC-ClinicDB test anomaly 1 Original/1.tif <- Ground Truth/1.tif"],
    ),
    "CVC-ClinicDB in two formats": (
        "segmentation",
        "ClinicDB",
        """
        PNG/Original/1.png
        PNG/Ground Truth/1.png !
        TIF/Original/1.tif
        TIF/Ground Truth/1.tif !
        """,
        ["ClinicDB test anomaly 1 PNG/Original/1.png <- PNG/Ground Truth/1.png"],
    ),
    "a folder": (
        "folder",
        "caps",
        """
        good/a.jpg
        dent/b.jpg
        """,
        ["caps test dent 1 dent/b.jpg", "caps test good 0 good/a.jpg"],
    ),
    "a folder with masks by defect": (
        "folder",
        "caps",
        """
        good/a.jpg
        dent/b.jpg
        ground_truth/dent/b_mask.png !
        """,
        ["caps test dent 1 dent/b.jpg <- ground_truth/dent/b_mask.png", "caps test good 0 good/a.jpg"],
    ),
    "a folder with all masks together": (
        "folder",
        "caps",
        """
        good/a.jpg
        dent/b.jpg
        masks/b.png !
        """,
        ["caps test dent 1 dent/b.jpg <- masks/b.png", "caps test good 0 good/a.jpg"],
    ),
}
