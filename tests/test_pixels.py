"""The pixel router: its certificate, pixel by pixel, and what the rest of a pass makes of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from keepad.budgets import on_lattice
from keepad.model import KeepAD
from keepad.pixels import thin
from keepad.prediction import Certificate
from keepad.presets import POINTS, PixelBudget
from keepad.routing import standardised

PATCH = (4, 5)


def patches(pixels: np.ndarray) -> np.ndarray:
    """(N, pixels of a patch, 3)."""
    height, width, _ = pixels.shape
    cut = pixels.reshape(height // PATCH[0], PATCH[0], width // PATCH[1], PATCH[1], 3)
    return cut.transpose(0, 2, 1, 3, 4).reshape(-1, PATCH[0] * PATCH[1], 3).astype(int)


@st.composite
def images(draw) -> np.ndarray:
    """Flat areas, noise of any strength, gradients, and a few pixels that stick out."""
    rows, columns = draw(st.integers(1, 9)), draw(st.integers(1, 9))
    random = np.random.default_rng(draw(st.integers(0, 2**31)))
    height, width = rows * PATCH[0], columns * PATCH[1]
    base = np.full((height, width, 3), draw(st.integers(0, 255)), dtype=float)
    if draw(st.booleans()):
        base[: height // 2] = draw(st.integers(0, 255))
    base += np.linspace(0, draw(st.integers(0, 30)), width)[None, :, None]
    base += random.normal(0, draw(st.sampled_from([0.0, 0.5, 2.0, 20.0])), base.shape)
    pixels = np.clip(base, 0, 255).astype(np.uint8)
    for _ in range(draw(st.integers(0, 3))):
        pixels[random.integers(height), random.integers(width), random.integers(3)] = random.integers(256)
    return pixels


budgets = st.builds(
    PixelBudget,
    tolerance=st.sampled_from([0, 4, 8, 24]),
    noise=st.sampled_from([0.0, 1.0]),
    blocks=st.sampled_from([(2,), (4, 2), (3,), (8, 4, 2)]),
)


@settings(deadline=None, max_examples=200)
@given(images(), budgets)
def test_the_certificate_holds_pixel_by_pixel(pixels, budget):
    found = thin(pixels, PATCH, budget)
    cells = patches(pixels)
    certificate = Certificate.of(found)
    assert sorted([*found.index.tolist(), *certificate.dropped.tolist()]) == list(range(len(cells)))
    assert set(certificate.kept.tolist()) <= set(found.index.tolist())
    for dropped, kept, bound in zip(certificate.dropped, certificate.kept, certificate.bound, strict=True):
        difference = np.abs(cells[dropped][:, None] - cells[kept][None])
        assert difference.max() == bound  # the bound is true, and no looser than it must be
        if not budget.noise:
            assert bound <= budget.tolerance
    assert (found.bound[found.index] == 0).all()


@settings(deadline=None, max_examples=200)
@given(images(), st.data())
def test_a_single_pixel_above_the_bound_is_never_inside_a_dropped_patch(pixels, data):
    budget = data.draw(budgets.filter(lambda one: not one.noise))
    row, column = data.draw(st.integers(0, pixels.shape[0] - 1)), data.draw(st.integers(0, pixels.shape[1] - 1))
    channel = data.draw(st.integers(0, 2))
    cell = row // PATCH[0] * (pixels.shape[1] // PATCH[1]) + column // PATCH[1]
    around = patches(pixels)[cell][:, channel]
    step = int(budget.tolerance) + 1
    value = around.max() + step if around.max() + step <= 255 else around.min() - step
    if value < 0:
        return  # the patch spans so much that nothing stands out of it
    pixels[row, column, channel] = value
    assert cell in thin(pixels, PATCH, budget).index


def test_one_patch_of_a_uniform_block_stays_and_textures_stay_whole():
    flat = np.full((8 * 4, 8 * 5, 3), 77, dtype=np.uint8)
    assert thin(flat, PATCH, PixelBudget(blocks=(2,))).index.tolist() == [
        row * 8 + column for row in (0, 2, 4, 6) for column in (0, 2, 4, 6)
    ]
    assert thin(flat, PATCH, PixelBudget(blocks=(4, 2))).index.tolist() == [9, 13, 41, 45]
    noise = np.random.default_rng(0).integers(0, 256, flat.shape, dtype=np.uint8)
    assert len(thin(noise, PATCH, PixelBudget()).index) == 64


def test_a_defect_keeps_its_block_and_leaves_the_others_thinned():
    pixels = np.full((8 * 4, 8 * 5, 3), 77, dtype=np.uint8)
    pixels[13, 17, 1] = 100
    found = thin(pixels, PATCH, PixelBudget(tolerance=8, blocks=(2,)))
    assert len(found.index) == 15 + 4
    assert 3 * 8 + 3 in found.index


def test_noise_of_the_sensor_widens_the_tolerance_by_what_the_quietest_patches_show():
    random = np.random.default_rng(1)
    pixels = (100 + random.integers(-5, 6, (40, 50, 3))).astype(np.uint8)
    assert len(thin(pixels, PATCH, PixelBudget(tolerance=4)).index) == 100
    found = thin(pixels, PATCH, PixelBudget(tolerance=4, noise=1))
    assert len(found.index) < 50
    assert found.bound.max() <= 14


@pytest.fixture
def half_flat(tiny: KeepAD) -> np.ndarray:
    """Two images at input size whose flat parts differ in size, so that the batch is ragged."""
    random = np.random.default_rng(4)
    pixels = random.integers(0, 256, (2, *tiny.image_size, 3), dtype=np.uint8)
    pixels[0, :64] = 90
    pixels[1, :, :96] = 200
    return pixels


@pytest.mark.parametrize("name", ["dense", "prune30", "prune70"])
def test_a_pass_over_thinned_images_is_defined_on_the_whole_grid(tiny, half_flat, name):
    point = replace(POINTS[name], pixels=PixelBudget())
    found = tiny.find(half_flat, [point])[name]
    for finding in found:
        assert finding.thinned is not None
        assert len(finding.thinned.index) < 99
        assert set(finding.survivors.tolist()) <= set(finding.survivors_shallow.tolist())
        assert set(finding.survivors_shallow.tolist()) <= set(finding.thinned.index.tolist())
        values = finding.patch_map.reshape(-1)
        np.testing.assert_array_equal(values, values[finding.thinned.owner])
    alone = [tiny.find(one[None], [point])[name][0] for one in half_flat]
    for a, b in zip(found, alone, strict=True):
        assert a.survivors.tolist() == b.survivors.tolist()
        np.testing.assert_allclose(a.pixel_map, b.pixel_map, atol=1e-5)


def test_an_image_without_uniform_blocks_passes_as_if_the_router_were_not_there(tiny):
    pixels = np.random.default_rng(6).integers(0, 256, (1, *tiny.image_size, 3), dtype=np.uint8)
    point = POINTS["prune70"]
    with_it = tiny.find(pixels, [replace(point, pixels=PixelBudget())])["prune70"][0]
    without = tiny.find(pixels, [replace(point, pixels=None)])["prune70"][0]
    assert len(with_it.thinned.index) == 99
    assert with_it.survivors.tolist() == without.survivors.tolist()
    np.testing.assert_allclose(with_it.pixel_map, without.pixel_map, atol=1e-4)


def test_embedding_some_patches_is_embedding_all_and_dropping_the_rest(tiny):
    random = torch.Generator().manual_seed(3)
    images = torch.rand(2, 3, *tiny.image_size, generator=random)
    live = [torch.arange(0, 99, 2), torch.arange(5, 60)]
    some, every = tiny.backbone.embed_some(images, live), tiny.backbone.embed(images).gather(live)
    assert some.counts == every.counts
    assert torch.equal(some.index, every.index)
    torch.testing.assert_close(some.x, every.x, atol=1e-5, rtol=1e-5)


def test_whom_a_patch_stands_for_is_counted_once_each(half_flat, tiny):
    found = thin(half_flat[0], tiny.backbone.patch, PixelBudget())
    assert found.mass.sum() == 99
    assert found.mass.max() == 16
    assert not found.whole
    landmarks = found.landmarks(tiny.grid)
    on_them = set(found.index[landmarks].tolist())
    assert on_them == {int(found.owner[cell]) for cell in range(99) if on_lattice(np.array([cell]), tiny.grid)[0]}


def test_attention_hears_a_stand_in_as_often_as_there_are_patches_behind_it(tiny):
    """Rows that are told three times and one row of mass three are the same to everyone."""
    backbone, generator = tiny.backbone, torch.Generator().manual_seed(8)
    x = torch.randn(backbone.prefix + 4, backbone.width, generator=generator)
    mass = torch.tensor([1.0, 3.0, 1.0, 2.0])
    repeated = torch.repeat_interleave(torch.arange(4), mass.long())
    some = replace(backbone.tokens_at(x, torch.arange(4), tiny.grid), mass=mass)
    rows = torch.cat([torch.arange(backbone.prefix), repeated + backbone.prefix])
    every = backbone.tokens_at(x[rows], torch.arange(7), tiny.grid)
    heard, told = backbone.run(some, 1, 3), backbone.run(every, 1, 3)
    torch.testing.assert_close(heard.patches()[repeated], told.patches(), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(heard.cls(), told.cls(), atol=1e-5, rtol=1e-5)
    silent = backbone.run(replace(some, mass=None), 1, 3)
    assert not torch.allclose(silent.cls(), told.cls(), atol=1e-3)


def test_statistics_of_the_shallow_router_count_stand_ins_by_their_mass(tiny):
    generator = torch.Generator().manual_seed(9)
    values, mass = torch.randn(5, generator=generator), torch.tensor([1.0, 4.0, 1.0, 2.0, 16.0])
    repeated = torch.repeat_interleave(torch.arange(5), mass.long())
    torch.testing.assert_close(standardised(values, mass)[repeated], standardised(values[repeated]))
    x = torch.randn(5, tiny.backbone.width, generator=generator)
    visual = tiny.deep.visual
    torch.testing.assert_close(visual(x, mass)[repeated], visual(x[repeated]), atol=1e-5, rtol=1e-5)


def test_a_batch_that_mixes_thinned_and_whole_images_keeps_each_ones_mass(tiny, half_flat):
    """Ragged batches carry the mass image by image, through `gather` and `select` too."""
    images = torch.from_numpy(half_flat).permute(0, 3, 1, 2).float() / 255
    thinned = [thin(one, tiny.backbone.patch, PixelBudget()) for one in half_flat]
    tokens = tiny.prefix(images, None, thinned)
    for place, one in enumerate(thinned):
        alone = tiny.prefix(images[place][None], None, [one])
        torch.testing.assert_close(tokens.select(place).x, alone.x, atol=1e-5, rtol=1e-5)
        assert tokens.select(place).mass.tolist() == one.mass.tolist()
    every = torch.arange(tokens.counts[1])
    kept = tokens.gather([torch.tensor([0, 2]), every])  # no one stands for what the first image loses
    assert kept.mass.tolist() == [1, 1, *thinned[1].mass]
    assert tokens.gather([torch.tensor([0, 2]), every[1:]]).mass is None


def test_where_the_pixels_leave_less_than_a_budget_nothing_else_is_dropped(tiny, half_flat):
    """Budgets are shares of the grid: what the pixel router saves is not saved a second time on the object."""
    flat = half_flat.copy()
    flat[:, :128] = 90
    point = replace(POINTS["prune30"], pixels=PixelBudget())
    for finding in tiny.find(flat, [point])["prune30"]:
        assert len(finding.thinned.index) < 0.3 * 99
        assert finding.survivors.tolist() == finding.thinned.index.tolist()
