"""read_image returns upright 8-bit RGB for every kind of source, or raises an error of one sentence."""

from __future__ import annotations

import re
import struct
import subprocess
import sys
import threading
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from keepad.arrays import Array
from keepad.errors import ImageError, KeepADError
from keepad.images import find_images, read_image, to_input

RED, GREEN, BLUE, WHITE = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255)


def pixel(source: object, x: int = 0, y: int = 0) -> tuple[int, ...]:
    image = read_image(source)
    assert image.mode == "RGB"
    return tuple(np.asarray(image)[y, x].tolist())


def refusal(source: object, kind: type[KeepADError] = ImageError) -> str:
    """The error message for `source`, after checking that it is one sentence."""
    with pytest.raises(kind) as caught:
        read_image(source)
    sentence = str(caught.value)
    assert sentence.endswith(".")
    assert "\n" not in sentence
    assert sentence[0].isupper() or sentence[0] == "'"
    return sentence


def png_of_16_bit_colour(path: Path, pixels: Array) -> None:
    """Writes a PNG with 16 bits per colour channel, which Pillow cannot."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    height, width, _ = pixels.shape
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in pixels)
    header = struct.pack(">IIBBBBB", width, height, 16, 2, 0, 0, 0)
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    )


class TestFiles:
    @pytest.mark.parametrize("suffix", ["png", "bmp", "tif", "webp", "ppm", "gif", "jpg"])
    def test_common_formats(self, tmp_path: Path, suffix: str) -> None:
        path = tmp_path / f"red.{suffix}"
        Image.new("RGB", (8, 8), RED).save(path)
        assert np.allclose(pixel(path), RED, atol=3)
        assert pixel(str(path)) == pixel(path)

    def test_one_pixel(self, tmp_path: Path) -> None:
        Image.new("RGB", (1, 1), GREEN).save(tmp_path / "one.png")
        assert pixel(tmp_path / "one.png") == GREEN

    @pytest.mark.parametrize("suffix", ["png", "tif", "pgm"])
    def test_16_bit_grey_is_scaled_not_clipped(self, tmp_path: Path, suffix: str) -> None:
        path = tmp_path / f"grey16.{suffix}"
        Image.fromarray(np.array([[0, 256, 32768, 65535]], dtype=np.uint16)).save(path)
        assert [pixel(path, x)[0] for x in range(4)] == [0, 1, 128, 255]

    def test_16_bit_grey_in_the_other_byte_order_and_in_32_bits(self) -> None:
        values = np.array([[0, 32768, 65535]], dtype=np.uint16)
        for image in (
            Image.frombytes("I;16B", (3, 1), values.astype(">u2").tobytes()),
            Image.fromarray(values.astype(np.int32)),
        ):
            assert image.mode in ("I;16B", "I")
            assert [pixel(image, x) for x in range(3)] == [(0, 0, 0), (128, 128, 128), WHITE]

    def test_16_bit_colour_is_scaled_not_clipped(self, tmp_path: Path) -> None:
        path = tmp_path / "colour16.png"
        png_of_16_bit_colour(path, np.array([[[65535, 32768, 0], [300, 300, 300]]]))
        assert pixel(path, 0) == (255, 128, 0)
        assert pixel(path, 1) == (1, 1, 1)

    @pytest.mark.parametrize("suffix", ["tif", "jpg"])
    def test_cmyk(self, tmp_path: Path, suffix: str) -> None:
        path = tmp_path / f"cmyk.{suffix}"
        Image.new("CMYK", (8, 8), (0, 255, 255, 0)).save(path)
        assert np.allclose(pixel(path), RED, atol=3)

    def test_palette(self, tmp_path: Path) -> None:
        image = Image.new("P", (2, 1))
        image.putpalette([*RED, *BLUE])
        image.putpixel((1, 0), 1)
        image.save(tmp_path / "palette.png")
        assert [pixel(tmp_path / "palette.png", x) for x in (0, 1)] == [RED, BLUE]

    @pytest.mark.parametrize("transparency", [1, b"\xff\x00"], ids=["one index", "alpha table"])
    def test_palette_with_transparency_lies_on_white(self, tmp_path: Path, transparency: int | bytes) -> None:
        image = Image.new("P", (2, 1))
        image.putpalette([*RED, *BLUE])
        image.putpixel((1, 0), 1)
        image.save(tmp_path / "palette.png", transparency=transparency)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert [pixel(tmp_path / "palette.png", x) for x in (0, 1)] == [RED, WHITE]

    @pytest.mark.parametrize(
        ("mode", "colour", "expected"),
        [
            ("RGBA", (255, 0, 0, 0), WHITE),
            ("RGBA", (255, 0, 0, 255), RED),
            ("RGBA", (0, 0, 0, 128), (127, 127, 127)),
            ("LA", (0, 0), WHITE),
            ("LA", (40, 255), (40, 40, 40)),
        ],
    )
    def test_alpha_lies_on_white(
        self, tmp_path: Path, mode: str, colour: tuple[int, ...], expected: tuple[int, ...]
    ) -> None:
        Image.new(mode, (2, 2), colour).save(tmp_path / "alpha.png")
        assert pixel(tmp_path / "alpha.png") == expected

    def test_one_bit(self, tmp_path: Path) -> None:
        Image.fromarray(np.array([[True, False]])).save(tmp_path / "bit.png")
        assert [pixel(tmp_path / "bit.png", x) for x in (0, 1)] == [WHITE, (0, 0, 0)]

    def test_float_tiff(self, tmp_path: Path) -> None:
        Image.fromarray(np.array([[0.0, 0.5, 1.0]], dtype=np.float32)).save(tmp_path / "float.tif")
        assert [pixel(tmp_path / "float.tif", x)[0] for x in range(3)] == [0, 128, 255]

    def test_float_tiff_outside_of_0_to_1(self, tmp_path: Path) -> None:
        Image.fromarray(np.array([[0.0, 255.0]], dtype=np.float32)).save(tmp_path / "float.tif")
        sentence = refusal(tmp_path / "float.tif")
        assert "holds floats from 0 to 255; scale them to [0, 1]" in sentence
        assert "float.tif" in sentence

    def test_first_frame_of_several(self, tmp_path: Path) -> None:
        for suffix in ("gif", "tif", "webp"):
            path = tmp_path / f"frames.{suffix}"
            frames = [Image.new("RGB", (4, 4), colour) for colour in (RED, BLUE)]
            frames[0].save(path, save_all=True, append_images=frames[1:])
            assert np.allclose(pixel(path), RED, atol=3)

    @pytest.mark.parametrize("suffix", ["jpg", "png", "tif", "webp"])
    def test_exif_orientation_6_is_turned_upright(self, tmp_path: Path, suffix: str) -> None:
        # A portrait photo with a red top edge, stored lying on its left side.
        upright = np.full((16, 8, 3), 255, np.uint8)
        upright[:8] = RED
        stored = Image.fromarray(upright).transpose(Image.Transpose.ROTATE_90)
        exif = Image.Exif()
        exif[0x0112] = 6
        stored.save(tmp_path / f"phone.{suffix}", exif=exif)
        image = read_image(tmp_path / f"phone.{suffix}")
        assert image.size == (8, 16)
        assert np.allclose(pixel(image, 4, 1), RED, atol=12)
        assert np.allclose(pixel(image, 4, 14), WHITE, atol=12)
        assert read_image(image).size == (8, 16), "reading it again must not turn it again"

    def test_broken_exif_does_not_matter(self, tmp_path: Path) -> None:
        Image.new("RGB", (4, 4), BLUE).save(tmp_path / "exif.png", exif=b"Exif\0\0II*\0\xff\xff\xff\xff")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert pixel(tmp_path / "exif.png") == BLUE

    def test_20000_pixels_wide(self, tmp_path: Path) -> None:
        Image.new("L", (20_000, 40), 9).save(tmp_path / "wide.png")
        assert read_image(tmp_path / "wide.png").size == (20_000, 40)

    @pytest.mark.parametrize("suffix", ["png", "tif"])
    def test_large_images_bring_no_warning_of_pillow(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
    ) -> None:
        Image.new("L", (300, 300)).save(tmp_path / f"large.{suffix}")
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10_000)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            read_image(tmp_path / f"large.{suffix}")
        assert Image.MAX_IMAGE_PIXELS == 10_000, "other code of the process keeps Pillow's limit"

    def test_pillows_limit_comes_back_after_concurrent_reading(self, tmp_path: Path) -> None:
        Image.new("L", (64, 64)).save(tmp_path / "a.png")
        before = Image.MAX_IMAGE_PIXELS
        threads = [threading.Thread(target=lambda: [read_image(tmp_path / "a.png") for _ in range(20)]) for _ in "abcd"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert before is not None
        assert before == Image.MAX_IMAGE_PIXELS


class TestArraysAndTensors:
    @pytest.mark.parametrize(
        ("array", "expected"),
        [
            (np.full((2, 3), 7, np.uint8), (7, 7, 7)),
            (np.full((2, 3, 1), 7, np.uint8), (7, 7, 7)),
            (np.full((2, 3, 3), (1, 2, 3), np.uint8), (1, 2, 3)),
            (np.full((2, 3, 4), (255, 0, 0, 255), np.uint8), RED),
            (np.full((2, 3, 4), (0, 0, 0, 0), np.uint8), WHITE),
            (np.full((2, 3), 65535, np.uint16), WHITE),
            (np.full((2, 3, 3), 32768, ">u2"), (128, 128, 128)),
            (np.full((2, 3), True), WHITE),
            (np.full((2, 3, 3), (1.0, 0.5, 0.0), np.float64), (255, 128, 0)),
            (np.full((2, 3), 0.5, np.float16), (128, 128, 128)),
            (np.full((2, 3, 3), 1 + 1e-6, np.float32), WHITE),
        ],
    )
    def test_arrays(self, array: Array, expected: tuple[int, ...]) -> None:
        assert read_image(array).size == (3, 2)
        assert pixel(array) == expected

    def test_strided_views(self) -> None:
        array = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
        assert pixel(array[:, ::-1, ::-1]) == (11, 10, 9)

    @pytest.mark.parametrize(
        ("array", "sentence"),
        [
            (np.zeros((3, 8, 8)), r"channels first; give \(H, W, channels\), as array.transpose\(1, 2, 0\) makes it"),
            (np.zeros((8, 8, 2)), r"is not one image; give \(H, W\), "),
            (np.zeros((1, 8, 8, 3)), r"is not one image; give \(H, W\), "),
            (np.zeros((0, 8), np.uint8), r"has no pixels \(8 x 0\)"),
            (np.full((8, 8), np.nan), "holds NaN or infinite values; replace them"),
            (np.full((8, 8), np.inf), "holds NaN or infinite values; replace them"),
            (np.full((8, 8), -0.5), "holds floats from -0.5 to -0.5; scale them"),
            (np.full((8, 8), 255.0), "holds floats from 255 to 255; scale them"),
            (np.zeros((8, 8), np.int64), "holds int64; convert it to uint8"),
            (np.full((8, 8), "x"), "convert it to uint8"),
        ],
    )
    def test_refused_arrays(self, array: Array, sentence: str) -> None:
        assert re.search(sentence, refusal(array))
        assert str(array.shape) in refusal(array)

    def test_tensors(self) -> None:
        torch = pytest.importorskip("torch")
        assert pixel(torch.tensor([1.0, 0.5, 0.0]).view(3, 1, 1).expand(3, 2, 4)) == (255, 128, 0)
        assert pixel(torch.full((1, 2, 4), 9, dtype=torch.uint8)) == (9, 9, 9)
        assert pixel(torch.ones(3, 2, 4, dtype=torch.bfloat16, requires_grad=True)) == WHITE
        assert read_image(torch.zeros(3, 2, 4)).size == (4, 2)

    def test_refused_tensors(self) -> None:
        torch = pytest.importorskip("torch")
        assert "is a batch; give its images one by one" in refusal(torch.zeros(2, 3, 8, 8))
        assert "as tensor.permute(2, 0, 1) makes it" in refusal(torch.zeros(8, 8, 3))
        assert "holds NaN" in refusal(torch.full((3, 8, 8), float("nan")))
        assert "holds int64" in refusal(torch.zeros(3, 8, 8, dtype=torch.int64))

    def test_something_else(self) -> None:
        assert refusal(None).startswith("An image cannot be made from NoneType; give a path")


class TestBadFiles:
    def test_missing(self, tmp_path: Path) -> None:
        path = tmp_path / "no.png"
        assert refusal(path) == f"There is no file '{path}'; check the path."

    def test_folder(self, tmp_path: Path) -> None:
        assert refusal(tmp_path) == f"'{tmp_path}' is a folder, not an image; name a file in it."

    def test_zero_bytes(self, tmp_path: Path) -> None:
        path = tmp_path / "zero.png"
        path.touch()
        assert refusal(path) == f"The file '{path}' is empty (0 bytes); copy or export it again."

    def test_text_with_the_suffix_of_an_image(self, tmp_path: Path) -> None:
        path = tmp_path / "text.png"
        path.write_text("not an image")
        assert refusal(path).startswith(f"'{path}' is not an image that can be read; save it as PNG")

    @pytest.mark.parametrize("suffix", ["jpg", "png", "tif", "bmp", "webp", "gif"])
    def test_truncated(self, tmp_path: Path, suffix: str) -> None:
        path = tmp_path / f"cut.{suffix}"
        Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)).save(path)
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        sentence = refusal(path)
        assert str(path) in sentence
        assert "is cut off or damaged; copy or export it again" in sentence or "is not an image" in sentence

    def test_truncated_jpeg_says_so(self, tmp_path: Path) -> None:
        path = tmp_path / "cut.jpg"
        Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)).save(path)
        path.write_bytes(path.read_bytes()[:2000])
        assert refusal(path) == f"'{path}' is cut off or damaged; copy or export it again."

    def test_name_that_no_file_can_have(self) -> None:
        assert "check" in refusal("a\0b.png")
        assert "check" in refusal("x" * 5000 + ".png")

    def test_more_than_500_megapixels(self, tmp_path: Path) -> None:
        # A header is enough: the size is checked before any pixel is decoded.
        path = tmp_path / "huge.ppm"
        path.write_bytes(b"P6 25000 25000 255\n" + bytes(100))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            sentence = refusal(path)
        assert "has 25000 x 25000 pixels, more than the limit of 500 megapixels; make it smaller" in sentence

    def test_integers_beyond_16_bits(self) -> None:
        assert "outside of 0 to 65535" in refusal(Image.fromarray(np.array([[70_000]], np.int32)))
        assert "outside of 0 to 65535" in refusal(Image.fromarray(np.array([[-1]], np.int32)))


class TestToInput:
    def test_resizes_to_height_and_width(self) -> None:
        array = to_input(Image.new("RGB", (30, 10), BLUE), (14, 28))
        assert array.shape == (14, 28, 3)
        assert array.dtype == np.uint8
        assert (array == BLUE).all()

    def test_is_bicubic_with_antialiasing(self) -> None:
        image = Image.fromarray(np.random.default_rng(0).integers(0, 255, (40, 50, 3), np.uint8))
        assert np.array_equal(to_input(image, (20, 20)), np.asarray(image.resize((20, 20), Image.Resampling.BICUBIC)))

    def test_an_image_of_that_size_is_copied(self) -> None:
        image = Image.fromarray(np.random.default_rng(0).integers(0, 255, (6, 8, 3), np.uint8))
        array = to_input(image, (6, 8))
        assert np.array_equal(array, np.asarray(image))
        array[:] = 0
        assert np.asarray(image).any()

    def test_one_pixel_and_very_wide(self) -> None:
        assert to_input(Image.new("RGB", (1, 1), RED), (28, 28)).reshape(-1, 3).min(0).tolist() == list(RED)
        assert to_input(Image.new("RGB", (5000, 2), RED), (28, 28)).shape == (28, 28, 3)


class TestFindImages:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        for name in ("b.png", "a.JPG", "sub/c.TIFF", "sub/deep/d.webp", ".hidden.png", ".git/e.png", "notes.txt"):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).touch()
        return tmp_path

    def test_folders_are_searched_in_sorted_order(self, folder: Path) -> None:
        names = [path.relative_to(folder).as_posix() for path in find_images([folder])]
        assert names == ["a.JPG", "b.png", "sub/c.TIFF", "sub/deep/d.webp"]

    def test_files_keep_their_order_and_come_once(self, folder: Path) -> None:
        paths = find_images([folder / "notes.txt", str(folder / "b.png"), folder, folder / "sub" / ".." / "b.png"])
        assert [path.name for path in paths] == ["notes.txt", "b.png", "a.JPG", "c.TIFF", "d.webp"]

    def test_a_single_path(self, folder: Path) -> None:
        assert find_images(str(folder / "b.png")) == [folder / "b.png"]

    def test_missing_path(self, folder: Path) -> None:
        with pytest.raises(KeepADError, match=r"^There is no file or folder '.*gone'; check the path\.$"):
            find_images([folder, folder / "gone"])

    def test_empty_folder_and_folder_without_images(self, tmp_path: Path) -> None:
        with pytest.raises(KeepADError, match=r"^The folder '.*' holds no image; put PNG.* or name another folder\.$"):
            find_images([tmp_path])
        (tmp_path / "notes.txt").touch()
        with pytest.raises(KeepADError, match="holds no image"):
            find_images([tmp_path])

    def test_no_path(self) -> None:
        with pytest.raises(KeepADError, match=r"^No image was given; name at least one file or folder\.$"):
            find_images([])


def test_data_metrics_demo_and_files_do_not_import_torch() -> None:
    modules = ["cli.data", "data", "demo", "files", "images", "metrics", "prefetch"]
    code = f"import sys, {', '.join(f'keepad.{name}' for name in modules)}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
