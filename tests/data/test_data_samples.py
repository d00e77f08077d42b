"""Keys of samples, and selection from data sets by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from keepad.data import Dataset, Sample
from keepad.errors import KeepADError

ROOT = Path("sets")


def sample(suite: str, cls: str, split: str = "test") -> Sample:
    return Sample(suite, cls, split, "good", 0, ROOT / suite / cls / split / "0.png", None, ROOT)


DATASET = Dataset(
    ROOT, "mvtec", (sample("mpdd", "plate"), sample("mvtec", "pill"), sample("mvtec", "screw", "train")), ("A remark.",)
)


def keys(dataset: Dataset) -> list[str]:
    return [sample.key for sample in dataset.samples]


def test_a_key_is_the_path_from_the_root() -> None:
    assert keys(DATASET) == ["mpdd/plate/test/0.png", "mvtec/pill/test/0.png", "mvtec/screw/train/0.png"]


def test_the_key_of_an_image_elsewhere_is_its_whole_path() -> None:
    assert Sample("s", "c", "test", "good", 0, Path("other/0.png"), None, ROOT).key == "other/0.png"


def test_suites_and_classes_come_once_in_order() -> None:
    assert DATASET.suites == ("mpdd", "mvtec")
    assert DATASET.classes == ("plate", "pill", "screw")
    assert list(DATASET.by_class()) == [("mpdd", "plate"), ("mvtec", "pill"), ("mvtec", "screw")]


def test_select_narrows_by_everything_that_is_given() -> None:
    assert keys(DATASET.select()) == keys(DATASET)
    assert keys(DATASET.select(suites="mvtec")) == ["mvtec/pill/test/0.png", "mvtec/screw/train/0.png"]
    assert keys(DATASET.select(suites=["mvtec"], split="test")) == ["mvtec/pill/test/0.png"]
    assert keys(DATASET.select(classes=["plate", "screw"])) == ["mpdd/plate/test/0.png", "mvtec/screw/train/0.png"]
    assert DATASET.select(suites="mvtec").problems == ("A remark.",)


@pytest.mark.parametrize(
    ("selection", "sentence"),
    [
        ({"suites": ["mvtec", "visa"]}, "There is no suite 'visa' in 'sets'; choose from mpdd, mvtec."),
        ({"classes": "bolt"}, "There is no class 'bolt' in 'sets'; choose from plate, pill, screw."),
        ({"suites": "mvtec", "classes": "plate"}, "There is no class 'plate' in 'sets'; choose from pill, screw."),
        ({"split": "valid"}, "There is no split 'valid' in 'sets'; choose from train, test."),
    ],
)
def test_select_refuses_unknown_names_and_lists_the_known_ones(selection: dict[str, Any], sentence: str) -> None:
    with pytest.raises(KeepADError) as error:
        DATASET.select(**selection)

    assert str(error.value) == sentence
