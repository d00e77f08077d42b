"""Every layout in the form in which it is published: recognised, read when forced, refused when it is another."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from data_trees import grow, paint, seen

import keepad.data
from keepad.data import LAYOUTS, read_dataset
from keepad.errors import KeepADError

# layout, name of the data set's folder, the files of its archive, and the samples they stand for
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
published = pytest.mark.parametrize(("layout", "name", "files", "samples"), PUBLISHED.values(), ids=PUBLISHED)


@published
def test_a_published_tree_is_recognised(tmp_path: Path, layout: str, name: str, files: str, samples: list[str]) -> None:
    dataset = read_dataset(grow(tmp_path / name, files))

    assert dataset.layout == layout
    assert dataset.suites == (name,)
    assert seen(dataset) == samples


@published
def test_a_published_tree_is_read_the_same_when_forced(
    tmp_path: Path, layout: str, name: str, files: str, samples: list[str]
) -> None:
    root = grow(tmp_path / name, files)

    assert read_dataset(root, layout) == read_dataset(root)


@published
def test_reading_changes_nothing_on_disk(
    tmp_path: Path, layout: str, name: str, files: str, samples: list[str]
) -> None:
    root = grow(tmp_path / name, files)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}

    read_dataset(root)

    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_every_layout_is_covered_above_or_below() -> None:
    assert {layout for layout, *_ in PUBLISHED.values()} | {"visa", "meta", "index"} == set(LAYOUTS)


# ---------------------------------------------------------------------------------------------------------------------
# Indexes
# ---------------------------------------------------------------------------------------------------------------------


def visa(root: Path) -> Path:
    grow(
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


@pytest.mark.parametrize("layout", [None, "visa"])
def test_visa_follows_its_published_split(tmp_path: Path, layout: str | None) -> None:
    dataset = read_dataset(visa(tmp_path / "VisA"), layout)

    assert dataset.layout == "visa"
    assert dataset.suites == ("VisA",)
    assert seen(dataset) == [
        "candle test anomaly 1 candle/Data/Images/Anomaly/000.JPG <- candle/Data/Masks/Anomaly/000.png",
        "candle test good 0 candle/Data/Images/Normal/0001.JPG",
        "candle train good 0 candle/Data/Images/Normal/0000.JPG",
    ]
    assert dataset.problems == ()


def test_listed_images_that_are_missing_are_counted_and_left_out(tmp_path: Path) -> None:
    root = visa(tmp_path / "VisA")
    shutil.rmtree(root / "candle/Data/Images/Normal")

    dataset = read_dataset(root)

    assert [sample.label for sample in dataset.samples] == [1]
    assert dataset.problems[0] == (
        "1cls.csv lists 2 images that cannot be found, such as candle/Data/Images/Normal/0000.JPG; left out."
    )


DAGM = PUBLISHED["DAGM 2007"]


def dagm_meta(prefix: str) -> str:
    """What AnomalyCLIP's script writes for DAGM: capital splits, and paths from `prefix`."""

    def entry(image: str, mask: str) -> dict[str, object]:
        return {
            "img_path": prefix + image,
            "mask_path": prefix + mask if mask else "",
            "cls_name": "Class1",
            "specie_name": "",
            "anomaly": 1 if mask else 0,
        }

    return json.dumps(
        {
            "Train": {
                "Class1": [
                    entry("Class1/Train/0576.PNG", ""),
                    entry("Class1/Train/0577.PNG", "Class1/Train/Label/0577_label.PNG"),
                ]
            },
            "Test": {
                "Class1": [
                    entry("Class1/Test/0001.PNG", ""),
                    entry("Class1/Test/0002.PNG", "Class1/Test/Label/0002_label.PNG"),
                ]
            },
        }
    )


@pytest.mark.parametrize("prefix", ["", "data/DAGM_KaggleUpload/", "/remote/data/DAGM_KaggleUpload/", "{root}/"])
@pytest.mark.parametrize("layout", [None, "meta"])
def test_meta_json_with_capital_splits_and_with_or_without_the_root(
    tmp_path: Path, prefix: str, layout: str | None
) -> None:
    root = grow(tmp_path / DAGM[1], DAGM[2])
    (root / "meta.json").write_text(dagm_meta(prefix.format(root=root)))

    dataset = read_dataset(root, layout)

    assert dataset.layout == "meta"
    assert seen(dataset) == DAGM[3]


def test_whole_paths_in_meta_json_give_keys_from_a_relative_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = grow(tmp_path / DAGM[1], DAGM[2])
    (root / "meta.json").write_text(dagm_meta(f"{root}/"))
    monkeypatch.chdir(tmp_path)

    assert seen(read_dataset(DAGM[1])) == DAGM[3]


