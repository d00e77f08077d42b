"""Every layout as it is published: recognised, read when named, refused for another."""

from __future__ import annotations

from pathlib import Path

import pytest

from data_trees import PUBLISHED, described, write_image, write_tree, write_visa
from keepad.data import LAYOUTS, read_dataset
from keepad.errors import KeepADError

published = pytest.mark.parametrize(("layout", "name", "files", "samples"), PUBLISHED.values(), ids=PUBLISHED)


@published
def test_a_published_tree_is_recognised(tmp_path: Path, layout: str, name: str, files: str, samples: list[str]) -> None:
    dataset = read_dataset(write_tree(tmp_path / name, files))

    assert dataset.layout == layout
    assert dataset.suites == (name,)
    assert described(dataset) == samples


@published
def test_a_published_tree_is_read_the_same_when_forced(
    tmp_path: Path, layout: str, name: str, files: str, samples: list[str]
) -> None:
    root = write_tree(tmp_path / name, files)

    assert read_dataset(root, layout) == read_dataset(root)


@published
def test_reading_changes_nothing_on_disk(
    tmp_path: Path, layout: str, name: str, files: str, samples: list[str]
) -> None:
    root = write_tree(tmp_path / name, files)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}

    read_dataset(root)

    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_every_layout_is_covered_above_or_below() -> None:
    assert {layout for layout, *_ in PUBLISHED.values()} | {"visa", "meta", "index"} == set(LAYOUTS)


def test_a_folder_of_data_sets_is_read_suite_by_suite(tmp_path: Path) -> None:
    write_visa(tmp_path / "visa")
    for name in ("MVTec AD", "BTAD"):
        write_tree(tmp_path / name, PUBLISHED[name][2])
    (tmp_path / "notes").mkdir()

    dataset = read_dataset(tmp_path)

    assert dataset.layout == "visa + btad + mvtec"
    assert dataset.suites == ("BTAD", "MVTec AD", "visa")
    assert dataset.classes == ("01", "03", "bottle", "screw", "candle")
    assert dataset.samples[0].key == "BTAD/01/test/ok/0001.bmp"
    assert dataset.problems == ("No data set was recognised in notes/; left out.",)


def test_a_forced_layout_applies_to_each_of_several_data_sets(tmp_path: Path) -> None:
    for name in ("MVTec AD", "MPDD", "BTAD"):
        write_tree(tmp_path / name, PUBLISHED[name][2])

    dataset = read_dataset(tmp_path, "mvtec")

    assert dataset.suites == ("MPDD", "MVTec AD")
    assert dataset.problems == ("No data set was recognised in BTAD/; left out.",)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_tree_in_another_layout_than_the_named_one_is_refused(tmp_path: Path, layout: str) -> None:
    write_tree(tmp_path, "holiday/beach.jpg\nreadme.png")

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
def test_similar_layouts_are_distinguished(tmp_path: Path, name: str, layout: str) -> None:
    with pytest.raises(KeepADError, match=f"is not in the layout '{layout}'"):
        read_dataset(write_tree(tmp_path, PUBLISHED[name][2]), layout)


def test_what_no_layout_fits_is_refused_in_one_sentence(tmp_path: Path) -> None:
    write_tree(tmp_path, "\n".join(f"{number}/photo.jpg" for number in range(9)))

    with pytest.raises(KeepADError, match=r"is in no known layout .* found 0/, 1/, 2/, 3/, 4/, 5/ and 3 more\.$"):
        read_dataset(tmp_path)


def test_an_empty_folder_a_missing_one_and_a_photo_are_refused(tmp_path: Path) -> None:
    with pytest.raises(KeepADError, match=r"but found nothing\.$"):
        read_dataset(tmp_path)
    with pytest.raises(KeepADError, match=r"There is no file or folder '.*nowhere'"):
        read_dataset(tmp_path / "nowhere")
    with pytest.raises(KeepADError, match=r"index\.csv with .* but found a file\.$"):
        read_dataset(write_image(tmp_path / "photo.png"))


def test_an_unknown_layout_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(KeepADError, match="There is no layout 'mvtek'; choose from index, meta, visa"):
        read_dataset(tmp_path, "mvtek")


def test_a_tree_without_any_image_is_refused(tmp_path: Path) -> None:
    (tmp_path / "screw/test/good").mkdir(parents=True)

    with pytest.raises(KeepADError, match="is in the layout 'mvtec' but none of its images is there"):
        read_dataset(tmp_path)
