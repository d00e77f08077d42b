"""keepad evaluate --shots: references of each class, drawn several times and never tested."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from shutil import rmtree

import pytest

from evaluate_trees import draw_class
from keepad.cli import main
from keepad.data import read_dataset
from keepad.detector import Detector
from keepad.errors import KeepADError
from keepad.evaluate import evaluate
from keepad.evaluate.selection import groups_of
from keepad.evaluate.shots import ReferencePool, draw, shot_variants, shots_markdown
from keepad.evaluate.variants import Shots, Variant
from keepad.network import Network
from keepad.presets import POINTS


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A class with good images for training, and one that only has test images."""
    draw_class(tmp_path / "data" / "parts" / "bolt", good=4, defects=[20, 40], seed=1)
    draw_class(tmp_path / "data" / "parts" / "cap", good=6, defects=[20, 40], seed=2)
    draw_class(tmp_path / "other" / "bolt", good=5, defects=[20], seed=9)
    for cls in ("bolt", "cap"):
        rmtree(tmp_path / "data" / "parts" / cls / "train")
    (tmp_path / "data" / "parts" / "bolt" / "train").mkdir()
    (tmp_path / "other" / "bolt" / "test" / "good").rename(tmp_path / "data" / "parts" / "bolt" / "train" / "good")
    return tmp_path / "data" / "parts"


def test_references_come_from_the_train_split_or_are_left_out_of_the_test(tree: Path) -> None:
    dataset = read_dataset(tree)
    groups = groups_of(dataset, None)
    variants = shot_variants([POINTS["prune50"]], [0, 1, 2], 3)
    assert len(variants) == 1 + 2 * 3
    pool = ReferencePool(dataset, groups, variants)
    left = pool.without_references(groups)
    names = {name[1]: len(samples) for name, samples in left.items()}
    assert names == {"bolt": 6, "cap": 8 - 2}  # two draws at most of cap's six good ones
    references = {sample.image for sample in pool.samples}
    assert not references & {sample.image for samples in left.values() for sample in samples}
    assert all(sample.label == 0 for sample in pool.samples)


def test_larger_draws_hold_smaller_ones_and_draws_differ(tree: Path) -> None:
    dataset = read_dataset(tree)
    pool = dataset.select(split="train").by_class()[dataset.suites[0], "bolt"]
    name = (dataset.suites[0], "bolt")
    assert draw(pool, Shots(2, 0), name) == draw(pool, Shots(4, 0), name)[:2]
    assert len(draw(pool, Shots(99, 0), name)) == len(pool)
    assert len({tuple(sample.image for sample in draw(pool, Shots(3, number), name)) for number in range(8)}) > 1


def test_an_evaluation_with_references_resumes_and_fills_its_table(tree: Path, tiny: Network, tmp_path: Path) -> None:
    detector, dataset = Detector(tiny, "prune50"), read_dataset(tree)
    variants = shot_variants([POINTS["prune50"]], [0, 1, 2], 2)
    results = evaluate(detector, dataset, variants, tmp_path / "out")
    assert results.computed == 12
    again = evaluate(detector, dataset, variants, tmp_path / "out")
    assert again.computed == 0
    assert again.content["records"] == results.content["records"]
    page = shots_markdown({"tiny": results.content})
    rows = [line for line in page.splitlines() if line.startswith("| prune50 |")]
    assert [row.split("|")[2].strip() for row in rows] == ["0", "1", "2"]
    scores = {row["points"][variant.name]["score"] for row in results.images for variant in variants}
    assert len(scores) > len(results.images)  # references change what an image scores


def test_rotated_copies_and_the_bound_of_the_bank_are_what_a_variant_names(tree: Path, tiny: Network) -> None:
    detector, dataset = Detector(tiny, "prune50"), read_dataset(tree)
    dense = POINTS["dense"]
    listed = [
        *shot_variants([dense], [2], 1, "off"),
        Variant("dense turned, 2 shots", dense, shots=Shots(2, 0, "on")),
        Variant("dense small, 2 shots", dense, shots=Shots(2, 0, "off", 64)),
        Variant("dense other, 2 shots", dense, Detector(tiny, "dense"), shots=Shots(2, 0, "off")),
    ]
    pool = ReferencePool(dataset, groups_of(dataset, None), listed)
    banks = pool.banks(detector, (dataset.suites[0], "bolt"))
    plain, turned, small, other = (banks[variant.name].layers for variant in listed)
    assert turned.shape[1] > plain.shape[1]
    assert small.shape[1] == 64
    assert (other == plain).all()


def test_what_one_detector_recorded_is_not_anothers(tree: Path, make_tiny: Callable[[], Network]) -> None:
    dataset, another = read_dataset(tree), make_tiny()
    another.placement = replace(another.placement, deep=another.placement.deep - 1)
    shots = Shots(1, 0, "off")
    listed = [Variant("a", POINTS["dense"], shots=shots)]
    listed.append(Variant("b", POINTS["dense"], Detector(another, "dense"), shots=shots))
    pool = ReferencePool(dataset, groups_of(dataset, None), listed)
    banks = pool.banks(Detector(make_tiny(), "dense"), (dataset.suites[0], "bolt"))
    assert (banks["a"].deep != banks["b"].deep).any()


def test_senseless_numbers_are_refused(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KeepADError, match="at least once"):
        shot_variants([POINTS["prune50"]], [1], 0)
    with pytest.raises(KeepADError, match="between 0 and 1000"):
        shot_variants([POINTS["prune50"]], [1001], 1)
    with pytest.raises(KeepADError, match="auto, on, off"):
        shot_variants([POINTS["prune50"]], [1], 1, "sometimes")
    monkeypatch.setattr(sys, "argv", ["keepad", "evaluate", "-d", str(tree), "-o", str(tree / "o"), "--shots", "few"])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 2
