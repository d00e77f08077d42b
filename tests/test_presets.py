"""Placement, budgets and operating points: the published values, and what is refused."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest

from keepad.errors import KeepADError
from keepad.presets import (
    PIXELS,
    POINTS,
    Calibration,
    DeepBudget,
    OperatingPoint,
    PixelBudget,
    Placement,
    keep_point,
    operating_point,
    resolved,
    with_pixel_router,
    with_tuples,
)


def test_the_reference_placement_and_its_half() -> None:
    assert Placement.for_depth(24) == Placement((12, 15, 18, 21, 24), 8, 12, 21, (12, 21), (12, 15, 18, 21))
    assert Placement.for_depth(12) == Placement((6, 8, 9, 11, 12), 4, 6, 11, (6, 11), (6, 8, 9, 11))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"head_layers": (8, 6, 9)}, "ascending"),
        ({"head_layers": ()}, "ascending"),
        ({"shallow": 6}, "routers must be in order"),
        ({"deep": 12}, "routers must be in order"),
        ({"shallow": 7, "deep": 8}, "routers must be in order"),
        ({"exit": 10}, "the exit must follow a head layer"),
        ({"base_layers": (6, 12)}, "score layers"),
        ({"mid_layers": ()}, "score layers"),
    ],
)
def test_a_placement_that_cannot_work_is_refused(change: dict[str, object], sentence: str) -> None:
    with pytest.raises(KeepADError, match=sentence):
        replace(Placement.for_depth(12), **change)  # type: ignore[arg-type]


def test_a_backbone_needs_five_blocks() -> None:
    with pytest.raises(KeepADError, match="five are needed"):
        Placement.for_depth(4)


@pytest.mark.parametrize("blocks", [(), ((1, 20),), ((2, 20), (4, 20)), ((4, 20), (3, 20)), ((2, 20), (2, 20))])
def test_sides_of_pixel_blocks_fall_and_divide(blocks: tuple[tuple[int, float], ...]) -> None:
    with pytest.raises(KeepADError, match="sides of pixel blocks"):
        PixelBudget(blocks)


def test_tolerances_of_pixel_blocks_are_not_negative() -> None:
    for wrong in ({"blocks": ((2, -1.0),)}, {"noise": -0.5}):
        with pytest.raises(KeepADError, match="negative"):
            PixelBudget(**wrong)


def test_names_of_operating_points() -> None:
    assert list(POINTS) == ["dense", "prune30", "prune50", "prune70", "paper30", "paper50", "paper70"]
    assert all(name == point.name for name, point in POINTS.items())
    own = OperatingPoint("mine")
    assert operating_point(own) is own
    with pytest.raises(KeepADError, match="prune99"):
        operating_point("prune99")


def test_the_published_points_have_the_published_budgets() -> None:
    point = POINTS["paper70"]
    assert point.shallow is not None
    assert point.deep is not None
    assert (point.shallow.rho, point.shallow.block, point.shallow.diversity, point.shallow.strict) == (0.3, 2, 16, True)
    deep = asdict(point.deep)
    assert deep.pop("block") == 2
    assert list(deep.values()) == [0.25, 0.50, 0.55, 0.04, 0.65, 0.03, "both", False]
    assert (point.pixels, point.recovery, point.early_exit) == (None, "same_block_first", True)


def test_the_pixel_router_can_be_switched() -> None:
    assert with_pixel_router("prune70", None) == POINTS["prune70"]
    assert with_pixel_router("prune70", "off").pixels is None
    assert with_pixel_router("dense", "on").pixels == PIXELS
    with pytest.raises(KeepADError, match="on or off"):
        with_pixel_router("dense", "maybe")


def test_adopted_points_take_the_absolute_evidence_of_a_checkpoint_that_has_constants_for_it() -> None:
    rows = ((0.3, 0.2, 0.02), (0.5, 0.4, 0.04))
    with_rows = resolved(POINTS["prune70"], Calibration(evidence=rows)).deep
    assert with_rows == DeepBudget(0.4, 0.9, centre=0.2, temperature=0.02, kappa=1.0, evidence="absolute")
    between = resolved(operating_point("keep40"), Calibration(evidence=rows)).deep
    assert between is not None
    assert (between.centre, between.temperature) == pytest.approx((0.3, 0.03))
    without = resolved(POINTS["prune70"], Calibration(kappa=0.5)).deep
    assert without == DeepBudget(kappa=0.5)
    published = resolved(POINTS["paper70"], Calibration(evidence=rows)).deep
    assert published == DeepBudget()


def test_presets_survive_json() -> None:
    for preset in (Placement.for_depth(12), Calibration(grades=(0.25, 1.0))):
        assert type(preset)(**with_tuples(json.loads(json.dumps(asdict(preset))))) == preset


def test_points_between_the_named_ones() -> None:
    for name, keep in (("prune30", 0.7), ("prune50", 0.5), ("prune70", 0.3)):
        assert replace(keep_point(keep), name=name) == POINTS[name]
    assert operating_point("keep25") == keep_point(0.25)
    assert operating_point("keep12.5").name == "keep12.5"
    assert keep_point(0.29).name == "keep29"
    shares = [point.shallow.rho for point in map(operating_point, ("keep20", "keep37.5", "keep90")) if point.shallow]
    assert shares == [0.2, 0.375, 0.9]
    for wrong in (0.0, 0.05, 0.99, 1.0, -0.3, float("nan")):
        with pytest.raises(KeepADError, match="cannot be kept"):
            keep_point(wrong)
    for unknown in ("keep", "keep2.345", "keep-25", "keep025", "keep99", "keep25 "):
        with pytest.raises(KeepADError):
            operating_point(unknown)
