"""Demo images: deterministic, with defects that change exactly the pixels of their mask."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from keepad.arrays import Array
from keepad.demo import DemoImage, defects, demo_images, write_demo_images
from keepad.demo.defects import Painted
from keepad.demo.products import SIZE
from keepad.errors import KeepADError
from keepad.metrics import defect_tokens

PRODUCTS = ("gravel", "fabric", "ceramic", "metal")
PAINTERS = ("stain", "rust", "crack", "scratch", "chip", "dent", "thread", "washer", "tear", "ink")


@pytest.fixture(scope="module")
def images() -> list[DemoImage]:
    return demo_images()


@pytest.fixture(scope="module")
def clean_views() -> list[DemoImage]:
    """The same views with painters that change nothing."""

    def unpainted(pixels: Array, *_: object, **__: object) -> Painted:
        return Painted(pixels, np.zeros(pixels.shape[:2]))

    with pytest.MonkeyPatch.context() as patch:
        for painter in PAINTERS:
            patch.setattr(defects, painter, unpainted)
        return demo_images()


def test_four_products_with_clean_and_defective_images(images: list[DemoImage]) -> None:
    assert {image.product for image in images} == set(PRODUCTS)
    for product in PRODUCTS:
        kinds = [image.defect for image in images if image.product == product]
        assert kinds.count("good") == 3
        assert len(set(kinds) - {"good"}) >= 3
    assert len({image.name for image in images}) == len(images)


def test_sizes_and_types(images: list[DemoImage]) -> None:
    for image in images:
        assert image.image.mode == "RGB"
        assert image.image.size == (SIZE, SIZE)
        assert image.mask.shape == (SIZE, SIZE)
        assert image.mask.dtype == bool


def test_clean_images_have_empty_masks_and_defective_ones_do_not(images: list[DemoImage]) -> None:
    for image in images:
        assert image.mask.any() == (image.defect != "good"), image.name


def test_clean_images_of_a_product_are_different_views(images: list[DemoImage]) -> None:
    for product in PRODUCTS:
        first, second, third = (
            np.asarray(image.image, float) for image in images if (image.product, image.defect) == (product, "good")
        )
        assert np.abs(first - second).mean() > 3
        assert np.abs(second - third).mean() > 3


def test_nothing_outside_of_the_mask_was_changed(images: list[DemoImage], clean_views: list[DemoImage]) -> None:
    for image, clean in zip(images, clean_views, strict=True):
        changed = (np.asarray(image.image) != np.asarray(clean.image)).any(axis=-1)
        assert not (changed & ~image.mask).any(), image.name


def test_the_defect_is_visible_inside_of_the_mask(images: list[DemoImage], clean_views: list[DemoImage]) -> None:
    for image, clean in zip(images, clean_views, strict=True):
        if image.defect != "good":
            difference = np.abs(np.asarray(image.image, int) - np.asarray(clean.image, int)).max(axis=-1)
            assert (difference[image.mask] >= 4).mean() > 0.75, image.name
            assert np.percentile(difference[image.mask], 75) >= 24, image.name


def test_defects_cover_from_a_few_patches_to_a_medium_size(images: list[DemoImage]) -> None:
    for image in images:
        if image.defect != "good":
            patches = defect_tokens(image.mask, (SIZE // 14, SIZE // 14)).sum()
            assert 4 <= patches <= 140, f"{image.name}: {patches} patches of 14 pixels"
            across = max(np.ptp(axis) for axis in image.mask.nonzero())
            assert 40 <= across <= 115, f"{image.name}: {across} pixels across"


def test_another_seed_gives_other_images_whose_defects_still_lie_inside(images: list[DemoImage]) -> None:
    first = {image.name: image.image.tobytes() for image in images}
    for other in demo_images(seed=1):
        assert other.mask.any() == (other.defect != "good"), other.name
        assert other.image.tobytes() != first[other.name]


def test_written_twice_it_is_the_same_byte_for_byte_in_the_layout_of_mvtec(
    images: list[DemoImage], tmp_path: Path
) -> None:
    paths = write_demo_images(tmp_path)
    assert len(paths) == len(images)
    for path, image in zip(paths, images, strict=True):
        number = image.name[-3:]
        assert path == tmp_path / image.product / "test" / image.defect / f"{number}.png"
        assert Image.open(path).tobytes() == image.image.tobytes(), "two runs must not differ"
        mask = tmp_path / image.product / "ground_truth" / image.defect / f"{number}_mask.png"
        assert mask.exists() == (image.defect != "good")
        if mask.exists():
            assert np.array_equal(np.asarray(Image.open(mask)), image.mask * np.uint8(255))


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(KeepADError, match=r"^Demo images cannot be written to '.*file' \(.*\); name another folder\.$"):
        write_demo_images(tmp_path / "file")


def test_assets_are_small_and_their_licences_are_stated() -> None:
    assets = files("keepad.demo").joinpath("assets")
    photos = [asset for asset in assets.iterdir() if asset.name.endswith(".jpg")]
    assert sum(len(photo.read_bytes()) for photo in photos) < 600_000
    licences = assets.joinpath("LICENSES.md").read_text(encoding="utf-8")
    for photo in photos:
        assert f"`{photo.name}`" in licences
