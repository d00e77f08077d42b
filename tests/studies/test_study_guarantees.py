"""The study of promises: its rates on drawn scores, what breaks a promise, and its page on small suites."""

from __future__ import annotations

import numpy as np
import pytest

from keepad.studies.guarantees import Product, choice_rows, discovery_rows, simulated_rows, split_rates, split_rows


def product(random: np.random.Generator, good: int = 80) -> Product:
    return Product("a", random.normal(0, 1, good), random.normal(0, 1, good), random.normal(4, 1, 40))


def test_rates_on_exchangeable_images_are_those_promised() -> None:
    result = split_rates(product(np.random.default_rng(0)), 300)
    assert result is not None
    assert (result.count, result.level) == (40, 0.05)
    # Of the split images, 2 of 41 ranks are beyond the threshold.
    assert result.alarms.mean() == pytest.approx(2 / 41, abs=0.01)
    assert result.pixels.mean() == pytest.approx(2 / 41, abs=0.01)
    assert result.found.mean() > 0.9
    (row,) = split_rows([product(np.random.default_rng(0))], 300)
    assert row[6] == "yes"
    assert split_rates(product(np.random.default_rng(0), good=3), 10) is None


def test_simulated_promises_are_kept() -> None:
    assert [row[-1] for row in simulated_rows(400)] == ["yes"] * 5


def test_false_discoveries_are_bounded_and_defects_found() -> None:
    ((_, count, _, held, found),) = discovery_rows([product(np.random.default_rng(1), 200)], 200)
    assert (count, held) == ("100", "yes")
    assert float(found) > 50


def test_wrong_choices_are_rare_and_good_ones_are_not() -> None:
    rows = choice_rows(200)
    assert [row[3] for row in rows] == ["yes"] * 4
    assert float(rows[-1][-1]) > 90


@pytest.mark.usefixtures("models")
def test_it_writes_a_page_from_both_directions(study) -> None:
    arguments = ("--model", "p2b,b2p", "--suites", "parts,brainmri", "--splits", "20", "--sets", "20", "--batch", "2")
    text = (study("guarantees", *arguments) / "guarantees.md").read_text()
    assert "p2b: brainmri/brain" in text
    assert "b2p: parts/bolt" in text
    assert "none is, by a hair" in text
