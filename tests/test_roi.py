"""Region of interest: read from masks and polygons, never computed outside, and blind to what lies there."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from keepad.arrays import Array
from keepad.benchmark.flops import count_flops
from keepad.detector import Detector
from keepad.engines import open_network
from keepad.errors import KeepADError
from keepad.framing import Framing
from keepad.network import Network
from keepad.presets import POINTS
from keepad.roi import Roi, Shape, drawn, read_roi, read_shape
from keepad.tiles import Tiling


def noise(height: int, width: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def roi_of(inside: Array) -> Roi:
    return Roi(Shape(Path("mask.png"), marked=inside))


def ellipse(height: int, width: int, size: float = 0.7) -> Array:
    y, x = np.mgrid[:height, :width]
    return ((y / height - 0.45) ** 2 + (x / width - 0.5) ** 2) < (size / 2) ** 2


def test_polygons_mark_pixels_whose_centre_they_hold() -> None:
    square, triangle = np.array([[1, 1], [4, 1], [4, 3], [1, 3]]), np.array([[5.0, 0], [9, 0], [5, 4]])
    picture = drawn((square, triangle), (4, 9))
    assert ["".join(".#"[cell] for cell in row) for row in picture.astype(int)] == [
        ".....###.",
        ".######..".replace("######", "###.##"),
        ".###.#...",
        ".........",
    ]


def test_a_polygon_around_a_region_gives_the_region_back() -> None:
    from keepad.regions import find_regions

    mask = ellipse(40, 60)
    (region,) = find_regions(mask.astype(np.float32), 0.5)
    assert np.array_equal(drawn((region.polygon,), (40, 60)), mask)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("[[0, 0], [4, 0]]", "without three corners"),
        ("[]", "holds no polygons"),
        ("{}", "holds no polygons"),
        ("[[[0, 0], [4, 0], [null, 2]]]", "without three corners|holds no polygons"),
        ('"corner"', "holds no polygons"),
        ("[[0, 0], [4, 0]", "is not JSON"),
        ("[[1, 2, 3], [1, 2, 3], [4, 5, 6]]", "without three corners"),
    ],
)
def test_bad_polygons_get_one_sentence(tmp_path: Path, content: str, sentence: str) -> None:
    file = tmp_path / "polygon.json"
    file.write_text(content)
    with pytest.raises(KeepADError, match=sentence) as error:
        read_shape(file)
    assert str(file) in str(error.value)


def test_bad_masks_get_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "text.png").write_text("no image")
    Image.new("L", (8, 8)).save(tmp_path / "black.png")
    Image.new("L", (8, 8), 255).save(tmp_path / "small.png")
    for name, sentence in (("none.png", "there is no file"), ("text.png", "no mask that can"), ("black.png", "black")):
        with pytest.raises(KeepADError, match=sentence):
            read_roi(tmp_path / name)
    roi = read_roi(tmp_path / "small.png")
    assert roi is not None
    with pytest.raises(KeepADError, match=r"has 8 x 8 pixels but the image has 20 x 10"):
        roi.at((10, 20))
    everything = read_roi(None, tmp_path / "small.png")
    assert everything is not None
    with pytest.raises(KeepADError, match="holds no pixel of the image"):
        everything.at((8, 8))
    assert read_roi(None) is None


def test_roi_less_what_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "roi.json").write_text(json.dumps([[0, 0], [6, 0], [6, 4], [0, 4]]))
    (tmp_path / "ignore.json").write_text(json.dumps({"polygons": [[[2, 0], [4, 0], [4, 4], [2, 4]]]}))
    roi = read_roi(tmp_path / "roi.json", tmp_path / "ignore.json")
    assert roi is not None
    assert roi.at((4, 8)).sum(0).tolist() == [4, 4, 0, 0, 4, 4, 0, 0]


@pytest.mark.parametrize("point", ["dense", "prune50", "paper70"])
@pytest.mark.parametrize("framing", [Framing(), Framing("pad"), Framing("native"), Framing(tiles=Tiling(200))])
def test_pixels_outside_may_hold_anything(tiny: Network, point: str, framing: Framing) -> None:
    inside = ellipse(301, 407)
    detector = Detector(tiny, point, framing=replace(framing, roi=roi_of(inside)))
    image = noise(301, 407)
    other = np.where(inside[..., None], image, noise(301, 407, seed=5))
    a, b = detector(image), detector(other)
    assert a.pred_score == b.pred_score
    np.testing.assert_array_equal(a.anomaly_map, b.anomaly_map)
    assert a.survivors.tolist() == b.survivors.tolist()
    assert a.pred_score != detector(noise(301, 407, seed=7)).pred_score


def test_tokens_outside_cost_nothing_and_are_not_reported(tiny: Network) -> None:
    inside = np.zeros((144, 176), dtype=bool)
    inside[:70, :90] = True  # cells of 5 rows and 6 columns
    detector = Detector(tiny, "dense", framing=Framing(roi=roi_of(inside)))
    detector.set_threshold(0.01)
    image = noise(144, 176)
    prediction = detector(image)
    assert prediction.survivors.tolist() == [row * 11 + column for row in range(5) for column in range(6)]
    assert prediction.keep_pixels == prediction.keep_final == 1
    assert not prediction.map_at()[~inside].any()
    assert prediction.map_at()[inside].all()
    assert [region.box for region in prediction.regions()] == [(0, 0, 90, 70)]
    whole = Detector(tiny, "dense")
    some, every = (
        count_flops(tiny, own.infer_images([own.prepare(image)], [POINTS["dense"]])["dense"][0], POINTS["dense"]).total
        for own in (detector, whole)
    )
    assert some < 0.35 * every


def test_budgets_are_shares_of_what_is_looked_at(tiny: Network) -> None:
    inside = np.zeros((144, 176), dtype=bool)
    inside[:, :80] = True  # 45 of 99 cells
    detector = Detector(tiny, "prune50", framing=Framing(roi=roi_of(inside)))
    prediction = detector(noise(144, 176))
    assert len(prediction.survivors_shallow) == round(0.5 * 45)
    assert (prediction.survivors_shallow % 11 < 5).all()


@pytest.mark.parametrize("engine", ["openvino", "onnx"])
def test_an_engine_looks_where_torch_looks(tiny: Network, folders: dict[str, Path], engine: str) -> None:
    inside = np.ones((144, 176), dtype=bool)
    inside[:16, :80] = False  # 5 of 99 cells
    image, framing = noise(144, 176), Framing(roi=roi_of(inside))
    torch, exported = (
        Detector(own, "prune50", framing=framing)(image) for own in (tiny, open_network(folders[engine]))
    )
    assert torch.survivors_shallow.tolist() == exported.survivors_shallow.tolist()
    assert torch.survivors.tolist() == exported.survivors.tolist()
    np.testing.assert_allclose(torch.anomaly_map, exported.anomaly_map, atol=1e-3)
    few = Detector(open_network(folders[engine]), framing=Framing(roi=roi_of(ellipse(144, 176, 0.3))))
    with pytest.raises(KeepADError, match="of 99 patches of the image count, and an exported network needs 90"):
        few(image)
    with pytest.raises(KeepADError, match="was exported for inputs of 144x176, not 64x64"):
        open_network(folders[engine]).infer(noise(64, 64)[None], [POINTS["dense"]])