def test_meta_json_may_be_named_itself(tmp_path: Path) -> None:
    root = grow(tmp_path / DAGM[1], DAGM[2])
    (root / "meta.json").write_text(dagm_meta(""))

    dataset = read_dataset(root / "meta.json")

    assert dataset.root == root
    assert seen(dataset) == DAGM[3]


def test_meta_json_names_the_kind_of_defect(tmp_path: Path) -> None:
    root = grow(tmp_path / "mvtec", "screw/test/scratch/0.png\nscrew/ground_truth/scratch/0_mask.png !")
    entry = {
        "img_path": "screw/test/scratch/0.png",
        "mask_path": "screw/ground_truth/scratch/0_mask.png",
        "cls_name": "screw",
        "specie_name": "scratch",
        "anomaly": 1,
    }
    (root / "meta.json").write_text(json.dumps({"train": {}, "test": {"screw": [entry]}}))

    assert [sample.defect for sample in read_dataset(root).samples] == ["scratch"]


def test_a_meta_json_of_something_else_is_not_an_index(tmp_path: Path) -> None:
    root = grow(tmp_path / DAGM[1], DAGM[2])
    (root / "meta.json").write_text('{"licence": "none"}')

    assert read_dataset(root).layout == "dagm"


def test_a_meta_json_without_labels_is_refused(tmp_path: Path) -> None:
    (tmp_path / "meta.json").write_text('{"test": {"screw": [{"img_path": "0.png"}]}}')

    with pytest.raises(KeepADError, match=r"meta\.json' has an entry for screw without a usable img_path or anomaly"):
        read_dataset(tmp_path)


def index(root: Path, rows: str) -> Path:
    grow(root, "a/good.png\na/bad.png\na/bad_mask.png !")
    (root / "index.csv").write_text("suite,class,split,defect,label,image,mask\n" + rows)
    return root


@pytest.mark.parametrize("layout", [None, "index"])
@pytest.mark.parametrize("name", ["", "index.csv"])
def test_a_csv_lists_the_images_relative_to_itself(tmp_path: Path, layout: str | None, name: str) -> None:
    root = index(tmp_path, "lab,nut,test,good,0,a/good.png,\nlab,nut,test,dent,1,a/bad.png,a/bad_mask.png\n")

    dataset = read_dataset(root / name, layout)

    assert (dataset.layout, dataset.root, dataset.suites) == ("index", root, ("lab",))
    assert seen(dataset) == ["nut test dent 1 a/bad.png <- a/bad_mask.png", "nut test good 0 a/good.png"]


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ("lab,nut,test,good,fine,a/good.png,", r"Line 2 of '.*index\.csv' has the label 'fine'; write one of 0, 1"),
        ("lab,nut,dev,good,0,a/good.png,", r"Line 2 of '.*index\.csv' has the split 'dev'; write one of train, test"),
    ],
)
def test_a_csv_with_unknown_words_is_refused_with_the_line(tmp_path: Path, row: str, sentence: str) -> None:
    with pytest.raises(KeepADError, match=sentence):
        read_dataset(index(tmp_path, row))


# ---------------------------------------------------------------------------------------------------------------------
# Several data sets, and none
# ---------------------------------------------------------------------------------------------------------------------


def test_a_folder_of_data_sets_is_read_suite_by_suite(tmp_path: Path) -> None:
    visa(tmp_path / "visa")
    for name in ("MVTec AD", "BTAD"):
        grow(tmp_path / name, PUBLISHED[name][2])
    (tmp_path / "notes").mkdir()

    dataset = read_dataset(tmp_path)

    assert dataset.layout == "visa + btad + mvtec"
    assert dataset.suites == ("BTAD", "MVTec AD", "visa")
    assert dataset.classes == ("01", "03", "bottle", "screw", "candle")
    assert dataset.samples[0].key == "BTAD/01/test/ok/0001.bmp"
    assert dataset.problems == ("No data set was recognised in notes/; left out.",)


