"""Problems of a data set are named, and the rest is still read."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from data_trees import PUBLISHED, described, write_tree
from keepad.data import read_dataset


def test_a_complete_data_set_has_no_problems(tmp_path: Path) -> None:
    assert read_dataset(write_tree(tmp_path, PUBLISHED["MVTec AD"][2])).problems == ()


def test_missing_masks_are_counted_by_class(tmp_path: Path) -> None:
    root = write_tree(tmp_path / "mvtec", PUBLISHED["MVTec AD"][2])
    (root / "bottle/ground_truth/broken_large/001_mask.png").unlink()
    shutil.rmtree(root / "screw/ground_truth")

    assert read_dataset(root).problems == (
        "mvtec/bottle has no mask for 1 of its 2 anomalous images, such as bottle/test/broken_large/001.png.",
        "mvtec/screw has no mask for any of its 1 anomalous image, so only image metrics can be measured.",
    )


def test_masks_without_an_image_are_counted(tmp_path: Path) -> None:
    root = write_tree(tmp_path / "mvtec", PUBLISHED["MVTec AD"][2])
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
    root = write_tree(tmp_path / "mvtec", PUBLISHED["MVTec AD"][2])
    shutil.rmtree(root / "screw" / gone)

    assert sentence in read_dataset(root).problems


def test_an_empty_class_and_other_folders_are_named(tmp_path: Path) -> None:
    root = write_tree(tmp_path / "mvtec", PUBLISHED["MVTec AD"][2])
    (root / "cable/test/good").mkdir(parents=True)
    write_tree(root, "holiday/beach.jpg")

    assert read_dataset(root).problems == (
        f"The class folder '{root / 'cable'}' holds no readable image; left out.",
        "mvtec has folders that are no classes in this layout: holiday/; left out.",
    )


def test_dagm_labels_txt_reveals_a_missing_label_image(tmp_path: Path) -> None:
    root = write_tree(tmp_path / "DAGM", PUBLISHED["DAGM 2007"][2])
    (root / "Class1/Test/Label/Labels.txt").write_text(
        "1\n1\t1\t0001.PNG\t1\t0001_label.PNG\n2\t1\t0002.PNG\t1\t0002_label.PNG\n"
    )

    dataset = read_dataset(root)

    assert "Class1 test anomaly 1 Class1/Test/0001.PNG" in described(dataset)
    assert "DAGM/Class1 has no mask for 1 of its 3 anomalous images, such as Class1/Test/0001.PNG." in dataset.problems


def test_an_image_whose_label_is_only_in_its_mask_is_left_out_without_it(tmp_path: Path) -> None:
    root = write_tree(tmp_path / "KolektorSDD2", PUBLISHED["KolektorSDD2"][2])
    (root / "test/20000_GT.png").unlink()
    (root / "train/10001_GT.png").write_text("not an image")

    dataset = read_dataset(root)

    assert [sample.key for sample in dataset.samples] == ["test/20001.png", "train/10000.png"]
    assert dataset.problems[0] == (
        "KolektorSDD2/surface has 2 images without a readable _GT file, such as train/10001.png, "
        "so that no label is known; left out."
    )


def test_masks_do_not_belong_to_training_images_of_the_same_name(tmp_path: Path) -> None:
    root = write_tree(
        tmp_path / "mvtec",
        """
        screw/train/scratch/0.png
        screw/test/good/0.png
        screw/test/scratch/0.png
        screw/ground_truth/scratch/0_mask.png !
        """,
    )

    assert [sample.key for sample in read_dataset(root).samples if sample.mask] == ["screw/test/scratch/0.png"]


def test_a_shared_mask_folder_does_not_serve_a_name_that_two_defects_use(tmp_path: Path) -> None:
    files = "good/a.png\ndent/b.png\nscratch/b.png\nscratch/c.png\nmasks/b.png !\nmasks/c.png !"
    root = write_tree(tmp_path / "caps", files)

    assert [sample.key for sample in read_dataset(root).samples if sample.mask] == ["scratch/c.png"]


def test_hidden_files_and_other_files_are_ignored_and_any_case_is_followed(tmp_path: Path) -> None:
    root = write_tree(
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

    assert described(dataset) == [
        "screw test good 0 screw/Test/Good/A.PNG",
        "screw test scratch 1 screw/Test/scratch/B.JPG <- screw/Ground_Truth/scratch/B_Mask.Png",
    ]
    assert dataset.problems == ()


def test_a_relative_path_gives_the_folder_s_own_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(write_tree(tmp_path / "MPDD", PUBLISHED["MPDD"][2]))

    dataset = read_dataset(".")

    assert dataset.suites == ("MPDD",)
    assert described(dataset) == PUBLISHED["MPDD"][3]


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
