"""Framing: every shape of image as whole patches, results in the user's pixels, padding never reported."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepad.arrays import Array
from keepad.detector import Detector
from keepad.errors import ImageError, KeepADError
from keepad.framing import MOST_PATCHES, Framing, Shape, fitted, framing_of, size_of
from keepad.network import Network
from keepad.presets import OperatingPoint, ReducerBudget
from keepad.tiles import Tiling

SQUARE = Shape((392, 392), (14, 14))


def noise(height: int, width: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


@pytest.mark.parametrize(
    ("size", "fit", "whole", "content"),
    [
        ((500, 1260), "squash", (392, 392), (392, 392)),
        ((500, 1260), "pad", (392, 392), (154, 392)),
        ((500, 1260), "native", (504, 1260), (504, 1260)),
        ((500, 1260), "auto", (252, 616), (252, 616)),
        ((500, 520), "auto", (392, 392), (392, 392)),
        ((1260, 10), "pad", (392, 392), (392, 14)),
        ((10, 20), "native", (56, 56), (56, 56)),
    ],
)
def test_every_fit_gives_whole_patches(
    size: tuple[int, int], fit: str, whole: tuple[int, int], content: tuple[int, int]
) -> None:
    assert fitted(size, fit, SQUARE)[:2] == (whole, content)


def test_an_input_of_one_shape_is_padded_where_the_aspect_ratio_differs() -> None:
    fixed = replace(SQUARE, fixed=True)
    whole, content, said = fitted((500, 1260), "auto", fixed)
    assert (whole, content) == ((392, 392), (154, 392))
    assert said == "auto: pad to 154x392 and padding"
    with pytest.raises(KeepADError, match="392x392 only, so --fit native cannot be used"):
        fitted((500, 1260), "native", fixed)


@given(height=st.integers(1, 3000), width=st.integers(1, 3000), fit=st.sampled_from(["squash", "pad", "auto"]))
def test_an_image_of_any_size_lies_within_its_input(height: int, width: int, fit: str) -> None:
    whole, content, _ = fitted((height, width), fit, SQUARE)
    for own, outer in zip(content, whole, strict=True):
        assert own % 14 == outer % 14 == 0
        assert 14 <= own <= outer
    assert (whole[0] // 14) * (whole[1] // 14) <= 1.5 * 28 * 28


def test_too_many_patches_are_refused_before_anything_runs() -> None:
    with pytest.raises(KeepADError, match=f"more than the {MOST_PATCHES} that are run at once; cut it with --tiles"):
        fitted((4000, 4000), "native", SQUARE)


@pytest.mark.parametrize("text", ["wide", "12x", "1x2x3", "0", "-3"])
def test_a_wrong_size_is_refused(text: str) -> None:
    with pytest.raises(KeepADError, match="an image size is HxW in pixels"):
        size_of(text)
    assert (size_of("266x1036"), size_of("518"), size_of(518)) == ((266, 1036), (518, 518), (518, 518))


def test_wrong_framings_are_refused() -> None:
    for wrong, sentence in (
        ({"fit": "crop"}, "fitted by squash, pad, native, auto"),
        ({"views": 3}, "1, 2 or 4 views"),
        ({"fit": "pad", "tiles": "auto"}, "leave --fit pad out"),
        ({"overlap": 3}, "add --tiles auto"),
        ({"tiles": "many"}, "auto or have a side in pixels"),
        ({"tiles": 0}, "auto or have a side in pixels"),
        ({"tiles": "auto", "overlap": -1}, "cannot overlap by -1"),
    ):
        with pytest.raises(KeepADError, match=sentence):
            framing_of(**wrong)


@pytest.mark.parametrize("point", ["dense", "prune50", "prune70", "paper70"])
@pytest.mark.parametrize("fit", ["pad", "native", "auto"])
def test_a_result_lies_on_the_image_and_padding_is_not_reported(tiny: Network, fit: str, point: str) -> None:
    detector = Detector(tiny, point, framing=Framing(fit))
    image = noise(90, 300)
    prediction = detector(image)
    rows, columns = prediction.grid
    assert prediction.image.shape == (rows * 16, columns * 16, 3)
    assert prediction.anomaly_map.shape == (rows * 16, columns * 16)
    assert prediction.map_at().shape == (90, 300)
    assert prediction.inside is None
    assert prediction.survivors.max() < rows * columns
    assert 0 < prediction.keep_final <= prediction.keep_shallow <= prediction.keep_pixels <= 1
    if point == "dense":
        assert prediction.keep_final == 1
    assert prediction.fit is not None
    assert prediction.fit.startswith(fit)
    assert prediction.plot().width > 0


def test_padding_costs_no_tokens_and_its_content_no_difference(tiny: Network) -> None:
    detector = Detector(tiny, "prune50", framing=Framing("pad"))
    framed = detector.prepare(noise(60, 300))
    other = framed.pixels.copy()
    other[framed.content[0] :] = noise(144 - framed.content[0], 176, seed=9)
    (a,), (b,) = (
        detector.infer_images([replace(framed, pixels=pixels)], [detector.point])["prune50"]
        for pixels in (framed.pixels, other)
    )
    np.testing.assert_array_equal(a.anomaly_map, b.anomaly_map)
    assert a.score == b.score
    assert len(a.survivors_shallow) == round(0.5 * a.patch_map.size)


def test_images_of_many_shapes_share_a_call(tiny: Network) -> None:
    detector = Detector(tiny, "prune50", framing=Framing("native"))
    images = [noise(*size, seed=n) for n, size in enumerate([(100, 200), (200, 100), (100, 200), (144, 176)])]
    together = list(detector.predict(images, batch_size=4))
    alone = [detector(image) for image in images]
    for a, b in zip(together, alone, strict=True):
        assert a.survivors.tolist() == b.survivors.tolist()
        np.testing.assert_allclose(a.anomaly_map, b.anomaly_map, atol=1e-5)


@given(rows=st.integers(2, 9), columns=st.integers(2, 9))
@settings(max_examples=8, deadline=None)
def test_a_network_takes_any_grid(make_tiny: object, rows: int, columns: int) -> None:
    tiny = make_tiny()  # type: ignore[operator]
    detector = Detector(tiny, "prune70", framing=Framing("native"))
    image = noise(rows * 16, columns * 16)
    prediction = detector(image)
    assert prediction.grid == (max(rows, 4), max(columns, 4))
    assert np.isfinite(prediction.anomaly_map).all()


def test_a_prepared_image_gives_what_its_source_gives_and_keeps_its_name(tiny: Network) -> None:
    for framing in (Framing(), Framing("pad"), Framing("auto")):
        detector = Detector(tiny, "prune50", framing=framing)
        image = noise(90, 300)
        prepared = replace(detector.prepare(image), name="part.png", digest="0" * 64)
        assert detector.prepare(prepared) is prepared
        (prediction,) = detector.predict([prepared])
        np.testing.assert_array_equal(prediction.anomaly_map, detector(image).anomaly_map)


def test_an_image_prepared_for_another_detector_is_refused(tiny: Network) -> None:
    plain = Detector(tiny, "prune50")
    for framing in (Framing("native"), Framing(tiles=Tiling())):
        prepared = Detector(tiny, "prune50", framing=framing).prepare(noise(320, 640))
        with pytest.raises(ImageError, match="was prepared for another detector"):
            plain(prepared)


def test_reducers_take_any_shape_and_refuse_what_they_cannot_leave_out(tiny: Network) -> None:
    point = OperatingPoint("tome", reducer=ReducerBudget("tome", "prune70", 0.8))
    prediction = Detector(tiny, point, framing=Framing("native"))(noise(96, 240))
    assert prediction.grid == (6, 15)
    assert prediction.anomaly_map.shape == (96, 240)
    with pytest.raises(KeepADError, match="tome takes whole images only"):
        Detector(tiny, point, framing=Framing("pad"))(noise(60, 300))
    with pytest.raises(KeepADError, match="tome takes whole images only"):
        Detector(tiny, point, framing=Framing(tiles=Tiling()))(noise(320, 640))
