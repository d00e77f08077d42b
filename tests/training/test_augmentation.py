"""Augmented views: content of collage and crop; mask and label follow the pixels.

Images of a single colour keep it at any size, so that the colour of a tile identifies its image.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from keepad.data import Sample
from keepad.training.augmentation import LabelledImage, augmented_view, collage, crop, load_labelled

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


def colours(view: LabelledImage) -> set[int]:
    return set(np.unique(view.pixels).tolist())


def painted(size: tuple[int, int], rows: slice, columns: slice) -> LabelledImage:
    """A black image with a white defect, so that the mask can be checked against the pixels."""
    mask = np.zeros(size, dtype=bool)
    mask[rows, columns] = True
    return LabelledImage(np.repeat(mask[..., None], 3, axis=2).astype(np.uint8) * 255, mask, 1)


def agreement(view: LabelledImage) -> float:
    """Share of the pixels of a painted view that are white inside the mask and black outside."""
    assert view.mask is not None
    return float(np.mean((view.pixels[..., 0] > 127) == view.mask))


# --- labelled images --------------------------------------------------------------------------------------------------


def test_image_and_mask_are_resized_alike(tmp_path: Path) -> None:
    drawn = painted((24, 36), slice(4, 12), slice(6, 30))
    image = load_labelled(sample(tmp_path, "a", drawn.pixels, drawn.mask), SIZE)
    assert image.pixels.shape == (*SIZE, 3)
    assert image.pixels.dtype == np.uint8
    assert image.label == 1
    np.testing.assert_array_equal(image.mask, painted(SIZE, slice(2, 6), slice(3, 15)).mask)
    assert agreement(image) == 1


def test_an_anomalous_image_without_mask_has_none_and_cannot_be_augmented(tmp_path: Path) -> None:
    pixels = np.zeros((*SIZE, 3), dtype=np.uint8)
    unmasked = sample(tmp_path, "unmasked", pixels, label=1)
    assert load_labelled(unmasked, SIZE).mask is None
    normal = load_labelled(sample(tmp_path, "normal", pixels), SIZE)
    assert normal.mask is not None
    assert not normal.mask.any()
    rng = np.random.default_rng(0)
    with pytest.raises(ValueError, match="without a mask"):
        crop(load_labelled(unmasked, SIZE), 2, rng)
    with pytest.raises(ValueError, match="without a mask"):
        collage(unmasked, [], 2, rng, partial(load_labelled, size=SIZE))


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
    peers = [plain(tmp_path, 60), plain(tmp_path, 110, defect=True), plain(tmp_path, 160)]
    for seed in range(20):
        view = collage(base, peers, cells, np.random.default_rng(seed), partial(load_labelled, size=size))
        assert view.pixels.shape == (*size, 3)
        assert colours(view) <= {10, 60, 110, 160}
        for top, bottom in pairwise(rows):
            for left, right in pairwise(columns):
                assert len(np.unique(view.pixels[top:bottom, left:right])) == 1
        np.testing.assert_array_equal(view.mask, np.isin(view.pixels[..., 0], (10, 110)))


@pytest.mark.parametrize("cells", [2, 3])
def test_the_base_is_in_every_collage_at_any_position(tmp_path: Path, cells: int) -> None:
    base, peers = plain(tmp_path, 10), [plain(tmp_path, 60)]
    read = partial(load_labelled, size=SIZE)
    views = [collage(base, peers, cells, np.random.default_rng(seed), read) for seed in range(80)]
    assert all(np.mean(view.pixels == 10) == pytest.approx(1 / cells**2) for view in views)
    assert len({view.pixels.tobytes() for view in views}) == cells**2


def test_a_collage_of_a_normal_base_is_normal(tmp_path: Path) -> None:
    base = plain(tmp_path, 10)
    peers = [base, plain(tmp_path, 60, defect=True), plain(tmp_path, 110), plain(tmp_path, 160, defect=True)]
    read = partial(load_labelled, size=SIZE)
    views = [collage(base, peers, 3, np.random.default_rng(seed), read) for seed in range(20)]
    assert set().union(*map(colours, views)) == {10, 110}
    assert all(view.label == 0 and view.mask is not None and not view.mask.any() for view in views)


def test_a_collage_of_an_anomalous_base_has_peers_of_both_labels(tmp_path: Path) -> None:
    base, peers = plain(tmp_path, 10, defect=True), [plain(tmp_path, 60, defect=True), plain(tmp_path, 110)]
    read = partial(load_labelled, size=SIZE)
    views = [collage(base, peers, 2, np.random.default_rng(seed), read) for seed in range(20)]
    assert set().union(*map(colours, views)) == {10, 60, 110}
    assert all(view.label == 1 for view in views)


@pytest.mark.parametrize("peers", [[], ["anomalous"]])
def test_a_base_without_peers_fills_its_collage(tmp_path: Path, peers: list[str]) -> None:
    others = [plain(tmp_path, 60, defect=True) for _ in peers]
    view = collage(plain(tmp_path, 10), others, 3, np.random.default_rng(0), partial(load_labelled, size=SIZE))
    assert colours(view) == {10}


@pytest.mark.parametrize("cells", [2, 3])
def test_the_mask_shrinks_with_its_tile(tmp_path: Path, cells: int) -> None:
    drawn = painted((72, 72), slice(12, 48), slice(24, 60))
    base = sample(tmp_path, "drawn", drawn.pixels, drawn.mask)
    for seed in range(5):
        view = collage(base, [base], cells, np.random.default_rng(seed), partial(load_labelled, size=(72, 72)))
        assert view.mask is not None
        assert view.mask.mean() == pytest.approx(0.25)
        assert agreement(view) > 0.99


def test_the_label_follows_the_resized_mask(tmp_path: Path) -> None:
    """A defect of one pixel is lost in a tile, one of half the image never is."""
    speck, blot = painted((24, 24), slice(0, 1), slice(0, 1)), painted((24, 24), slice(0, 12), slice(0, 24))
    read = partial(load_labelled, size=(24, 24))
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
    image = painted(size, slice(10, 50), slice(30, 66))
    for seed in range(10):
        view = crop(image, cells, np.random.default_rng(seed))
        assert view.mask is not None
        assert view.pixels.shape == (*size, 3)
        assert view.mask.shape == size
        assert view.label == int(view.mask.any()) == 1
        assert agreement(view) > 0.99


def test_a_crop_holds_defect_if_there_is_any() -> None:
    # Cells of 6x6: the defect lies in the second row and touches its first two cells.
    image = painted((18, 18), slice(8, 10), slice(2, 7))
    views = [crop(image, 3, np.random.default_rng(seed)) for seed in range(30)]
    assert all(view.label == 1 for view in views)
    # A cell at three times its size: 2 x 4 defective pixels become 6 x 12, 2 x 1 become 6 x 3.
    sizes = {int(view.mask.sum()) for view in views if view.mask is not None}
    assert len(sizes) == 2  # corners are rounded by a pixel
    assert all(min(abs(size - whole) for whole in (6 * 12, 6 * 3)) <= 2 for size in sizes)


@pytest.mark.parametrize("cells", [2, 3])
def test_every_cell_of_a_normal_image_can_be_cropped(cells: int) -> None:
    tile = np.arange(cells**2, dtype=np.uint8).reshape(cells, cells) * 20
    pixels = np.repeat(np.kron(tile, np.ones((6, 6), dtype=np.uint8))[..., None], 3, axis=2)
    normal = LabelledImage(pixels, np.zeros(pixels.shape[:2], dtype=bool), 0)
    views = [crop(normal, cells, np.random.default_rng(seed)) for seed in range(80)]
    # A single colour: no pixel from beyond the cell.
    assert all(len(colours(view)) == 1 and view.label == 0 for view in views)
    assert set().union(*map(colours, views)) == set(tile.ravel().tolist())


# --- view -------------------------------------------------------------------------------------------------------------


def noise(folder: Path, name: str, seed: int = 0) -> Sample:
    return sample(folder, name, np.random.default_rng(seed).integers(0, 255, (*SIZE, 3), dtype=np.uint8))


def bytes_of(views: list[LabelledImage]) -> list[bytes]:
    return [view.pixels.tobytes() + (b"" if view.mask is None else view.mask.tobytes()) for view in views]


def test_the_same_arguments_give_the_same_view(tmp_path: Path) -> None:
    base, peer, namesake = noise(tmp_path, "a"), noise(tmp_path, "b", seed=1), noise(tmp_path, "c")

    def views(base: Sample, seed: int = 0) -> list[bytes]:
        return bytes_of([augmented_view(base, [base, peer], number, size=SIZE, seed=seed) for number in range(12)])

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
        views = [augmented_view(base, [base], number, size=SIZE, seed=3) for base in bases]
        assert len(set(bytes_of(views))) == 1


def test_both_kinds_and_both_sides_are_equally_likely(tmp_path: Path) -> None:
    """Black tiles identify a collage; the share or steepness of the ramp gives the number of cells."""
    ramp = np.zeros((36, 36, 3), dtype=np.uint8)
    ramp[..., 0] = np.linspace(0, 252, 36)
    ramp[..., 1] = 255
    base, black = sample(tmp_path, "ramp", ramp), sample(tmp_path, "black", np.zeros_like(ramp))
    collages, crops = [], []
    for number in range(200):
        view = augmented_view(base, [black], number, size=(36, 36), seed=0)
        own = view.pixels[..., 1] == 255
        if own.all():
            crops.append(2 if np.ptp(view.pixels[..., 0].astype(int)) > 100 else 3)
        else:
            collages.append(2 if own.mean() > 0.2 else 3)
    # Four standard deviations around half of the draws.
    assert 72 <= len(crops) <= 128
    for sides in (crops, collages):
        assert abs(sides.count(2) - len(sides) / 2) < 2 * len(sides) ** 0.5
