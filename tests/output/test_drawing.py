"""Overlays: colours on a fixed scale, survivors at their positions, the aspect ratio of the original image."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from scipy import ndimage

from keepad.arrays import Array
from keepad.errors import KeepADError
from keepad.output.drawing import colour_map, draw_panels, make_panels
from predictions import GREY, make_prediction


def overlay(*args: Any, scale: float = 1.0, **more: Any) -> Array:
    return np.asarray(make_panels(make_prediction(*args, **more), scale=scale).overlay).astype(int)


class TestMap:
    def test_a_low_map_leaves_the_image_alone_and_a_high_one_glows(self) -> None:
        assert (overlay(0.2) == GREY).all()
        assert np.abs(overlay(0.9) - GREY).max() > 60

    def test_the_scale_never_follows_the_image(self) -> None:
        # 0.9 in one corner: the rest of that map must look as it does without the corner.
        quiet = np.full((56, 56), 0.5, np.float32)
        loud = quiet.copy()
        loud[:14, :14] = 0.9
        assert np.array_equal(overlay(quiet)[-100:, -100:], overlay(loud)[-100:, -100:])
        assert not np.array_equal(overlay(quiet)[:50, :50], overlay(loud)[:50, :50])

    def test_a_smaller_scale_shows_smaller_values(self) -> None:
        assert (overlay(0.2, scale=1.0) == GREY).all()
        assert np.array_equal(overlay(0.2, scale=0.25), overlay(0.8, scale=1.0))

    def test_values_above_the_scale_take_its_last_colour(self) -> None:
        assert np.array_equal(colour_map(np.array([1.0, 3.0]), scale=1.0)[0], colour_map(np.array([3.0]))[0])

    def test_colours_grow_lighter_and_more_opaque_with_the_value(self) -> None:
        colours = colour_map(np.linspace(0, 1, 100))
        luminance = colours[:, :3] @ [0.2126, 0.7152, 0.0722]
        assert (np.diff(luminance) >= -1e-3).all()
        assert (np.diff(colours[:, 3]) >= 0).all()
        assert luminance[-1] - luminance[0] > 150

    def test_the_mask_is_outlined_once_its_threshold_is_known(self) -> None:
        anomaly = np.zeros((56, 56), np.float32)
        anomaly[14:42, 14:42] = 0.24  # below the visible part of the scale: only the outline can show
        assert (overlay(anomaly) == GREY).all()
        outlined = overlay(anomaly, pixel_threshold=0.2)
        assert (outlined == 255).all(axis=-1).any()
        assert (outlined[200:300, 200:300] == GREY).all(), "the inside of the mask stays free"
        assert (outlined[:100] == GREY).all()

    def test_one_pixel_of_a_large_image_is_outlined(self) -> None:
        anomaly = np.zeros((2000, 3000), np.float32)
        anomaly[1500, 1000] = 0.6  # shrinking the map to the panel would average it away
        outlined = overlay(anomaly_map=anomaly, image_size=(2000, 3000), pixel_threshold=0.5)
        rows, columns = np.nonzero((outlined == 255).all(axis=-1))
        assert abs(rows.mean() / outlined.shape[0] - 0.75) < 0.01
        assert abs(columns.mean() / outlined.shape[1] - 1 / 3) < 0.01

    def test_each_region_has_its_outline(self) -> None:
        anomaly = np.zeros((56, 56), np.float32)
        anomaly[5:10, 5:10] = anomaly[40:50, 30:50] = 0.24
        outlined = (overlay(anomaly, pixel_threshold=0.2) == 255).all(axis=-1)
        assert ndimage.label(outlined, np.ones((3, 3)))[1] == 2

    @pytest.mark.parametrize("scale", [0.0, -1.0, float("nan")])
    def test_a_scale_without_length(self, scale: float) -> None:
        with pytest.raises(KeepADError, match=r"^The colour scale must end above 0, not at .*\.$"):
            draw_panels(make_prediction(0.5), scale=scale)


class TestSurvivors:
    def levels(self, **more: Any) -> Array:
        """Mean grey level of every cell of the 4 x 4 grid, without its border."""
        panel = np.asarray(make_panels(make_prediction(**more), long_side=400).survivors).astype(int)
        return np.array(
            [
                [panel[100 * r + 20 : 100 * r + 80, 100 * c + 20 : 100 * c + 80].mean() for c in range(4)]
                for r in range(4)
            ]
        )

    def test_dropped_patches_are_dark_late_ones_dimmed_and_survivors_untouched(self) -> None:
        drawn = self.levels(shallow=[0, 5, 6, 10], final=[5, 10])
        expected = """
            late  early early early
            early kept  late  early
            early early kept  early
            early early early early
        """
        for level, word in zip(drawn.ravel(), expected.split(), strict=True):
            if word == "kept":
                assert level == GREY
            elif word == "late":
                assert 60 < level < GREY - 4
            else:
                assert level < 45

    def test_late_dropped_patches_are_tinted_blue(self) -> None:
        panel = np.asarray(make_panels(make_prediction(shallow=[0, 1], final=[1]), long_side=400).survivors)
        red, _, blue = panel[50, 50].astype(int)
        assert blue > red + 20

    def test_survivors_are_outlined_against_the_rest(self) -> None:
        panel = np.asarray(make_panels(make_prediction(shallow=[5, 6], final=[5, 6]), long_side=400).survivors).astype(
            int
        )
        assert panel[100, 150].min() > GREY + 50, "top edge of the two kept patches"
        assert (panel[150, 200] == GREY).all(), "no line between two survivors"

    def test_where_all_survive_the_picture_is_the_image(self) -> None:
        panels = make_panels(make_prediction())
        assert panels.survivors.tobytes() == panels.image.tobytes()

    def test_an_empty_set_of_survivors(self) -> None:
        assert (self.levels(shallow=[], final=[]) < 45).all()


class TestShapes:
    @pytest.mark.parametrize(
        ("image_size", "panel_size"),
        [
            ((518, 518), (518, 518)),
            ((500, 1000), (259, 518)),
            ((900, 300), (518, 173)),
            ((300, 900), (173, 518)),
            ((1, 1), (518, 518)),
            ((20, 20_000), (48, 518)),
            ((20_000, 20), (518, 48)),
        ],
    )
    def test_panels_have_the_aspect_ratio_of_the_original_image(
        self, image_size: tuple[int, int], panel_size: tuple[int, int]
    ) -> None:
        panels = make_panels(make_prediction(image_size=image_size))
        assert {np.asarray(panel).shape for panel in panels} == {(*panel_size, 3)}

    def test_three_panels_side_by_side(self) -> None:
        drawn = draw_panels(make_prediction(image_size=(500, 1000)))
        assert drawn.mode == "RGB"
        assert drawn.width > 3 * 518
        assert 259 < drawn.height < 400

    def test_rectangular_grids(self) -> None:
        panel = np.asarray(
            make_panels(make_prediction(grid=(2, 6), final=[5], image_size=(200, 600))).survivors
        ).astype(int)
        height, width = panel.shape[:2]
        assert (panel[height // 4, -width // 12] == GREY).all(), "row 0, column 5 survived"
        assert (panel[3 * height // 4, -width // 12] != GREY).any()

    @pytest.mark.parametrize("image_size", [(1, 1), (10, 3000), (3000, 10)])
    def test_everything_draws(self, image_size: tuple[int, int]) -> None:
        record = make_prediction(
            0.7, image_size=image_size, image_threshold=0.4, pixel_threshold=0.5, path=Path("x" * 300)
        )
        assert draw_panels(record).size > (0, 0)


class TestCaption:
    """What the numbers change in the picture, since a picture's words cannot be read back."""

    def caption(self, **more: Any) -> Array:
        return np.asarray(draw_panels(make_prediction(**more)))[-36:]

    def test_label_is_red_or_green_or_absent(self) -> None:
        def coloured(rows: Array) -> tuple[bool, bool]:
            red, green = rows[..., 0].astype(int), rows[..., 1].astype(int)
            return bool((red > green + 100).any()), bool((green > red + 60).any())

        assert coloured(self.caption()) == (False, False)
        assert coloured(self.caption(image_threshold=0.4)) == (True, False)
        assert coloured(self.caption(image_threshold=0.9)) == (False, True)

    @pytest.mark.parametrize("change", [{"pred_score": 0.9}, {"evidence": None}, {"point": "dense"}, {"final": [1]}])
    def test_score_evidence_point_and_keep_are_written(self, change: dict[str, Any]) -> None:
        assert not np.array_equal(self.caption(), self.caption(**change))


def test_plot_and_save_use_it(tmp_path: Path) -> None:
    record = make_prediction(0.8)
    record.save(tmp_path / "panels.png")
    assert Image.open(tmp_path / "panels.png").tobytes() == draw_panels(record).tobytes()
    record.save(tmp_path / "panels.jpg")
    with Image.open(tmp_path / "panels.jpg") as picture:
        assert picture.format == "JPEG"
        difference = np.abs(np.asarray(picture).astype(int) - np.asarray(draw_panels(record)))
    assert difference.mean() < 3
