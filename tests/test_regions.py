"""Regions: masks drawn by hand, and what holds for every mask."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import ndimage

from keepad import regions as module
from keepad.arrays import Array
from keepad.errors import KeepADError
from keepad.regions import (
    MAX_LISTED,
    MAX_POINTS,
    Region,
    at_least,
    describe,
    detection_arrays,
    find_regions,
    signed_area,
    trace,
)


def drawn(picture: str) -> Array:
    """A map of a picture: '.' is 0, '#' is 1, a digit is a tenth."""
    values = {".": 0.0, "#": 1.0, **{str(number): number / 10 for number in range(10)}}
    return np.array([[values[mark] for mark in row] for row in picture.split()], np.float32)


def regions_of(picture: str) -> tuple[Region, ...]:
    return find_regions(drawn(picture), 0.5)


def only(picture: str) -> Region:
    (region,) = regions_of(picture)
    return region


def points(ring: Array) -> list[tuple[int, int]]:
    return [(int(x), int(y)) for x, y in ring]


def filled(polygons: tuple[Array, ...], shape: tuple[int, ...]) -> Array:
    """How many polygons cover each pixel, by counting crossings to the left of its centre."""
    total = np.zeros(shape, int)
    for polygon in polygons:
        crossings = np.zeros(shape, int)
        for (x, y), (next_x, next_y) in zip(polygon, np.roll(polygon, -1, axis=0), strict=True):
            if x == next_x:
                crossings[min(y, next_y) : max(y, next_y), x:] += 1
        total += crossings % 2
    return total


class TestDrawn:
    def test_nothing(self) -> None:
        assert regions_of("... ...") == ()

    def test_one_pixel(self) -> None:
        region = only("... ..# ...")
        assert region.box == (2, 1, 3, 2)
        assert (region.area, region.peak, region.mean) == (1, 1.0, 1.0)
        assert points(region.polygon) == [(2, 1), (3, 1), (3, 2), (2, 2)]
        assert region.holes == ()

    def test_the_whole_image(self) -> None:
        region = only("### ###")
        assert region.box == (0, 0, 3, 2)
        assert region.area == 6
        assert points(region.polygon) == [(0, 0), (3, 0), (3, 2), (0, 2)]

    def test_one_pixel_is_the_whole_image(self) -> None:
        assert only("#").box == (0, 0, 1, 1)

    def test_a_step_at_the_border(self) -> None:
        region = only("""
            ..#
            .##
            ...
        """)
        assert region.box == (1, 0, 3, 2)
        assert points(region.polygon) == [(2, 0), (3, 0), (3, 2), (1, 2), (1, 1), (2, 1)]
        assert [points(part) for part in region.parts] == [points(region.polygon)]

    def test_a_corner_joins(self) -> None:
        region = only("""
            #..
            .#.
            ...
        """)
        assert region.area == 2
        assert points(region.polygon) == [(0, 0), (1, 0), (1, 1), (2, 1), (2, 2), (1, 2), (1, 1), (0, 1)]
        assert [points(part) for part in region.parts] == [
            [(0, 0), (1, 0), (1, 1), (0, 1)],
            [(1, 1), (2, 1), (2, 2), (1, 2)],
        ]

    def test_the_other_corner_joins(self) -> None:
        assert points(only(".# #.").polygon) == [(1, 0), (2, 0), (2, 1), (1, 1), (1, 2), (0, 2), (0, 1), (1, 1)]

    def test_a_gap_separates(self) -> None:
        assert [region.box for region in regions_of("#.# #.#")] == [(0, 0, 1, 2), (2, 0, 3, 2)]

    def test_a_hole(self) -> None:
        region = only("""
            ......
            .####.
            .#..#.
            .####.
        """)
        assert region.area == 10
        assert points(region.polygon) == [(1, 1), (5, 1), (5, 4), (1, 4)]
        assert [set(points(hole)) for hole in region.holes] == [{(2, 2), (4, 2), (4, 3), (2, 3)}]
        assert signed_area(region.holes[0]) == -2
        assert len(region.parts) == 2, "cut along the top of the hole"

    def test_holes_that_touch_by_a_corner_are_two(self) -> None:
        region = only("""
            ####
            #.##
            ##.#
            ####
        """)
        assert [abs(signed_area(hole)) for hole in region.holes] == [1, 1]

    def test_a_diamond_encloses_its_middle(self) -> None:
        region = only("""
            .#.
            #.#
            .#.
        """)
        assert region.area == 4
        assert signed_area(region.polygon) == 5
        assert [points(hole) and signed_area(hole) for hole in region.holes] == [-1]
        assert len(region.parts) == 4

    def test_a_region_within_the_hole_of_another(self) -> None:
        outer, inner = regions_of("""
            #####
            #...#
            #.6.#
            #...#
            #####
        """)
        assert (outer.area, inner.area) == (16, 1)
        assert not outer.mask[2, 2]

    def test_peak_and_mean_are_of_the_map(self) -> None:
        region = only("5.9 777")
        assert region.peak == pytest.approx(0.9)
        assert region.mean == pytest.approx((0.5 + 0.9 + 3 * 0.7) / 5)

    def test_highest_peak_first_then_largest_then_topmost(self) -> None:
        found = regions_of("""
            6.9.7
            .....
            77.7.
        """)
        assert [region.box for region in found] == [
            (2, 0, 3, 1),
            (0, 2, 2, 3),
            (4, 0, 5, 1),
            (3, 2, 4, 3),
            (0, 0, 1, 1),
        ]


masks = st.tuples(st.integers(1, 9), st.integers(1, 9)).flatmap(lambda shape: arrays(bool, shape))


class TestEveryMask:
    @settings(deadline=None, max_examples=300)
    @given(masks)
    def test_regions_are_the_mask(self, mask: Array) -> None:
        found = find_regions(mask.astype(np.float32), 0.5)
        arrays_of = detection_arrays(found, (mask.shape[0], mask.shape[1]))
        assert np.array_equal(arrays_of["mask"].sum(axis=0), mask), "their union is the mask, and they do not overlap"
        assert sum(region.area for region in found) == mask.sum()
        assert len(found) == ndimage.label(mask, np.ones((3, 3)))[1]

    @settings(deadline=None, max_examples=300)
    @given(masks)
    def test_polygons_have_the_area_of_the_pixels(self, mask: Array) -> None:
        for region in find_regions(mask.astype(np.float32), 0.5):
            assert signed_area(region.polygon) + sum(map(signed_area, region.holes)) == region.area
            assert all(signed_area(hole) < 0 for hole in region.holes)
            inside = filled((region.polygon,), mask.shape) - filled(region.holes, mask.shape)
            x0, y0, x1, y1 = region.box
            assert np.array_equal(inside[y0:y1, x0:x1], region.mask)
            assert inside.sum() == region.area
            assert (region.polygon.min(axis=0) == (x0, y0)).all()
            assert (region.polygon.max(axis=0) == (x1, y1)).all()

    @settings(deadline=None, max_examples=300)
    @given(masks)
    def test_parts_are_simple_and_cover_the_region_once(self, mask: Array) -> None:
        for region in find_regions(mask.astype(np.float32), 0.5):
            x0, y0, x1, y1 = region.box
            assert np.array_equal(filled(region.parts, mask.shape)[y0:y1, x0:x1], region.mask)
            assert sum(map(signed_area, region.parts)) == region.area
            for part in region.parts:
                assert signed_area(part) > 0, "an outer contour"
                assert len(set(points(part))) == len(part), "that passes no corner twice"

    @settings(deadline=None)
    @given(masks)
    def test_no_point_lies_on_the_line_between_its_neighbours(self, mask: Array) -> None:
        for ring in trace(mask):
            steps = np.diff(ring, axis=0, append=ring[:1])
            assert ((steps == 0).sum(axis=1) == 1).all(), "along the grid"
            assert ((steps[:, 0] == 0) != (np.roll(steps[:, 0], 1) == 0)).all(), "and turning at every point"


def test_an_empty_mask_has_no_contour() -> None:
    assert trace(np.zeros((2, 3), bool)) == []


class TestMinArea:
    def test_smaller_regions_are_left_out(self) -> None:
        assert [region.area for region in at_least(regions_of("#.##.###"), 2)] == [3, 2]

    @pytest.mark.parametrize("min_area", [0, -3, 1.5, True, "4", None])
    def test_what_is_no_number_of_pixels(self, min_area: int) -> None:
        with pytest.raises(KeepADError, match=r"^min_area must be a whole number of pixels, 1 or more, not .*\.$"):
            at_least((), min_area)


class TestDescribe:
    def test_json_with_everything_but_the_mask(self) -> None:
        described = json.loads(json.dumps(describe(regions_of("..#"))))
        assert described == {
            "regions_total": 1,
            "regions": [
                {
                    "box": [2, 0, 3, 1],
                    "area": 1,
                    "peak": 1.0,
                    "mean": 1.0,
                    "polygon": [[2, 0], [3, 0], [3, 1], [2, 1]],
                    "holes": [],
                }
            ],
        }

    def test_many_regions_are_cut_off_and_counted(self) -> None:
        described = describe(regions_of("#." * (MAX_LISTED + 7)))
        assert described["regions_total"] == MAX_LISTED + 7
        assert len(described["regions"]) == MAX_LISTED

    def test_long_polygons_are_left_out_and_the_rest_of_the_region_is_not(self) -> None:
        spots = (np.indices((201, 201)) % 2 == 0).any(axis=0).astype(np.float32)  # 10,000 holes of four points each
        described = describe(find_regions(spots, 0.5))
        (region,) = described["regions"]
        assert region["area"] == int((spots >= 0.5).sum())
        assert region["polygon"] is region["holes"] is None
        assert len(json.dumps(described)) < MAX_POINTS


def test_arrays_for_supervision() -> None:
    found = detection_arrays(regions_of("6... ..#."), (2, 4))
    assert found["xyxy"].tolist() == [[2, 1, 3, 2], [0, 0, 1, 1]]
    np.testing.assert_allclose(found["confidence"], [1, 0.6])
    assert found["mask"].dtype == bool
    assert found["mask"].sum(axis=(1, 2)).tolist() == [1, 1]
    assert found["class_id"].tolist() == [0, 0]
    assert detection_arrays((), (2, 4))["xyxy"].shape == (0, 4)


def test_a_large_map_is_traced_within_the_box_of_each_region(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = []
    original = module._runs

    def counted(mask: Array) -> tuple[Array, Array, Array, int]:
        shapes.append(mask.shape)
        return original(mask)

    monkeypatch.setattr(module, "_runs", counted)
    large = np.zeros((2000, 1500), np.float32)
    large[1990:, 1400:1430] = 1
    large[3, 4] = 0.8
    for region in find_regions(large, 0.5):
        assert signed_area(region.polygon) == region.area
    assert shapes == [(10, 30), (1, 1)]
