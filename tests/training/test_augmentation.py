"""Views: what a collage and a crop are made of, and that mask and label follow the pixels.

Images of one plain colour stay that colour at any size, so that every tile says where it came from.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from keepad.data import Sample
from keepad.training.augmentation import Picture, collage, crop, read_picture, view_of

SIZE = (12, 18)


def sample(folder: Path, name: str, pixels: np.ndarray, mask: np.ndarray | None = None, label: int = 0) -> Sample:
    """A sample as PNG files; with a mask it is anomalous."""
    Image.fromarray(pixels).save(folder / f"{name}.png")
    if mask is not None:
        Image.fromarray(mask).save(folder / f"{name}_mask.png")
    marked = None if mask is None else folder / f"{name}_mask.png"
    label = 1 if mask is not None else label
    return Sample("lab", "nut", "test", "dent" if label else "good", label, folder / f"{name}.png", marked, folder)


def plain(folder: Path, colour: int, *, defect: bool = False) -> Sample:
    """An image of one colour: all defect, or none."""
    mask = np.ones(SIZE, dtype=bool) if defect else None
    return sample(folder, f"plain{colour}", np.full((*SIZE, 3), colour, dtype=np.uint8), mask)


def colours(view: Picture) -> set[int]:
    return set(np.unique(view.pixels).tolist())


def painted(size: tuple[int, int], rows: slice, columns: slice) -> Picture:
    """A black picture whose defect is white, so that pixels tell what the mask must say."""
    mask = np.zeros(size, dtype=bool)
    mask[rows, columns] = True
    return Picture(np.repeat(mask[..., None], 3, axis=2).astype(np.uint8) * 255, mask, 1)


def agreement(view: Picture) -> float:
    """How much of a view of a painted picture is white where the mask says defect, and black elsewhere."""
    assert view.mask is not None
    return float(np.mean((view.pixels[..., 0] > 127) == view.mask))


# --- a sample as the network sees it ----------------------------------------------------------------------------------


def test_a_picture_has_the_size_asked_for_and_its_mask_follows(tmp_path: Path) -> None:
    drawn = painted((24, 36), slice(4, 12), slice(6, 30))
    picture = read_picture(sample(tmp_path, "a", drawn.pixels, drawn.mask), SIZE)
    assert picture.pixels.shape == (*SIZE, 3)
    assert picture.pixels.dtype == np.uint8
    assert picture.label == 1
    assert np.array_equal(picture.mask, painted(SIZE, slice(2, 6), slice(3, 15)).mask)
    assert agreement(picture) == 1


def test_what_is_not_known_is_not_made_up(tmp_path: Path) -> None:
    pixels = np.zeros((*SIZE, 3), dtype=np.uint8)
    unmasked = sample(tmp_path, "unmasked", pixels, label=1)
    assert read_picture(unmasked, SIZE).mask is None
    normal = read_picture(sample(tmp_path, "normal", pixels), SIZE)
    assert normal.mask is not None
    assert not normal.mask.any()
    rng = np.random.default_rng(0)
    with pytest.raises(ValueError, match="without a mask"):
        crop(read_picture(unmasked, SIZE), 2, rng)
    with pytest.raises(ValueError, match="without a mask"):
        collage(unmasked, [], 2, rng, partial(read_picture, size=SIZE))


# --- collage ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "cells", "rows", "columns"),
    [
        ((12, 18), 2, (0, 6, 12), (0, 9, 18)),
        ((12, 18), 3, (0, 4, 8, 12), (0, 6, 12, 18)),
        ((7, 11), 2, (0, 4, 7), (0, 6, 11)),
        ((13, 17), 3, (0, 4, 9, 13), (0, 6, 11, 17)),
    ],
)
def test_tiles_fill_every_pixel_and_bring_their_masks(
    tmp_path: Path, size: tuple[int, int], cells: int, rows: tuple[int, ...], columns: tuple[int, ...]
) -> None:
    base = plain(tmp_path, 10, defect=True)
    mates = [plain(tmp_path, 60), plain(tmp_path, 110, defect=True), plain(tmp_path, 160)]
    for seed in range(20):
        view = collage(base, mates, cells, np.random.default_rng(seed), partial(read_picture, size=size))
        assert view.pixels.shape == (*size, 3)
        assert colours(view) <= {10, 60, 110, 160}
        for top, bottom in pairwise(rows):
            for left, right in pairwise(columns):
                assert len(np.unique(view.pixels[top:bottom, left:right])) == 1
        assert np.array_equal(view.mask, np.isin(view.pixels[..., 0], (10, 110)))


@pytest.mark.parametrize("cells", [2, 3])
def test_the_base_is_in_every_collage_at_any_place(tmp_path: Path, cells: int) -> None:
    base, mates = plain(tmp_path, 10), [plain(tmp_path, 60)]
    read = partial(read_picture, size=SIZE)
    views = [collage(base, mates, cells, np.random.default_rng(seed), read) for seed in range(80)]
    assert all(np.mean(view.pixels == 10) == pytest.approx(1 / cells**2) for view in views)
    assert len({view.pixels.tobytes() for view in views}) == cells**2


def test_a_normal_base_stays_among_normal_images(tmp_path: Path) -> None:
    base = plain(tmp_path, 10)
    mates = [base, plain(tmp_path, 60, defect=True), plain(tmp_path, 110), plain(tmp_path, 160, defect=True)]
    read = partial(read_picture, size=SIZE)
    views = [collage(base, mates, 3, np.random.default_rng(seed), read) for seed in range(20)]
    assert set().union(*map(colours, views)) == {10, 110}
    assert all(view.label == 0 and view.mask is not None and not view.mask.any() for view in views)


def test_an_anomalous_base_has_mates_of_both_kinds(tmp_path: Path) -> None:
    base, mates = plain(tmp_path, 10, defect=True), [plain(tmp_path, 60, defect=True), plain(tmp_path, 110)]
    read = partial(read_picture, size=SIZE)
    views = [collage(base, mates, 2, np.random.default_rng(seed), read) for seed in range(20)]
    assert set().union(*map(colours, views)) == {10, 60, 110}
    assert all(view.label == 1 for view in views)


@pytest.mark.parametrize("mates", [[], ["anomalous"]])
def test_a_base_without_mates_is_its_own(tmp_path: Path, mates: list[str]) -> None:
    others = [plain(tmp_path, 60, defect=True) for _ in mates]
    view = collage(plain(tmp_path, 10), others, 3, np.random.default_rng(0), partial(read_picture, size=SIZE))
    assert colours(view) == {10}


@pytest.mark.parametrize("cells", [2, 3])
def test_the_mask_shrinks_with_its_tile(tmp_path: Path, cells: int) -> None:
    drawn = painted((72, 72), slice(12, 48), slice(24, 60))
    base = sample(tmp_path, "drawn", drawn.pixels, drawn.mask)
    for seed in range(5):
        view = collage(base, [base], cells, np.random.default_rng(seed), partial(read_picture, size=(72, 72)))
        assert view.mask is not None
        assert view.mask.mean() == pytest.approx(0.25)
        assert agreement(view) > 0.99


def test_the_label_says_what_the_mask_shows(tmp_path: Path) -> None:
    """A defect of one pixel is lost in a tile, one of half the image never is."""
    speck, blot = painted((24, 24), slice(0, 1), slice(0, 1)), painted((24, 24), slice(0, 12), slice(0, 24))
    read = partial(read_picture, size=(24, 24))
    for drawn, label in ((speck, 0), (blot, 1)):
        base = sample(tmp_path, f"label{label}", drawn.pixels, drawn.mask)
        for cells in (2, 3):
            view = collage(base, [base], cells, np.random.default_rng(0), read)
            assert view.mask is not None
            assert view.label == int(view.mask.any()) == label


# --- crop -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(72, 72), (71, 85)])
@pytest.mark.parametrize("cells", [2, 3])
def test_pixels_and_mask_are_enlarged_alike(size: tuple[int, int], cells: int) -> None:
    picture = painted(size, slice(10, 50), slice(30, 66))
    for seed in range(10):
        view = crop(picture, cells, np.random.default_rng(seed))
        assert view.mask is not None
        assert view.pixels.shape == (*size, 3)
        assert view.mask.shape == size
        assert view.label == int(view.mask.any()) == 1
        assert agreement(view) > 0.99


def test_a_crop_holds_defect_if_there_is_any() -> None:
    # Cells of 6x6: the defect lies in the second row and touches its first two cells.
    picture = painted((18, 18), slice(8, 10), slice(2, 7))
    views = [crop(picture, 3, np.random.default_rng(seed)) for seed in range(30)]
    assert all(view.label == 1 for view in views)
    # A cell at three times its size: 2 x 4 defective pixels become 6 x 12, 2 x 1 become 6 x 3.
    sizes = {int(view.mask.sum()) for view in views if view.mask is not None}
    assert len(sizes) == 2  # corners are rounded by a pixel
    assert all(min(abs(size - whole) for whole in (6 * 12, 6 * 3)) <= 2 for size in sizes)


@pytest.mark.parametrize("cells", [2, 3])
def test_every_cell_of_a_normal_image_can_be_cropped(cells: int) -> None:
    tile = np.arange(cells**2, dtype=np.uint8).reshape(cells, cells) * 20
    pixels = np.repeat(np.kron(tile, np.ones((6, 6), dtype=np.uint8))[..., None], 3, axis=2)
    normal = Picture(pixels, np.zeros(pixels.shape[:2], dtype=bool), 0)
    views = [crop(normal, cells, np.random.default_rng(seed)) for seed in range(80)]
    # Plain views, so that nothing from beyond the cell has crept in.
    assert all(len(colours(view)) == 1 and view.label == 0 for view in views)
    assert set().union(*map(colours, views)) == set(tile.ravel().tolist())


# --- view -------------------------------------------------------------------------------------------------------------


def noise(folder: Path, name: str, seed: int = 0) -> Sample:
    return sample(folder, name, np.random.default_rng(seed).integers(0, 255, (*SIZE, 3), dtype=np.uint8))


def bytes_of(views: list[Picture]) -> list[bytes]:
    return [view.pixels.tobytes() + (b"" if view.mask is None else view.mask.tobytes()) for view in views]


def test_the_same_arguments_give_the_same_view(tmp_path: Path) -> None:
    base, mate, namesake = noise(tmp_path, "a"), noise(tmp_path, "b", seed=1), noise(tmp_path, "c")

    def views(one: Sample, seed: int = 0) -> list[bytes]:
        return bytes_of([view_of(one, [one, mate], number, size=SIZE, seed=seed) for number in range(12)])

    assert views(base) == views(base)
    assert views(base) != views(base, seed=1)
    assert views(base) != views(namesake)  # the same pixels under another name
    assert len(set(views(base))) > 6  # numbers give other views


def test_a_view_is_the_same_wherever_the_data_set_lies(tmp_path: Path) -> None:
    roots = [tmp_path / "here", tmp_path / "there"]
    for root in roots:
        root.mkdir()
    bases = [noise(root, "a") for root in roots]
    for number in range(6):
        views = [view_of(base, [base], number, size=SIZE, seed=3) for base in bases]
        assert len(set(bytes_of(views))) == 1


def test_kinds_and_sides_take_turns(tmp_path: Path) -> None:
    """A ramp without mates of its kind: black tiles tell a collage, its share or steepness the number of cells."""
    ramp = np.zeros((36, 36, 3), dtype=np.uint8)
    ramp[..., 0] = np.linspace(0, 252, 36)
    ramp[..., 1] = 255
    base, black = sample(tmp_path, "ramp", ramp), sample(tmp_path, "black", np.zeros_like(ramp))
    collages, crops = [], []
    for number in range(200):
        view = view_of(base, [black], number, size=(36, 36), seed=0)
        own = view.pixels[..., 1] == 255
        if own.all():
            crops.append(2 if np.ptp(view.pixels[..., 0].astype(int)) > 100 else 3)
        else:
            collages.append(2 if own.mean() > 0.2 else 3)
    # Four standard deviations around half of the draws.
    assert 72 <= len(crops) <= 128
    for sides in (crops, collages):
        assert abs(sides.count(2) - len(sides) / 2) < 2 * len(sides) ** 0.5
