"""Masks are binarised, resized like their image, and refused if their size is another."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from data_trees import write_image
from keepad.data import Sample, check_headers, load_mask
from keepad.errors import ImageError, KeepADError


def sample(image: Path, mask: Path | None, label: int = 1) -> Sample:
    return Sample("lab", "nut", "test", "dent" if label else "good", label, image, mask, image.parent)


def masked(folder: Path, mask: Image.Image) -> Sample:
    """An anomalous sample with this mask, and an image of the mask's size."""
    mask.save(folder / "mask.png")
    return sample(write_image(folder / "image.png", size=(mask.height, mask.width)), folder / "mask.png")


def test_a_normal_sample_has_an_empty_mask(tmp_path: Path) -> None:
    mask = load_mask(sample(tmp_path / "never_opened.png", None, label=0), (3, 5))

    assert mask.shape == (3, 5)
    assert mask.dtype == bool
    assert not mask.any()


VALUES = np.array([[0, 1], [0, 200]], dtype=np.uint8)
COLOURED = np.stack([VALUES * 0, VALUES * 0, VALUES], axis=2)


@pytest.mark.parametrize(
    "mask",
    [
        pytest.param(Image.fromarray(VALUES), id="8-bit"),
        pytest.param(Image.fromarray(VALUES.astype(np.uint16)), id="16-bit"),
        pytest.param(Image.fromarray(VALUES > 0), id="1-bit"),
        pytest.param(Image.fromarray(COLOURED), id="faint blue"),
        pytest.param(Image.fromarray(np.dstack([COLOURED, np.full((2, 2), 255, np.uint8)])), id="opaque"),
        pytest.param(Image.fromarray(VALUES).convert("P"), id="palette"),
    ],
)
def test_every_value_above_zero_marks_a_defect(tmp_path: Path, mask: Image.Image) -> None:
    assert load_mask(masked(tmp_path, mask), (2, 2)).tolist() == [[False, True], [False, True]]


def test_small_fractions_mark_a_defect_too(tmp_path: Path) -> None:
    Image.fromarray((VALUES / 1000).astype(np.float32)).save(tmp_path / "mask.tiff")

    mask = load_mask(sample(write_image(tmp_path / "image.png", size=(2, 2)), tmp_path / "mask.tiff"), (2, 2))

    assert mask.tolist() == [[False, True], [False, True]]


def test_a_mask_is_resized_to_height_and_width(tmp_path: Path) -> None:
    left_half = np.zeros((4, 8), dtype=np.uint8)
    left_half[:, :4] = 1

    mask = load_mask(masked(tmp_path, Image.fromarray(left_half)), (2, 4))

    assert mask.tolist() == [[True, True, False, False]] * 2


def test_a_pixel_counts_where_more_than_half_of_it_is_covered(tmp_path: Path) -> None:
    # Downscaled by 8: a pixel that is marked except in its middle stays, one marked only there does not.
    covered = np.zeros((8, 16), dtype=np.uint8)
    covered[:, :8] = 255
    covered[:, 4] = 0
    covered[:, 12] = 255

    mask = load_mask(masked(tmp_path, Image.fromarray(covered)), (1, 2))

    assert mask.tolist() == [[True, False]]


def test_a_mask_of_another_size_is_refused_with_both_files_and_sizes(tmp_path: Path) -> None:
    image, mask = write_image(tmp_path / "image.png", size=(4, 6)), write_image(tmp_path / "mask.png", size=(6, 4))

    with pytest.raises(KeepADError) as error:
        load_mask(sample(image, mask), (4, 6))

    assert str(error.value) == (
        f"The mask '{mask}' has 4 x 6 pixels but its image '{image}' has 6 x 4; give the mask the size of its image."
    )


def test_sizes_are_compared_upright(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # lies on its side: stored with height 4 and width 6, upright with 6 and 4
    Image.new("RGB", (6, 4)).save(tmp_path / "image.jpg", exif=exif)
    upright = write_image(tmp_path / "upright.png", size=(6, 4))
    lying = write_image(tmp_path / "lying.png", size=(4, 6))

    check_headers(sample(tmp_path / "image.jpg", upright))
    with pytest.raises(KeepADError, match=r"its image '.*' has 4 x 6"):
        check_headers(sample(tmp_path / "image.jpg", lying))


def test_an_anomalous_sample_without_a_mask_is_refused(tmp_path: Path) -> None:
    image = write_image(tmp_path / "image.png")

    with pytest.raises(KeepADError, match=r"The anomalous image '.*' has no mask"):
        load_mask(sample(image, None), (4, 6))


@pytest.mark.parametrize("broken", ["image.png", "mask.png"])
def test_a_file_that_is_no_image_is_named(tmp_path: Path, broken: str) -> None:
    image, mask = write_image(tmp_path / "image.png"), write_image(tmp_path / "mask.png")
    (tmp_path / broken).write_text("not an image")

    with pytest.raises(ImageError, match=f"{broken}' is not an image that can be opened"):
        load_mask(sample(image, mask), (4, 6))


def test_a_mask_that_is_cut_off_is_named(tmp_path: Path) -> None:
    image, mask = write_image(tmp_path / "image.png", size=(64, 64)), tmp_path / "mask.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64), dtype=np.uint8)).save(mask)
    mask.write_bytes(mask.read_bytes()[:1000])

    check_headers(sample(image, mask))  # its header is whole
    with pytest.raises(ImageError, match=r"The mask '.*mask\.png' cannot be read"):
        load_mask(sample(image, mask), (64, 64))