def test_a_forced_layout_applies_to_each_of_several_data_sets(tmp_path: Path) -> None:
    for name in ("MVTec AD", "MPDD", "BTAD"):
        grow(tmp_path / name, PUBLISHED[name][2])

    dataset = read_dataset(tmp_path, "mvtec")

    assert dataset.suites == ("MPDD", "MVTec AD")
    assert dataset.problems == ("No data set was recognised in BTAD/; left out.",)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_tree_that_is_not_what_was_asked_for_is_refused(tmp_path: Path, layout: str) -> None:
    grow(tmp_path, "holiday/beach.jpg\nreadme.png")

    with pytest.raises(KeepADError) as error:
        read_dataset(tmp_path, layout)

    assert str(error.value) == (
        f"'{tmp_path}' is not in the layout '{layout}': expected {LAYOUTS[layout].expects}, "
        "but found holiday/, readme.png."
    )


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        ("BTAD", "mvtec"),
        ("BMAD with masks", "mvtec"),
        ("MVTec AD", "btad"),
        ("MVTec AD", "bmad"),
        ("KolektorSDD", "ksdd2"),
        ("KolektorSDD2", "ksdd"),
        ("DAGM 2007", "ksdd"),
        ("a folder with all masks together", "segmentation"),
        ("Kvasir and Endo", "folder"),
    ],
)
def test_data_sets_that_look_alike_are_not_taken_for_each_other(tmp_path: Path, name: str, layout: str) -> None:
    with pytest.raises(KeepADError, match=f"is not in the layout '{layout}'"):
        read_dataset(grow(tmp_path, PUBLISHED[name][2]), layout)


def test_what_no_layout_fits_is_refused_in_one_sentence(tmp_path: Path) -> None:
    grow(tmp_path, "\n".join(f"{number}/photo.jpg" for number in range(9)))

    with pytest.raises(KeepADError, match=r"is in no known layout .* found 0/, 1/, 2/, 3/, 4/, 5/ and 3 more\.$"):
        read_dataset(tmp_path)


def test_an_empty_folder_a_missing_one_and_a_photo_are_refused(tmp_path: Path) -> None:
    with pytest.raises(KeepADError, match=r"but found nothing\.$"):
        read_dataset(tmp_path)
    with pytest.raises(KeepADError, match=r"There is no file or folder '.*nowhere'"):
        read_dataset(tmp_path / "nowhere")
    with pytest.raises(KeepADError, match=r"index\.csv with .* but found a file\.$"):
        read_dataset(paint(tmp_path / "photo.png"))


def test_an_unknown_layout_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(KeepADError, match="There is no layout 'mvtek'; choose from index, meta, visa"):
        read_dataset(tmp_path, "mvtek")


def test_a_tree_without_any_image_is_refused(tmp_path: Path) -> None:
    (tmp_path / "screw/test/good").mkdir(parents=True)

    with pytest.raises(KeepADError, match="is in the layout 'mvtec' but none of its images is there"):
        read_dataset(tmp_path)


# ---------------------------------------------------------------------------------------------------------------------
# What is wrong is said, and the rest is still read
# ---------------------------------------------------------------------------------------------------------------------


def test_a_complete_data_set_has_no_problems(tmp_path: Path) -> None:
    assert read_dataset(grow(tmp_path, PUBLISHED["MVTec AD"][2])).problems == ()


def test_missing_masks_are_counted_by_class(tmp_path: Path) -> None:
    root = grow(tmp_path / "mvtec", PUBLISHED["MVTec AD"][2])
    (root / "bottle/ground_truth/broken_large/001_mask.png").unlink()
    shutil.rmtree(root / "screw/ground_truth")

    assert read_dataset(root).problems == (
        "mvtec/bottle has no mask for 1 of its 2 anomalous images, such as bottle/test/broken_large/001.png.",
        "mvtec/screw has no mask for any of its 1 anomalous image, so only image metrics can be measured.",
    )


def test_masks_without_an_image_are_counted(tmp_path: Path) -> None:
    root = grow(tmp_path / "mvtec", PUBLISHED["MVTec AD"][2])
    (root / "bottle/test/broken_large/000.png").unlink()

    assert read_dataset(root).problems == (
        "mvtec/bottle has 1 mask without an image, such as bottle/ground_truth/broken_large/000_mask.png.",
    )


@pytest.mark.parametrize(
    ("gone", "sentence"),
    [
        ("test/good", "mvtec/screw has no normal test image, so only pixel metrics can be measured."),
        ("test/scratch", "mvtec/screw has no anomalous test image, so only false alarms can be measured."),
        ("test", "mvtec/screw has no test image, so nothing can be measured."),
    ],
)
def test_a_class_that_lacks_one_side_is_named(tmp_path: Path, gone: str, sentence: str) -> None:
    root = grow(tmp_path / "mvtec", PUBLISHED["MVTec AD"][2])
    shutil.rmtree(root / "screw" / gone)

    assert sentence in read_dataset(root).problems


def test_an_empty_class_and_a_stranger_are_named(tmp_path: Path) -> None:
    root = grow(tmp_path / "mvtec", PUBLISHED["MVTec AD"][2])
    (root / "cable/test/good").mkdir(parents=True)
    grow(root, "holiday/beach.jpg")

    assert read_dataset(root).problems == (
        f"The class folder '{root / 'cable'}' holds no readable image; left out.",
        "mvtec has folders that are no classes in this layout: holiday/; left out.",
    )


