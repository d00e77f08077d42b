"""Tuning: what it chooses on held-out logits that are made to have one right answer."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from keepad.data import Sample
from keepad.presets import Placement
from keepad.training.calibration import HeldOutLogits
from keepad.training.dataset import Annotations
from keepad.training.recipe import RECIPES, DetectorRecipe
from keepad.training.results import RouterValidation, Validation
from keepad.training.router_tuning import RouterChoice, RouterTrial, shallow_layers
from keepad.training.sizes import part_of
from keepad.training.tuning import PRICE, Trial, tune

DEPTH, GRID, IMAGES = 12, (6, 6), 40
LAYERS = (6, 7, 8, 9, 10, 11, 12)
RECIPE = RECIPES["keepad"]


def logits(informative: dict[int, float], *, dissimilar: float = 0.0) -> HeldOutLogits:
    """Noise in every layer, and a defect of so many deviations in some, or in all dissimilarities."""
    generator = torch.Generator().manual_seed(0)
    cells = GRID[0] * GRID[1]
    label = np.arange(IMAGES) % 2
    defects = [np.isin(np.arange(cells), (7, 8, 13, 14)) & bool(value) for value in label]
    where = torch.from_numpy(np.stack(defects)).float()
    patch = torch.randn(IMAGES, len(LAYERS), cells, generator=generator)
    for layer, strength in informative.items():
        patch[:, LAYERS.index(layer)] += strength * where
    unlike = torch.randn(IMAGES, 3, cells, generator=generator) + dissimilar * where[:, None]
    return HeldOutLogits(
        patch=patch,
        cls=torch.randn(IMAGES, len(LAYERS), generator=generator),
        dissimilarity=None,
        entry={layer: unlike[:, i] for i, layer in enumerate((5, 6, 7))},
        truth=Annotations(label, defects, [("suite", "class")] * IMAGES),
        layers=LAYERS,
        grid=GRID,
    )


def free(placement: Placement) -> float:
    return 1.0


def chosen(held_out: HeldOutLogits, cost: Callable[[Placement], float] = free) -> DetectorRecipe:
    return tune(held_out, RECIPE, DEPTH, cost)[-1].recipe


def test_layers_that_show_the_defect_are_chosen() -> None:
    layers = chosen(logits({8: 4.0, 10: 4.0})).placement(DEPTH).head_layers
    assert {8, 10} <= set(layers)
    assert 6 not in layers


def test_a_late_layer_must_be_worth_its_blocks() -> None:
    both = logits({7: 1.0, 12: 2.0})
    assert 12 in chosen(both).placement(DEPTH).head_layers
    assert chosen(both, lambda placement: 2.0 ** (50 * placement.exit)).placement(DEPTH).exit == 6


def test_dissimilarity_is_used_where_it_shows_the_defect() -> None:
    assert chosen(logits({8: 2.0}, dissimilar=3.0)).entry >= 1.0
    assert chosen(logits({8: 6.0})).entry <= 0.5


def test_no_head_layer_lies_before_the_deep_router() -> None:
    for strong in (6, 8, 12):
        recipe = chosen(logits({strong: 5.0}))
        placement = recipe.placement(DEPTH)
        assert placement.deep <= placement.head_layers[0]


def test_the_last_trial_is_the_best_and_none_is_tried_twice() -> None:
    *trials, best = tune(logits({8: 4.0, 10: 4.0}), RECIPE, DEPTH, free)
    assert best.value == max(trial.value for trial in trials)
    assert len({trial.recipe for trial in trials}) == len(trials)


def test_twice_the_compute_must_gain_one_point() -> None:
    cheap = Trial(RECIPE, Validation(0.80, 0.90), 1e9)
    dear = Trial(RECIPE, Validation(0.80 + 2 * PRICE, 0.90), 2e9)
    assert math.isclose(cheap.value, dear.value)


def test_a_choice_that_keeps_more_than_its_name_promises_is_out() -> None:
    choice = RouterChoice(shallow=4, score_smoothing=1.0, coverage=3, kappa=0.58, grades=(0.0, 0.0))
    validation = RouterValidation(0.9, 0.9, dtr=0.9, missed=0, anomalous=10, keep=0.19)
    trial = RouterTrial(choice, validation, 1e9, dense=3e9)
    assert trial.value > RouterTrial(choice, replace(validation, missed=1), 1e9, dense=3e9).value
    assert RouterTrial(choice, replace(validation, keep=0.21), 1e9, dense=3e9).value == -math.inf
    assert RouterTrial(choice, validation, 2e9, dense=3e9).value == -math.inf


def test_the_shallow_router_comes_before_the_deep_one() -> None:
    assert shallow_layers(6) == [3, 4, 5]
    assert shallow_layers(9) == [3, 4, 5, 6]
    assert shallow_layers(3) == [2]


def test_sizes_are_compared_on_every_fourth_image_of_each_class_and_label() -> None:
    samples = [
        Sample("suite", cls, "test", "cut" if label else "good", label, Path(f"{cls}{label}{i}.png"), None, Path("."))
        for cls in "ab"
        for label in (0, 1)
        for i in range(9)
    ]
    part = part_of(samples)
    assert len(part) == 12
    assert {(sample.cls, sample.label) for sample in part} == {("a", 0), ("a", 1), ("b", 0), ("b", 1)}
