"""The feature cache: features equal the backbone's outputs, and the least recently used are dropped first."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

from keepad.backbone import build_backbone
from keepad.dissimilarity import dissimilarity
from keepad.errors import KeepADError
from keepad.network import Network
from keepad.training.feature_cache import FeatureCache, clear, features_folder, image_key, size_of

DIGEST, OTHER = "d1" * 32, "e2" * 32
LAYERS = (3, 7)
GRID = (2, 3)
# 7 tokens of 192 values and 2 bytes; a file has 128 bytes of header besides.
FILE = 7 * 192 * 2 + 128
IMAGE = len(LAYERS) * FILE


def images(count: int) -> dict[str, np.ndarray]:
    """Random images for a 2x3 grid, by key."""
    random = np.random.default_rng(0)
    drawn = [random.integers(0, 255, (GRID[0] * 16, GRID[1] * 16, 3), dtype=np.uint8) for _ in range(count)]
    return {image_key(pixels): pixels for pixels in drawn}


def filled(cache: FeatureCache, drawn: dict[str, np.ndarray]) -> FeatureCache:
    for key, pixels in drawn.items():
        cache.add(key, pixels, LAYERS)
    return cache


def age(folder: Path, *keys: str) -> None:
    """Pretend that images were used in this order, long ago."""
    for seconds, key in enumerate(keys):
        for image in folder.glob(f"*/*/{key}"):
            os.utime(image, (1000 + seconds, 1000 + seconds))


@pytest.fixture
def cache(tiny: Network, tmp_path: Path) -> FeatureCache:
    return FeatureCache(tiny.backbone, DIGEST, tmp_path)


# --- keys -------------------------------------------------------------------------------------------------------------


def test_a_key_is_the_pixels_and_their_shape() -> None:
    pixels = np.zeros((4, 6, 3), dtype=np.uint8)
    assert image_key(pixels) == image_key(pixels.copy())
    assert image_key(pixels) == image_key(np.zeros((8, 6, 3), dtype=np.uint8)[::2])  # however it lies in memory
    changed = pixels.copy()
    changed[3, 5, 2] = 1
    others = [changed, pixels.reshape(6, 4, 3), pixels.astype(np.int8)]
    assert len({image_key(image) for image in (pixels, *others)}) == 4
    assert len(image_key(pixels)) == 32


# --- features ---------------------------------------------------------------------------------------------------------


def test_cached_features_are_the_outputs_of_the_blocks(cache: FeatureCache, tiny: Network) -> None:
    ((key, pixels),) = images(1).items()
    cache.add(key, pixels, LAYERS)
    loaded = cache.load(key, LAYERS)
    assert loaded.shape == (2, 1 + GRID[0] * GRID[1], tiny.backbone.width)
    assert loaded.dtype == torch.float16
    image = torch.from_numpy(pixels).permute(2, 0, 1)[None].float() / 255
    with torch.inference_mode():
        embedded = tiny.backbone.embed(image)
        for layer, rows in zip(LAYERS, loaded, strict=True):
            # CLS first, then the patches: how a ViT without registers has them anyway.
            own = tiny.backbone.run(embedded, 1, layer).x
            torch.testing.assert_close(rows.float(), own, rtol=2**-11, atol=2**-24)


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "vit_small_patch14_reg4_dinov2", "vit_base_patch32_plus_256"])
def test_a_pass_can_continue_from_cached_tokens(name: str, tmp_path: Path) -> None:
    backbone, _ = build_backbone(name, seed=1)
    size = tuple(2 * side for side in backbone.patch)
    pixels = np.random.default_rng(1).integers(0, 255, (*size, 3), dtype=np.uint8)
    cache = FeatureCache(backbone, DIGEST, tmp_path)
    cache.add("ab" * 16, pixels, (3,))
    tokens = backbone.embed(torch.from_numpy(pixels).permute(2, 0, 1)[None].float() / 255)
    kept = backbone.tokens_of(cache.load_all("ab" * 16, 3).float()[None], (2, 2))
    whole, later = backbone.run(tokens, 1, 5), backbone.run(kept, 4, 5)
    torch.testing.assert_close(later.x, whole.x, atol=0.05, rtol=0.05)
    assert cache.load("ab" * 16, (3,)).shape == (1, 5, backbone.width)


def test_layers_are_returned_in_the_requested_order(cache: FeatureCache) -> None:
    ((key, pixels),) = images(1).items()
    cache.add(key, pixels, LAYERS)
    upward = cache.load(key, LAYERS)
    cache.add(key, pixels, LAYERS[::-1])
    assert torch.equal(cache.load(key, LAYERS[::-1]), upward.flip(0))
    assert torch.equal(cache.load(key, LAYERS[:1])[0], cache.load(key, LAYERS)[0])


def test_dissimilarity_is_that_of_the_cached_features_and_is_stored(cache: FeatureCache, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    pixels, grid = random.integers(0, 255, (6 * 16, 7 * 16, 3), dtype=np.uint8), (6, 7)
    key = image_key(pixels)
    cache.add(key, pixels, LAYERS)
    stored = cache.dissimilarity(key, LAYERS, grid)
    assert stored.shape == (2, 42)
    for rows, values in zip(cache.load(key, LAYERS), stored, strict=True):
        torch.testing.assert_close(values, dissimilarity(rows[1:].float(), torch.arange(42), grid))
    for layer in LAYERS:
        next(tmp_path.rglob(f"{layer:02d}.npy")).unlink()
    assert torch.equal(cache.dissimilarity(key, LAYERS, grid), stored)


def test_missing_are_those_of_which_any_layer_is_not_there(cache: FeatureCache) -> None:
    drawn = images(3)
    a, b, c = drawn
    cache.add(a, drawn[a], LAYERS)
    cache.add(b, drawn[b], LAYERS[:1])
    assert cache.missing([c, a, b, c], LAYERS) == [c, b]
    assert cache.missing([a, b, c], LAYERS[:1]) == [c]
    assert cache.missing([], LAYERS) == []


def test_other_weights_have_other_features(cache: FeatureCache, tiny: Network, tmp_path: Path) -> None:
    drawn = images(1)
    ((key, pixels),) = drawn.items()
    filled(cache, drawn)
    other = FeatureCache(tiny.backbone, OTHER, tmp_path)
    assert other.missing(drawn, LAYERS) == [key]
    with pytest.raises(KeepADError, match="gone or damaged"):
        other.load(key, LAYERS)
    # Neither cache loads features of the other.
    other.add(key, 255 - pixels, LAYERS)
    assert not torch.equal(cache.load(key, LAYERS), other.load(key, LAYERS))
    assert size_of(tmp_path).images == 2


@pytest.mark.parametrize("left", [0, 40, 128, 200])
def test_a_file_cut_off_is_one_sentence(cache: FeatureCache, tmp_path: Path, left: int) -> None:
    (key,) = drawn = images(1)
    filled(cache, drawn)
    file = next(tmp_path.rglob("07.npy"))
    file.write_bytes(file.read_bytes()[:left])
    with pytest.raises(KeepADError, match=r"gone or damaged; remove that folder"):
        cache.load(key, LAYERS)
    assert cache.load(key, LAYERS[:1]).shape[0] == 1  # the layer that is whole


@contextmanager
def files_no_larger_than(size: int) -> Iterator[None]:
    """A disk that is full after so many bytes of a file."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize(
    "size",
    [
        100,
        FILE - 100,
    ],
)
def test_a_full_disk_is_one_sentence_and_leaves_no_half_of_a_file(cache: FeatureCache, size: int) -> None:
    ((key, pixels),) = images(1).items()
    with files_no_larger_than(size), pytest.raises(KeepADError, match="File too large; what is there is kept"):
        cache.add(key, pixels, LAYERS)
    assert cache.missing([key], LAYERS[:1]) == [key]


