"""Tiles: geometry, blending without seams, one budget, and results that do not depend on how tiles are taken."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from keepad.arrays import Array
from keepad.detector import Detector
from keepad.engines import open_network
from keepad.errors import KeepADError
from keepad.framing import Framing
from keepad.network import Network
from keepad.presets import POINTS
from keepad.references.parts import framing_from
from keepad.references.profile import read_profile
from keepad.regions import find_large_regions, find_regions
from keepad.roi import Roi, Shape
from keepad.steps import Scope
from keepad.tiles import TilePlan, Tiling, blended, cut, plan_tiles, sampled

INPUT, PATCH = (144, 176), (16, 16)
NATIVE = Framing(tiles=Tiling())


def noise(height: int, width: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def sheet(height: int = 400, width: int = 700) -> Array:
    """A sheet of one colour with some texture on it, a quarter of its area."""
    pixels = np.full((height, width, 3), 130, np.uint8)
    pixels[: height // 2, : width // 2] = noise(height // 2, width // 2)
    return pixels


def plan_of(height: int, width: int, size: int | None = None) -> TilePlan:
    plan = plan_tiles((height, width), INPUT, PATCH, Tiling(size))
    assert plan is not None
    return plan


@given(
    height=st.integers(1, 2000),
    width=st.integers(1, 2000),
    size=st.one_of(st.none(), st.integers(176, 600)),
    overlap=st.one_of(st.none(), st.integers(0, 60)),
)
def test_tiles_cover_every_cell_and_overlap_as_asked(
    height: int, width: int, size: int | None, overlap: int | None
) -> None:
    plan = plan_tiles((height, width), INPUT, PATCH, Tiling(size, overlap))
    if plan is None:
        room = 1.5 if size is None else 1
        scale = 1 if size is None else 176 / size
        assert max(1, round(height * scale)) <= room * 144
        assert max(1, round(width * scale)) <= room * 176
        return
    covered = np.zeros(plan.grid, dtype=int)
    for corner in plan.corners:
        covered[plan.window(corner)] += 1
        cells = plan.cells(corner)
        assert len(cells) == 99
        assert (cells >= 0).sum() >= 1
        assert (np.diff(cells[cells >= 0]) > 0).all()
    assert covered.min() == 1
    assert plan.grid == (-(-plan.size[0] // 16), -(-plan.size[1] // 16))
    least = 2 if overlap is None else -(-overlap * plan.scale // 16)
    for axis in (0, 1):
        spans = (plan.rows, plan.columns)[axis]
        assert all(end - start <= plan.tile[axis] for start, end in spans)
        assert all(first[1] - second[0] == least for first, second in pairwise(spans))
        assert np.ptp([end - start for start, end in spans]) <= 1


@pytest.mark.parametrize(
    ("tiling", "sentence"),
    [(Tiling(100), "would be enlarged to the network's input of 176"), (Tiling(None, 90), "by half at most")],
)
def test_tiles_that_make_no_sense_are_refused(tiling: Tiling, sentence: str) -> None:
    with pytest.raises(KeepADError, match=sentence):
        plan_tiles((1000, 1000), INPUT, PATCH, tiling)


def test_a_native_tile_is_the_image_itself() -> None:
    image, plan = noise(300, 500), plan_of(300, 500)
    for corner in plan.corners:
        tile = cut(Image.fromarray(image), plan, corner)
        assert tile is not None
        rows, columns = plan.window(corner)
        own = image[rows.start * 16 : rows.stop * 16, columns.start * 16 : columns.stop * 16]
        np.testing.assert_array_equal(tile.pixels[: own.shape[0], : own.shape[1]], own)


def test_a_scaled_tile_is_cut_from_the_scaled_image() -> None:
    image, plan = noise(700, 900), plan_of(700, 900, 352)
    scaled = np.asarray(Image.fromarray(image).resize((450, 350), Image.Resampling.BICUBIC)).astype(int)
    for corner in plan.corners:
        tile = cut(Image.fromarray(image), plan, corner)
        assert tile is not None
        rows, columns = plan.window(corner)
        own = scaled[rows.start * 16 : rows.stop * 16, columns.start * 16 : columns.stop * 16]
        assert np.abs(tile.pixels[: own.shape[0], : own.shape[1]] - own).max() <= 1


def test_blending_shows_no_tile() -> None:
    plan = plan_of(400, 700)
    rows, columns = np.mgrid[: plan.grid[0] + 20, : plan.grid[1] + 20]
    whole = (rows + 2 * columns) / 200
    parts = [(corner, whole[corner[0] :, corner[1] :][:9, :11]) for corner in plan.corners]
    np.testing.assert_allclose(blended(plan, parts), whole[: plan.grid[0], : plan.grid[1]], atol=1e-6)
    np.testing.assert_array_equal(blended(plan, parts), blended(plan, parts[::-1]))
    # Of two tiles that differ, the map goes from one to the other without a step.
    levels = [(corner, np.full((9, 11), float(corner[1] > 0))) for corner in plan.corners]
    across = np.diff(blended(plan, levels)[4])
    assert across.min() >= 0
    assert across.max() < 0.7


def test_the_map_of_the_thumbnail_is_sampled_at_the_centres_of_cells() -> None:
    plan = plan_of(400, 700)
    ramp = (np.arange(11) + 0.5)[None].repeat(9, 0) / 11  # x of the image, from 0 to 1
    centres = (np.arange(plan.grid[1]) + 0.5) * 16 / 700
    np.testing.assert_allclose(sampled(ramp, plan)[3], np.clip(centres, 0.5 / 11, 10.5 / 11), atol=1e-6)


@pytest.mark.parametrize("point", ["dense", "prune50"])
def test_an_image_of_one_tile_gives_what_it_gives_without_tiles(tiny: Network, point: str) -> None:
    image = noise(200, 250)
    whole, tiled = Detector(tiny, point)(image), Detector(tiny, point, framing=NATIVE)(image)
    assert tiled.tiles is None
    assert tiled.pred_score == whole.pred_score
    np.testing.assert_array_equal(tiled.anomaly_map, whole.anomaly_map)
    assert tiled.survivors.tolist() == whole.survivors.tolist()


@pytest.mark.parametrize("point", ["prune50", "paper70"])
def test_the_order_of_tiles_does_not_matter(tiny: Network, point: str) -> None:
    plan = plan_of(400, 700)
    tiles = [cut(Image.fromarray(noise(400, 700)), plan, corner) for corner in plan.corners]
    pixels = np.stack([tile.pixels for tile in tiles if tile is not None])
    corners = list(plan.corners)
    order = np.random.default_rng(0).permutation(len(corners)).tolist()
    straight = tiny.infer(pixels, [POINTS[point]], scope=Scope(None, corners))[point]
    shuffled = tiny.infer(pixels[order], [POINTS[point]], scope=Scope(None, [corners[i] for i in order]))[point]
    for position, number in enumerate(order):
        a, b = straight[number], shuffled[position]
        assert a.survivors.tolist() == b.survivors.tolist()
        assert a.evidence == pytest.approx(b.evidence, abs=1e-6)
        assert a.score == pytest.approx(b.score, abs=1e-6)
        np.testing.assert_allclose(a.anomaly_map, b.anomaly_map, atol=1e-6)  # a batch rounds by the place of an image


def test_plain_tiles_are_not_computed(tiny: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    detector = Detector(tiny, "prune50", framing=NATIVE)
    entered: list[int] = []
    infer = Network.infer

    def counting(own: Network, pixels: Array, *rest: Any, **more: Any) -> Any:
        entered.append(len(pixels))
        return infer(own, pixels, *rest, **more)

    monkeypatch.setattr(Network, "infer", counting)
    prediction = detector(sheet())
    report = prediction.tiles
    assert report is not None
    assert report.plain >= 9
    assert entered == [1, report.tiles - report.plain]  # the thumbnail, and the tiles that are not plain
    assert report.entered < 0.5 * report.cells
    assert prediction.keep_final <= prediction.keep_shallow <= prediction.keep_pixels < 0.5
    assert prediction.anomaly_map.shape == (400, 700) == prediction.map_at().shape
    assert np.isfinite(prediction.anomaly_map).all()
    dense = detector(sheet(), point="dense").tiles
    assert dense is not None
    assert (dense.plain, dense.entered) == (0, dense.cells)


def test_budgets_go_to_the_tile_with_evidence(tiny: Network) -> None:
    """A pattern that repeats everywhere, but in one tile: there the shares of survivors are highest."""
    pattern = np.tile(noise(16, 16), (30, 40, 1))
    pattern[40:80, 60:110] = noise(40, 50, seed=3)
    plan = plan_of(*pattern.shape[:2])
    tiles = [cut(Image.fromarray(pattern), plan, corner) for corner in plan.corners]
    pixels = np.stack([tile.pixels for tile in tiles if tile is not None])
    point = replace(POINTS["prune70"], pixels=None)
    results = tiny.infer(pixels, [point], scope=Scope(None, list(plan.corners)))["prune70"]
    shallow = [len(own.survivors_shallow) for own in results]
    assert sum(shallow) == round(0.3 * 99 * len(results))
    assert shallow[0] == max(shallow) > 1.5 * np.median(shallow)
    assert min(len(own.survivors) for own in results) >= 12


def test_a_defect_across_a_seam_is_one_region(tiny: Network) -> None:
    detector = Detector(tiny, "dense", framing=NATIVE)
    detector.set_threshold(0.5)
    prediction = detector(noise(400, 700))
    plan = plan_of(400, 700)
    seam = plan.corners[1][1] * 16
    patches = np.zeros(plan.grid)
    patches[6:9, seam // 16 - 4 : seam // 16 + 12] = 0.9
    parts = [(corner, np.pad(patches, 20)[20:, 20:][corner[0] :, corner[1] :][:9, :11]) for corner in plan.corners]
    joined = np.repeat(np.repeat(blended(plan, parts), 16, 0), 16, 1)[:400, :700]
    regions = replace(prediction, anomaly_map=joined).regions()
    assert [region.box for region in regions] == [((seam // 16 - 4) * 16, 96, (seam // 16 + 12) * 16, 144)]


def test_regions_of_a_large_map_are_those_of_the_whole() -> None:
    coarse = np.random.default_rng(4).random((30, 40)).astype(np.float32) ** 6
    picture = Image.fromarray(coarse)
    size = (290, 392)
    extent = (290 / 300, 392 / 400)

    def part_at(size: tuple[int, int], box: tuple[int, int, int, int]) -> Array:
        left, top, right, bottom = (edge / 10 for edge in box)
        shape = (box[2] - box[0], box[3] - box[1])
        return np.array(picture.resize(shape, Image.Resampling.BILINEAR, box=(left, top, right, bottom)))

    whole = find_regions(part_at(size, (0, 0, 392, 290)), 0.4)
    parts = find_large_regions(part_at, size, coarse, extent, 0.4)
    assert len(whole) > 10
    assert sorted((own.box, own.area) for own in whole) == sorted((own.box, own.area) for own in parts)
    assert [own.peak for own in parts] == pytest.approx([own.peak for own in whole])


@pytest.mark.parametrize("engine", ["openvino", "onnx"])
def test_an_engine_tiles_as_torch_does(tiny: Network, folders: dict[str, Path], engine: str) -> None:
    # Patches of the sheet's plain part are alike, so rounding decides which of them stay; those of noise differ.
    for point, image in (("dense", sheet()), ("prune50", noise(400, 700))):
        torch, exported = (Detector(own, point, framing=NATIVE)(image) for own in (tiny, open_network(folders[engine])))
        assert torch.tiles == exported.tiles
        assert torch.survivors.tolist() == exported.survivors.tolist()
        assert exported.pred_score == pytest.approx(torch.pred_score, abs=1e-4)
        np.testing.assert_allclose(exported.anomaly_map, torch.anomaly_map, atol=1e-3)


def test_tiles_of_a_scale_and_of_a_strip(tiny: Network) -> None:
    half = Detector(tiny, "prune50", framing=Framing(tiles=Tiling(352)))(sheet(500, 900))
    assert half.tiles is not None
    assert half.tiles.scale == 0.5
    assert half.anomaly_map.shape == (250, 450)
    assert half.map_at().shape == (500, 900)
    strip = Detector(tiny, "prune50", framing=NATIVE)(noise(40, 900))
    assert strip.tiles is not None
    assert strip.map_at().shape == (40, 900)
    assert strip.grid == (3, 57)
    assert strip.survivors.max() < 3 * 57


def test_results_of_tiles_are_written(tiny: Network, tmp_path: Path) -> None:
    from keepad.output.folder import Outputs, run_folder

    Image.fromarray(sheet()).save(tmp_path / "sheet.png")
    detector = Detector(tiny, "prune50", framing=NATIVE)
    detector.set_threshold(0.3)
    summary = run_folder(detector, [tmp_path / "sheet.png"], tmp_path / "out", outputs=Outputs(True, True, True))
    assert dict(summary.fits) == {"tiles: 20 of 144x176": 1}
    assert summary.rows[0]["tiles"]["tiles"] == 20
    with Image.open(tmp_path / "out" / "masks" / "sheet.png.png") as mask:
        assert mask.size == (700, 400)


def test_a_profile_of_tiles_knows_them_and_takes_no_other(tiny: Network, tmp_path: Path) -> None:
    roi = Roi(Shape(tmp_path, polygons=(np.array([[0.0, 0], [700, 0], [700, 380], [0, 380]]),)))
    framing = replace(NATIVE, roi=roi)
    detector = Detector(tiny, "prune50", framing=framing)
    profile = detector.teach([sheet(), sheet()[:, ::-1].copy()], rotate="off", say=lambda line: None)
    assert any("tile at row" in image.name for image in profile.images)
    profile.save(tmp_path / "sheet.keepad")
    stored = read_profile(tmp_path / "sheet.keepad")
    own = framing_from(stored.settings["framing"])
    assert own.tiles == NATIVE.tiles
    assert own.roi is not None
    assert np.array_equal(own.roi.at((400, 700)), roi.at((400, 700)))
    with pytest.raises(KeepADError, match="made with another fit, tiles or region of interest"):
        Detector(tiny, "prune50").with_profile(stored)
    known = Detector(tiny, "prune50", framing=own).with_profile(stored)
    defective = sheet()
    defective[250:290, 500:540] = noise(40, 40, seed=2)
    normal, anomalous = known(sheet()), known(defective)
    maps = [own.map_at()[250:290, 500:540].mean() for own in (normal, anomalous)]
    assert maps[1] > maps[0]
    assert anomalous.match is not None
    assert anomalous.nearest_reference() is not None