def test_dagm_labels_txt_tells_of_a_missing_label_image(tmp_path: Path) -> None:
    root = grow(tmp_path / "DAGM", DAGM[2])
    (root / "Class1/Test/Label/Labels.txt").write_text(
        "1\n1\t1\t0001.PNG\t1\t0001_label.PNG\n2\t1\t0002.PNG\t1\t0002_label.PNG\n"
    )

    dataset = read_dataset(root)

    assert "Class1 test anomaly 1 Class1/Test/0001.PNG" in seen(dataset)
    assert "DAGM/Class1 has no mask for 1 of its 3 anomalous images, such as Class1/Test/0001.PNG." in dataset.problems


def test_an_image_whose_label_is_only_in_its_mask_is_left_out_without_it(tmp_path: Path) -> None:
    root = grow(tmp_path / "KolektorSDD2", PUBLISHED["KolektorSDD2"][2])
    (root / "test/20000_GT.png").unlink()
    (root / "train/10001_GT.png").write_text("not an image")

    dataset = read_dataset(root)

    assert [sample.key for sample in dataset.samples] == ["test/20001.png", "train/10000.png"]
    assert dataset.problems[0] == (
        "KolektorSDD2/surface has 2 images without a readable _GT file, such as train/10001.png, "
        "so that no label is known; left out."
    )


def test_the_ground_truth_is_not_given_to_training_images_of_the_same_name(tmp_path: Path) -> None:
    root = grow(
        tmp_path / "mvtec",
        """
        screw/train/scratch/0.png
        screw/test/good/0.png
        screw/test/scratch/0.png
        screw/ground_truth/scratch/0_mask.png !
        """,
    )

    assert [sample.key for sample in read_dataset(root).samples if sample.mask] == ["screw/test/scratch/0.png"]


def test_masks_in_one_folder_are_not_given_to_a_name_that_two_defects_share(tmp_path: Path) -> None:
    root = grow(tmp_path / "caps", "good/a.png\ndent/b.png\nscratch/b.png\nscratch/c.png\nmasks/b.png !\nmasks/c.png !")

    assert [sample.key for sample in read_dataset(root).samples if sample.mask] == ["scratch/c.png"]


def test_hidden_files_and_other_files_are_ignored_and_any_case_is_followed(tmp_path: Path) -> None:
    root = grow(
        tmp_path / "mvtec",
        """
        screw/Test/Good/A.PNG
        screw/Test/Good/._A.PNG
        screw/Test/scratch/B.JPG
        screw/Ground_Truth/scratch/B_Mask.Png !
        .cache/test/good/0.png
        """,
    )
    (root / "screw/Test/Good/notes.txt").write_text("")

    dataset = read_dataset(root)

    assert seen(dataset) == [
        "screw test good 0 screw/Test/Good/A.PNG",
        "screw test scratch 1 screw/Test/scratch/B.JPG <- screw/Ground_Truth/scratch/B_Mask.Png",
    ]
    assert dataset.problems == ()


def test_a_relative_path_gives_the_folder_s_own_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(grow(tmp_path / "MPDD", PUBLISHED["MPDD"][2]))

    dataset = read_dataset(".")

    assert dataset.suites == ("MPDD",)
    assert seen(dataset) == PUBLISHED["MPDD"][3]


def test_reading_data_needs_no_torch() -> None:
    sources = Path(keepad.data.__file__).parent.glob("*.py")

    assert not [source.name for source in sources if "torch" in source.read_text()]


@pytest.mark.shared
@pytest.mark.parametrize("layout", ["index", "mvtec"])
def test_the_shared_images_are_as_many_as_their_readme_says(shared_data: Path, layout: str) -> None:
    dataset = read_dataset(shared_data, layout)

    counts = {}
    for suite in dataset.suites:
        samples = dataset.select(suites=suite).samples
        test = [sample for sample in samples if sample.split == "test"]
        good = sum(sample.label == 0 for sample in test)
        counts[suite] = (
            good,
            len(test) - good,
            sum(sample.mask is not None for sample in test),
            len(samples) - len(test),
        )
    # test good, test defect, masks, train good
    assert counts == {
        "brainmri": (98, 155, 0, 0),
        "dagm": (240, 240, 240, 6 * 12),
        "ksdd": (150, 50, 50, 0),
        "mpdd": (114, 199, 199, 4 * 24),
        "mtd": (191, 388, 388, 24),
        "mvtec": (229, 535, 535, 6 * 24),
    }
    assert dataset.problems == (
        "brainmri/brain has no mask for any of its 155 anomalous images, so only image metrics can be measured.",
    )