# --- size -------------------------------------------------------------------------------------------------------------


def test_size_counts_images_and_bytes_of_all_backbones(cache: FeatureCache, tiny: Network, tmp_path: Path) -> None:
    assert size_of(tmp_path / "not made yet").images == 0
    filled(cache, images(3))
    filled(FeatureCache(tiny.backbone, OTHER, tmp_path), images(1))
    size = size_of(tmp_path)
    assert (size.images, size.bytes) == (4, 4 * IMAGE)


def test_the_usual_folder_is_the_users_cache(tiny: Network, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEEPAD_CACHE", str(tmp_path))
    filled(FeatureCache(tiny.backbone, DIGEST), images(1))
    assert features_folder() == tmp_path / "features"
    assert size_of().images == size_of(tmp_path / "features").images == 1
    assert clear().images == 1
    assert size_of().images == 0


def test_clearing_drops_features_and_nothing_else(cache: FeatureCache, tiny: Network, tmp_path: Path) -> None:
    filled(cache, images(2))
    filled(FeatureCache(tiny.backbone, OTHER, tmp_path), images(1))
    own = [tmp_path / name for name in ("notes.txt", "mine/12/34/note.txt", "mine/ab/abc/note.txt", "a/b/c/d/e.npy")]
    for path in own:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
    before = size_of(tmp_path)
    assert clear(tmp_path) == before
    assert [path for path in tmp_path.rglob("*") if path.is_file() and path not in own] == []
    assert all(path.read_text() == "mine" for path in own)
    assert clear(tmp_path).images == 0


def test_a_name_of_other_characters_is_no_image(tmp_path: Path) -> None:
    own = tmp_path / "thesis" / "Ch" / "Chapter 3 - final version (good)" / "text.md"
    assert len(own.parent.name) == 32
    own.parent.mkdir(parents=True)
    own.write_text("mine")
    clear(tmp_path)
    assert own.is_file()


# --- limit ------------------------------------------------------------------------------------------------------------


def test_nothing_is_dropped_while_there_is_room(cache: FeatureCache, tmp_path: Path) -> None:
    drawn = images(4)
    filled(cache, drawn)
    cache.make_room(drawn, LAYERS, GRID)
    assert size_of(tmp_path).images == 4


def test_images_used_longest_ago_make_room(tiny: Network, tmp_path: Path) -> None:
    drawn = images(6)
    a, b, c, d, new, newer = drawn
    cache = FeatureCache(tiny.backbone, DIGEST, tmp_path, limit=4 * IMAGE)
    filled(cache, {key: drawn[key] for key in (a, b, c, d)})
    age(tmp_path, d, b, c, a)
    cache.touch([d])  # used again, so that b and c are next
    cache.make_room([new, newer], LAYERS, GRID)
    assert cache.missing([a, b, c, d], LAYERS) == [b, c]
    filled(cache, {key: drawn[key] for key in (new, newer)})
    assert size_of(tmp_path).bytes <= 4 * IMAGE


def test_wanted_images_stay_however_old(tiny: Network, tmp_path: Path) -> None:
    drawn = images(4)
    a, b, c, new = drawn
    cache = FeatureCache(tiny.backbone, DIGEST, tmp_path, limit=3 * IMAGE)
    filled(cache, {key: drawn[key] for key in (a, b, c)})
    age(tmp_path, a, b, c)
    cache.make_room([new, b, a], LAYERS, GRID)
    assert cache.missing([a, b, c], LAYERS) == [c]


def test_the_same_image_of_other_weights_is_another_one(tiny: Network, tmp_path: Path) -> None:
    drawn = images(1)
    cache, other = (FeatureCache(tiny.backbone, digest, tmp_path, limit=IMAGE) for digest in (DIGEST, OTHER))
    filled(other, drawn)
    cache.make_room(drawn, LAYERS, GRID)
    assert other.missing(drawn, LAYERS) == list(drawn)


def test_more_than_the_limit_is_refused_and_nothing_dropped(tiny: Network, tmp_path: Path) -> None:
    drawn = images(3)
    a, b, c = drawn
    cache = FeatureCache(tiny.backbone, DIGEST, tmp_path, limit=IMAGE)
    filled(cache, {a: drawn[a]})
    with pytest.raises(KeepADError, match=r"the features of 2 images need .* more than the cache may hold"):
        cache.make_room([b, c, b], LAYERS, GRID)
    assert cache.missing([a], LAYERS) == []


def test_more_than_the_disk_has_is_refused(tiny: Network, tmp_path: Path) -> None:
    cache = FeatureCache(tiny.backbone, DIGEST, tmp_path, limit=10**30)
    with pytest.raises(KeepADError, match="are free there; make room or name another folder with --cache"):
        cache.make_room(["a"], LAYERS, (10**9, 10**9))


def test_a_folder_that_cannot_be_is_one_sentence(tiny: Network, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(KeepADError):
        FeatureCache(tiny.backbone, DIGEST, tmp_path / "file").make_room(["a"], LAYERS, GRID)


def test_touching_a_image_that_is_not_there_makes_nothing(cache: FeatureCache, tmp_path: Path) -> None:
    (key,) = drawn = images(1)
    filled(cache, drawn)
    cache.touch([key[:2] + "0" * 30])
    assert size_of(tmp_path).images == 1
