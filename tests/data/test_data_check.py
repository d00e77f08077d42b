"""`keepad data check`: the table of classes, the problems and the exit code."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from data_trees import write_image, write_tree
from keepad.cli.data import app
from keepad.data import LAYOUTS
from keepad.errors import KeepADError

FILES = """
    screw/train/good/000.png
    screw/test/good/000.png
    screw/test/good/001.png
    screw/test/scratch/002.png
    screw/ground_truth/scratch/002_mask.png !
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return write_tree(tmp_path / "mvtec", FILES)


def check(*arguments: object) -> Result:
    """The result of the command, mounted under `data`."""
    keepad = typer.Typer()
    keepad.add_typer(app, name="data")
    return CliRunner().invoke(keepad, ["data", "check", *map(str, arguments)], env={"COLUMNS": "200"})


def test_a_complete_data_set_exits_0(tree: Path) -> None:
    result = check(tree)

    assert result.exit_code == 0
    assert (
        f"{tree}: 4 images in the layout mvtec (MVTec AD, MPDD, DTD-Synthetic and trees like theirs)" in result.output
    )
    assert "Nothing is wrong." in result.output


def test_the_table_counts_by_class(tree: Path) -> None:
    cells = [line.split("│") for line in check(tree).output.splitlines() if "screw" in line]

    # suite, class, train good, test good, test defect, masks
    assert [[cell.strip() for cell in line[1:-1]] for line in cells] == [["mvtec", "screw", "1", "2", "1", "1"]]


def test_a_missing_mask_exits_1(tree: Path) -> None:
    (tree / "screw/ground_truth/scratch/002_mask.png").unlink()

    result = check(tree)

    assert result.exit_code == 1
    assert "- mvtec/screw has no mask for any of its 1 anomalous image," in result.output
    assert "Nothing is wrong." not in result.output


def test_a_mask_of_another_size_exits_1(tree: Path) -> None:
    write_image(tree / "screw/ground_truth/scratch/002_mask.png", size=(9, 9))

    result = check(tree)

    assert result.exit_code == 1
    assert "002_mask.png' has 9 x 9 pixels but its image" in result.output


def test_unreadable_files_exit_1_and_many_are_summed_up(tree: Path) -> None:
    for number in range(8):
        (tree / f"screw/test/good/{number + 100}.png").write_text("not an image")

    result = check(tree)

    assert result.exit_code == 1
    assert result.output.count("is not an image that can be opened") == 5
    assert "- 3 more files cannot be opened." in result.output


def test_what_is_not_recognised_is_left_to_the_root_command(tmp_path: Path) -> None:
    result = check(tmp_path)

    assert isinstance(result.exception, KeepADError)
    assert "is in no known layout" in str(result.exception)


def test_a_forced_layout_is_obeyed(tree: Path) -> None:
    assert check(tree, "--layout", "mvtec").exit_code == 0
    assert "is not in the layout 'visa'" in str(check(tree, "--layout", "visa").exception)


def test_help_lists_the_layouts() -> None:
    words = check("--help").output.replace("│", " ").replace(",", " ").replace(".", " ").split()

    assert set(LAYOUTS) <= set(words)


def test_brackets_in_a_path_are_printed_as_they_are(tmp_path: Path) -> None:
    assert "[bold]set: 4 images" in check(write_tree(tmp_path / "[bold]set", FILES)).output
