"""Prediction: labels, keep rates, and map and mask in the pixels of the user's image."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from keepad.arrays import Array
from keepad.errors import KeepADError
from keepad.prediction import Certificate, Prediction
from keepad.routing.pixel import PixelRouting
from predictions import make_prediction


def prediction(anomaly: float | Array = 0.0, **more: Any) -> Prediction:
    fields = {"grid": (2, 3), "shallow": [0, 2, 5], "final": [2], "image_size": (90, 30), **more}
    return make_prediction(anomaly, **fields)


def ramp(height: int, width: int) -> Array:
    """A map that grows from left to right, linear in the share of the width."""
    return np.broadcast_to((np.arange(width, dtype=np.float32) + 0.5) / width, (height, width))


class TestMapAt:
    @pytest.mark.parametrize("image_size", [(90, 30), (30, 90), (1, 1), (28, 42)])
    def test_default_is_the_size_of_the_image(self, image_size: tuple[int, int]) -> None:
        anomaly_map = prediction(image_size=image_size).map_at()
        assert anomaly_map.shape == image_size
        assert anomaly_map.dtype == np.float32

    def test_the_network_s_size_gives_the_map_itself(self) -> None:
        values = np.random.default_rng(0).random((28, 42), np.float32)
        anomaly_map = prediction(values).map_at((28, 42))
        assert np.array_equal(anomaly_map, values)
        anomaly_map[:] = 0  # a copy: the prediction keeps its own
        assert values.any()

    def test_enlarging_is_bilinear_between_pixel_centres(self) -> None:
        record = prediction(anomaly_map=np.array([[0.0, 1.0]], np.float32))
        expected = [0, 0, 0.125, 0.375, 0.625, 0.875, 1, 1]
        np.testing.assert_allclose(record.map_at((2, 8)), [expected, expected], atol=1e-6)

    @pytest.mark.parametrize("size", [(100, 300), (14, 21), (7, 500)])
    def test_positions_keep_their_share_of_the_image(self, size: tuple[int, int]) -> None:
        resampled = prediction(ramp(28, 42)).map_at(size)
        inner = slice(size[1] // 20 + 1, -size[1] // 20 - 1)  # the outermost centres have no neighbour beyond
        np.testing.assert_allclose(resampled[:, inner], ramp(*size)[:, inner], atol=1e-3)

    def test_a_hot_corner_stays_in_its_corner(self) -> None:
        values = np.zeros((28, 42), np.float32)
        values[:7, -7:] = 1
        resampled = prediction(values, image_size=(900, 300)).map_at()
        assert resampled[0, -1] == 1
        assert resampled[0, 0] == resampled[-1, 0] == resampled[-1, -1] == 0

    def test_values_stay_within_the_unit_interval(self) -> None:
        resampled = prediction(np.ones((28, 42), np.float32)).map_at((501, 333))
        assert resampled.min() == resampled.max() == 1

    @pytest.mark.parametrize("size", [(0, 5), (5, 0), (-1, 5)])
    def test_a_size_without_pixels_is_refused(self, size: tuple[int, int]) -> None:
        with pytest.raises(KeepADError, match=r"^an anomaly map cannot have .* pixels; give .* above 0\.$"):
            prediction().map_at(size)


class TestMaskAt:
    def test_none_without_a_threshold(self) -> None:
        assert prediction().mask_at() is None
        assert prediction().pred_mask is None

    def test_thresholds_the_map_of_that_size(self) -> None:
        record = prediction(ramp(28, 42), pixel_threshold=0.5)
        mask = record.mask_at()
        assert mask is not None
        assert mask.dtype == np.bool_
        assert np.array_equal(mask, record.map_at() >= 0.5)
        assert mask[:, 15:].all()
        assert not mask[:, :15].any()

    def test_the_network_s_size_gives_pred_mask(self) -> None:
        record = prediction(ramp(28, 42), pixel_threshold=0.3)
        mask = record.pred_mask
        assert mask is not None
        np.testing.assert_array_equal(record.mask_at((28, 42)), mask, strict=True)


class TestRegions:
    def two_spots(self, **more: Any) -> Prediction:
        values = np.zeros((28, 42), np.float32)
        values[2:4, 5:8] = 0.6
        values[20, 30] = 0.9
        return prediction(values, image_size=(28, 42), **{"pixel_threshold": 0.5, **more})

    def test_the_pixels_are_those_of_the_image(self) -> None:
        values = np.zeros((28, 42), np.float32)
        values[14:, 21:] = 1
        (region,) = prediction(values, image_size=(280, 84), pixel_threshold=0.5).regions()
        assert region.box == (42, 140, 84, 280)
        assert region.area == pytest.approx(42 * 140, rel=1e-3), "interpolation rounds the corner"

    def test_they_are_the_mask(self) -> None:
        record = prediction(ramp(28, 42), image_size=(90, 31), pixel_threshold=0.3)
        mask = record.mask_at()
        assert mask is not None
        (region,) = record.regions()
        x0, y0, x1, y1 = region.box
        assert region.area == mask.sum()
        assert np.array_equal(mask[y0:y1, x0:x1], region.mask)
        assert region.peak == record.map_at().max()

    def test_highest_peak_first_and_small_ones_left_out(self) -> None:
        assert [region.area for region in self.two_spots().regions()] == [1, 6]
        assert [region.area for region in self.two_spots().regions(min_area=2)] == [6]

    def test_none_below_the_threshold(self) -> None:
        assert prediction(pixel_threshold=0.5).regions() == ()

    def test_without_a_threshold(self) -> None:
        with pytest.raises(KeepADError, match=r"^regions need a threshold for pixels; set one with .* beforehand\.$"):
            prediction().regions()

    def test_a_min_area_that_is_none(self) -> None:
        with pytest.raises(KeepADError, match=r"^min_area must be .*, not 0\.$"):
            self.two_spots().regions(min_area=0)

    def test_to_dict_lists_them_where_there_is_a_threshold(self) -> None:
        listed = json.loads(json.dumps(self.two_spots().to_dict()))
        assert listed["regions_total"] == 2
        assert [region["box"] for region in listed["regions"]] == [[30, 20, 31, 21], [5, 2, 8, 4]]
        assert listed["regions"][1]["polygon"] == [[5, 2], [8, 2], [8, 4], [5, 4]]
        assert "regions" not in self.two_spots(pixel_threshold=None).to_dict()

    def test_supervision_gets_arrays_by_its_names(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "supervision", SimpleNamespace(Detections=SimpleNamespace))
        detections = self.two_spots().to_supervision(min_area=2)
        assert detections.xyxy.tolist() == [[5, 2, 8, 4]]
        assert detections.mask.shape == (1, 28, 42)
        assert detections.data["class_name"].tolist() == ["anomaly"]

    def test_supervision_that_is_not_installed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "supervision", None)
        with pytest.raises(KeepADError, match=r"^to_supervision\(\) needs the package supervision; install it .*\.$"):
            self.two_spots().to_supervision()


def test_the_label_is_true_from_the_threshold_on() -> None:
    assert prediction().pred_label is None
    assert [prediction(image_threshold=t).pred_label for t in (0.4, 0.5, 0.6)] == [True, True, False]


def test_keep_rates_are_shares_of_the_grid() -> None:
    certificate = Certificate(np.array([1, 4]), np.array([0, 3]), np.array([2, 1]))
    record = prediction(certificate=certificate)
    assert (record.keep_pixels, record.keep_shallow, record.keep_final) == pytest.approx((4 / 6, 3 / 6, 1 / 6))
    assert prediction().keep_pixels == 1


def test_to_dict_is_json_with_the_scalars() -> None:
    record = prediction(path=Path("a.png"), timings={"embed": 0.25, "late": 0.5}, image_threshold=0.9)
    assert json.loads(json.dumps(record.to_dict())) == {
        "path": "a.png",
        "pred_score": 0.5,
        "pred_label": False,
        "verdict": None,
        "p_value": None,
        "threshold": 0.9,
        "brightness": pytest.approx(120 / 255),
        "sharpness": 0.0,
        "keep_pixels": 1.0,
        "keep_shallow": 0.5,
        "keep_final": pytest.approx(1 / 6),
        "evidence": 0.6,
        "seconds": 0.75,
        "point": "prune70",
    }


def test_a_certificate_lists_the_dropped_patches() -> None:
    routing = PixelRouting(np.array([0, 3]), np.array([0, 0, 3, 3]), np.array([0, 2, 1, 0]))
    certificate = Certificate.of(routing)
    assert certificate.dropped.tolist() == [1, 2]
    assert certificate.kept.tolist() == [0, 3]
    assert certificate.bound.tolist() == [2, 1]
