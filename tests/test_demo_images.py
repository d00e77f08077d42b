"""The demo images: surfaces with painted defects, the same bytes every time, with masks that tell the truth."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from keepad import demo
from keepad.demo import demo_images, write_demo_images
from keepad.demo.defects import Painted
from keepad.errors import KeepADError

_PRODUCTS = ("gravel", "fabric", "ceramic", "metal")


@pytest.fixture(scope="module")
def images():
    return demo_images()


@pytest.fixture(scope="module")
def clean_twins():
    """The same views before anything was painted on them."""
    leave_it = lambda pixels, rng: Painted(pixels, np.zeros(pixels.shape[:2]))  # noqa: E731
    with pytest.MonkeyPatch.context() as patch:
        untouched = {
            product: (render, dict.fromkeys(painters, leave_it))
            for product, (render, painters) in demo._PRODUCTS.items()
        }
        patch.setattr(demo, "_PRODUCTS", untouched)
        return demo_images()


def test_five_products_with_clean_and_defective_images(images):
    assert {image.product for image in images} == set(_PRODUCTS)
    for product in _PRODUCTS:
        defects = [image.defect for image in images if image.product == product]
        assert defects.count("good") == 3
        assert len(set(defects) - {"good"}) >= 3
    assert len({image.name for image in images}) == len(images)


def test_sizes_and_types(images):
    for image in images:
        assert image.image.mode == "RGB"
        assert image.image.size == (518, 518)
        assert image.mask.shape == (518, 518)
        assert image.mask.dtype == bool


def test_clean_images_have_empty_masks_and_defective_ones_do_not(images):
    for image in images:
        assert image.mask.any() == (image.defect != "good"), image.name


def test_clean_images_of_a_product_are_different_views(images):
    for product in _PRODUCTS:
        first, second, third = (
            np.asarray(image.image, float) for image in images if (image.product, image.defect) == (product, "good")
        )
        assert np.abs(first - second).mean() > 3
        assert np.abs(second - third).mean() > 3


def test_nothing_outside_of_the_mask_was_changed(images, clean_twins):
    for image, twin in zip(images, clean_twins, strict=True):
        changed = (np.asarray(image.image) != np.asarray(twin.image)).any(axis=-1)
        assert not (changed & ~image.mask).any(), image.name


def test_the_defect_is_visible_inside_of_the_mask(images, clean_twins):
    for image, twin in zip(images, clean_twins, strict=True):
        if image.defect != "good":
            difference = np.abs(np.asarray(image.image, int) - np.asarray(twin.image, int)).max(axis=-1)
            assert (difference[image.mask] >= 4).mean() > 0.75, image.name
            assert np.percentile(difference[image.mask], 75) >= 24, image.name


def test_defects_cover_from_a_few_patches_to_a_medium_size(images):
    for image in images:
        if image.defect != "good":
            patches = image.mask.reshape(37, 14, 37, 14).any(axis=(1, 3)).sum()
            assert 4 <= patches <= 140, f"{image.name}: {patches} of 1369 patches"
            across = max(np.ptp(axis) for axis in image.mask.nonzero())
            assert 40 <= across <= 115, f"{image.name}: {across} pixels across"


def test_another_seed_gives_other_images_whose_defects_still_lie_inside(images, monkeypatch):
    monkeypatch.setattr(demo, "_PRODUCTS", {"fabric": demo._PRODUCTS["fabric"]})
    first = {image.name: image.image.tobytes() for image in images}
    for other in demo_images(seed=1):
        assert other.mask.any() == (other.defect != "good"), other.name
        assert other.image.tobytes() != first[other.name]


def test_written_twice_it_is_the_same_byte_for_byte_in_the_layout_of_mvtec(images, tmp_path):
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


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(KeepADError, match=r"^Demo images cannot be written to '.*file' \(.*\); name another folder\.$"):
        write_demo_images(tmp_path / "file")


def test_assets_are_small_and_their_licences_are_stated():
    assets = demo.products.files("keepad.demo").joinpath("assets")
    photos = [asset for asset in assets.iterdir() if asset.name.endswith(".jpg")]
    assert sum(len(photo.read_bytes()) for photo in photos) < 600_000
    licences = assets.joinpath("LICENSES.md").read_text(encoding="utf-8")
    for photo in photos:
        assert f"`{photo.name}`" in licences
