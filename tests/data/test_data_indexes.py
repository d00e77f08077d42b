"""Layouts with an index file: VisA, AnomalyCLIP's meta.json, and CSV."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from data_trees import PUBLISHED, described, write_tree, write_visa
from keepad.data import read_dataset
from keepad.errors import KeepADError


@pytest.mark.parametrize("layout", [None, "visa"])
def test_visa_follows_its_published_split(tmp_path: Path, layout: str | None) -> None:
    dataset = read_dataset(write_visa(tmp_path / "VisA"), layout)

    assert dataset.layout == "visa"
    assert dataset.suites == ("VisA",)
    assert described(dataset) == [
        "candle test anomaly 1 candle/Data/Images/Anomaly/000.JPG <- candle/Data/Masks/Anomaly/000.png",
        "candle test good 0 candle/Data/Images/Normal/0001.JPG",
        "candle train good 0 candle/Data/Images/Normal/0000.JPG",
    ]
    assert dataset.problems == ()


def test_listed_images_that_are_missing_are_counted_and_left_out(tmp_path: Path) -> None:
    root = write_visa(tmp_path / "VisA")
    shutil.rmtree(root / "candle/Data/Images/Normal")

    dataset = read_dataset(root)

    assert [sample.label for sample in dataset.samples] == [1]
    assert dataset.problems[0] == (
        "1cls.csv lists 2 images that cannot be found, such as candle/Data/Images/Normal/0000.JPG; left out."
    )


DAGM = PUBLISHED["DAGM 2007"]


def dagm_meta(prefix: str) -> str:
    """AnomalyCLIP's index of DAGM: capitalised splits, and paths that start with `prefix`."""

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
    root = write_tree(tmp_path / DAGM[1], DAGM[2])
    (root / "meta.json").write_text(dagm_meta(prefix.format(root=root)))

    dataset = read_dataset(root, layout)

    assert dataset.layout == "meta"
    assert described(dataset) == DAGM[3]


def test_whole_paths_in_meta_json_give_keys_from_a_relative_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = write_tree(tmp_path / DAGM[1], DAGM[2])
    (root / "meta.json").write_text(dagm_meta(f"{root}/"))
    monkeypatch.chdir(tmp_path)

    assert described(read_dataset(DAGM[1])) == DAGM[3]


def test_meta_json_may_be_named_itself(tmp_path: Path) -> None:
    root = write_tree(tmp_path / DAGM[1], DAGM[2])
    (root / "meta.json").write_text(dagm_meta(""))

    dataset = read_dataset(root / "meta.json")

    assert dataset.root == root
    assert described(dataset) == DAGM[3]


def test_meta_json_names_the_kind_of_defect(tmp_path: Path) -> None:
    root = write_tree(tmp_path / "mvtec", "screw/test/scratch/0.png\nscrew/ground_truth/scratch/0_mask.png !")
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
    root = write_tree(tmp_path / DAGM[1], DAGM[2])
    (root / "meta.json").write_text('{"licence": "none"}')

    assert read_dataset(root).layout == "dagm"


def test_a_meta_json_without_labels_is_refused(tmp_path: Path) -> None:
    (tmp_path / "meta.json").write_text('{"test": {"screw": [{"img_path": "0.png"}]}}')

    with pytest.raises(KeepADError, match=r"meta\.json' has an entry for screw without a usable img_path or anomaly"):
        read_dataset(tmp_path)


def index(root: Path, rows: str) -> Path:
    write_tree(root, "a/good.png\na/bad.png\na/bad_mask.png !")
    (root / "index.csv").write_text("suite,class,split,defect,label,image,mask\n" + rows)
    return root


@pytest.mark.parametrize("layout", [None, "index"])
@pytest.mark.parametrize("name", ["", "index.csv"])
def test_a_csv_lists_the_images_relative_to_itself(tmp_path: Path, layout: str | None, name: str) -> None:
    root = index(tmp_path, "lab,nut,test,good,0,a/good.png,\nlab,nut,test,dent,1,a/bad.png,a/bad_mask.png\n")

    dataset = read_dataset(root / name, layout)

    assert (dataset.layout, dataset.root, dataset.suites) == ("index", root, ("lab",))
    assert described(dataset) == ["nut test dent 1 a/bad.png <- a/bad_mask.png", "nut test good 0 a/good.png"]


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
