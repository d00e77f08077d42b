"""The pixel router: its certificate, pixel by pixel, and what the rest of a pass makes of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from keepad.arrays import Array
from keepad.errors import KeepADError
from keepad.network import Network
from keepad.prediction import Certificate
from keepad.presets import POINTS, PixelBudget
from keepad.routing.pixel import PixelRouting, route_pixels
from keepad.tokens import Merge

PATCH = (4, 5)


def patches(pixels: Array) -> Array:
    """(N, pixels of a patch, 3)."""
    height, width, _ = pixels.shape
    cut = pixels.reshape(height // PATCH[0], PATCH[0], width // PATCH[1], PATCH[1], 3)
    return cut.transpose(0, 2, 1, 3, 4).reshape(-1, PATCH[0] * PATCH[1], 3).astype(int)


@st.composite
def images(draw) -> Array:
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
    blocks=st.sampled_from(
        [((2, 0),), ((2, 24),), ((4, 8), (2, 4)), ((4, 24), (2, 24)), ((3, 8),), ((8, 24), (4, 8), (2, 4))]
    ),
    noise=st.sampled_from([0.0, 1.0]),
)


def widest(budget: PixelBudget) -> int:
    """Grey levels that no two patches may exceed."""
    return int(max(tolerance for _, tolerance in budget.blocks))


@settings(deadline=None, max_examples=200)
@given(images(), budgets)
def test_the_certificate_holds_pixel_by_pixel(pixels, budget):
    found = route_pixels(pixels, PATCH, budget)
    cells = patches(pixels)
    certificate = Certificate.of(found)
    assert sorted([*found.index.tolist(), *certificate.dropped.tolist()]) == list(range(len(cells)))
    assert set(certificate.kept.tolist()) <= set(found.index.tolist())
    for dropped, kept, bound in zip(certificate.dropped, certificate.kept, certificate.bound, strict=True):
        difference = np.abs(cells[dropped][:, None] - cells[kept][None])
        assert difference.max() == bound  # the bound is true, and no looser than it must be
        if not budget.noise:
            assert bound <= widest(budget)
    assert (found.bound[found.index] == 0).all()


@settings(deadline=None, max_examples=200)
@given(images(), st.data())
def test_a_single_pixel_above_the_bound_is_never_inside_a_dropped_patch(pixels, data):
    budget = data.draw(budgets.filter(lambda one: not one.noise))
    row, column = data.draw(st.integers(0, pixels.shape[0] - 1)), data.draw(st.integers(0, pixels.shape[1] - 1))
    channel = data.draw(st.integers(0, 2))
    cell = row // PATCH[0] * (pixels.shape[1] // PATCH[1]) + column // PATCH[1]
    around = patches(pixels)[cell][:, channel]
    step = widest(budget) + 1
    value = around.max() + step if around.max() + step <= 255 else around.min() - step
    if value < 0:
        return  # the patch spans so much that nothing stands out of it
    pixels[row, column, channel] = value
    assert cell in route_pixels(pixels, PATCH, budget).index


def test_one_patch_of_a_uniform_block_stays_and_textures_stay_whole():
    flat = np.full((8 * 4, 8 * 5, 3), 77, dtype=np.uint8)
    assert route_pixels(flat, PATCH, PixelBudget(blocks=((2, 0),))).index.tolist() == [
        row * 8 + column for row in (0, 2, 4, 6) for column in (0, 2, 4, 6)
    ]
    assert route_pixels(flat, PATCH, PixelBudget(blocks=((4, 0), (2, 0)))).index.tolist() == [9, 13, 41, 45]
    noise = np.random.default_rng(0).integers(0, 256, flat.shape, dtype=np.uint8)
    assert len(route_pixels(noise, PATCH, PixelBudget()).index) == 64


def test_a_defect_keeps_its_block_and_leaves_the_others_merged():
    pixels = np.full((8 * 4, 8 * 5, 3), 77, dtype=np.uint8)
    pixels[13, 17, 1] = 100
    found = route_pixels(pixels, PATCH, PixelBudget(blocks=((2, 8),)))
    assert len(found.index) == 15 + 4
    assert 3 * 8 + 3 in found.index


def test_blocks_of_each_size_have_a_tolerance_of_their_own():
    pixels = np.full((8 * 4, 8 * 5, 3), 77, dtype=np.uint8)
    pixels[::2, :20] += 10  # the left half is less even than the right one
    strict_in_small = route_pixels(pixels, PATCH, PixelBudget(blocks=((4, 10), (2, 4))))
    assert strict_in_small.index.tolist() == [9, 13, 41, 45]
    strict_in_large = route_pixels(pixels, PATCH, PixelBudget(blocks=((4, 4), (2, 10))))
    assert strict_in_large.index.tolist() == [0, 2, 13, 16, 18, 32, 34, 45, 48, 50]


@pytest.mark.parametrize(
    "wrong",
    [
        {"blocks": ()},
        {"blocks": ((1, 4),)},
        {"blocks": ((2, 4), (4, 4))},
        {"blocks": ((4, 4), (3, 4))},
        {"blocks": ((2, -1),)},
        {"noise": -1},
    ],
)
def test_budgets_that_make_no_sense_are_refused(wrong):
    with pytest.raises(KeepADError, match="pixel"):
        PixelBudget(**wrong)


def test_noise_of_the_sensor_widens_the_tolerance_by_what_the_quietest_patches_show():
    random = np.random.default_rng(1)
    pixels = (100 + random.integers(-5, 6, (40, 50, 3))).astype(np.uint8)
    assert len(route_pixels(pixels, PATCH, PixelBudget(((4, 4), (2, 4)))).index) == 100
    found = route_pixels(pixels, PATCH, PixelBudget(((4, 4), (2, 4)), noise=1))
    assert len(found.index) < 50
    assert found.bound.max() <= 14


@pytest.fixture
def half_flat(tiny: Network) -> Array:
    """Two images at input size whose flat parts differ in size, so that the batch is ragged."""
    random = np.random.default_rng(4)
    pixels = random.integers(0, 256, (2, *tiny.image_size, 3), dtype=np.uint8)
    pixels[0, :64] = 90
    pixels[1, :, :96] = 200
    return pixels


EVERY = [replace(POINTS[name], pixels=PixelBudget()) for name in ("dense", "prune30", "prune50", "prune70")]


@pytest.mark.parametrize("point", EVERY, ids=lambda point: point.name)
def test_a_pass_over_routed_images_is_defined_on_the_whole_grid(tiny, half_flat, point):
    results = tiny.infer(half_flat, [point])[point.name]
    for result in results:
        assert result.pixel_routing is not None
        assert len(result.pixel_routing.index) < 99
        assert set(result.survivors.tolist()) <= set(result.survivors_shallow.tolist())
        assert set(result.survivors_shallow.tolist()) <= set(result.pixel_routing.index.tolist())
    alone = [tiny.infer(one[None], [point])[point.name][0] for one in half_flat]
    for a, b in zip(results, alone, strict=True):
        assert a.survivors.tolist() == b.survivors.tolist()
        np.testing.assert_allclose(a.anomaly_map, b.anomaly_map, atol=1e-5)


class OneTokenPerCell(Network):
    """The network with a token for each cell: a copy of the token of its owner."""

    def embed(self, images: torch.Tensor, routings=None):
        tokens = super().embed(images, routings)
        (merge,) = tokens.merges
        assert merge is not None
        rows = torch.cat([torch.arange(tokens.prefix), merge.token + tokens.prefix])
        return self.backbone.tokens_at(tokens.x[rows], torch.arange(99), self.grid)


@pytest.mark.parametrize("point", EVERY, ids=lambda point: point.name)
def test_shared_tokens_give_the_results_of_one_token_per_cell(tiny, half_flat, point):
    """Sharing changes the work and nothing else: scores, maps and the cells that the routers keep are the same."""
    separate = OneTokenPerCell(
        tiny.backbone, tiny.head, tiny.shallow, tiny.deep, placement=tiny.placement, image_size=tiny.image_size
    )
    for pixels in half_flat:
        routing = route_pixels(pixels, tiny.patch, point.pixels)
        (expected,) = separate.infer(pixels[None], [point])[point.name]
        (result,) = tiny.infer(pixels[None], [point])[point.name]
        assert result.score == pytest.approx(expected.score, abs=1e-5)
        assert result.evidence == (None if expected.evidence is None else pytest.approx(expected.evidence, abs=1e-4))
        np.testing.assert_allclose(result.anomaly_map, expected.anomaly_map, atol=1e-4)
        assert result.survivors.tolist() == np.unique(routing.owner[expected.survivors]).tolist()
        assert result.survivors_shallow.tolist() == np.unique(routing.owner[expected.survivors_shallow]).tolist()
        assert len(result.survivors) < len(expected.survivors)


def test_tokens_of_cells_that_stay_while_the_patch_they_were_cut_from_goes_are_not_mixed_up():
    """Where each live cell has a token of its own again, cells and tokens may still stand in another order."""
    # Token 1 lies in cell 5 and answers for cells 0 and 5; token 0 lies in cell 2.
    merge = Merge(torch.tensor([0, 2, 5]), torch.tensor([1, 0, 1]), torch.tensor([1.0, 2.0]))
    left, needed = merge.gather(torch.tensor([0, 1]))
    assert left.one_to_one
    assert needed.tolist() == [0, 1]
    assert left.cells.tolist() == [0, 2]
    assert left.token.tolist() == [1, 0]
    assert left.size.tolist() == [1, 1]


def test_an_image_without_uniform_blocks_passes_as_if_the_router_were_not_there(tiny):
    pixels = np.random.default_rng(6).integers(0, 256, (1, *tiny.image_size, 3), dtype=np.uint8)
    point = POINTS["prune70"]
    with_it = tiny.infer(pixels, [replace(point, pixels=PixelBudget())])["prune70"][0]
    without = tiny.infer(pixels, [replace(point, pixels=None)])["prune70"][0]
    assert len(with_it.pixel_routing.index) == 99
    assert with_it.survivors.tolist() == without.survivors.tolist()
    np.testing.assert_allclose(with_it.anomaly_map, without.anomaly_map, atol=1e-4)


def test_embedding_some_patches_is_embedding_all_and_dropping_the_rest(tiny):
    random = torch.Generator().manual_seed(3)
    images = torch.rand(2, 3, *tiny.image_size, generator=random)
    live = [torch.arange(0, 99, 2), torch.arange(5, 60)]
    some, every = tiny.backbone.embed_some(images, live), tiny.backbone.embed(images).gather(live)
    assert some.counts == every.counts
    assert torch.equal(some.index, every.index)
    torch.testing.assert_close(some.x, every.x, atol=1e-5, rtol=1e-5)


def test_whom_a_patch_stands_for_is_counted_once_each(half_flat, tiny):
    found = route_pixels(half_flat[0], tiny.backbone.patch, PixelBudget())
    assert found.size.sum() == 99
    assert found.size.max() == 16
    assert not found.whole
    assert found.index[found.token].tolist() == found.owner.tolist()


def test_attention_is_proportional_to_the_size_of_a_token(tiny):
    """A row that is repeated three times and one row of size three give the same attention."""
    backbone, generator = tiny.backbone, torch.Generator().manual_seed(8)
    x = torch.randn(backbone.prefix + 4, backbone.width, generator=generator)
    size = torch.tensor([1.0, 3.0, 1.0, 2.0])
    repeated = torch.repeat_interleave(torch.arange(4), size.long())
    merge = Merge(torch.arange(7), repeated, size)
    some = replace(backbone.tokens_at(x, torch.arange(4), tiny.grid), merges=(merge,))
    rows = torch.cat([torch.arange(backbone.prefix), repeated + backbone.prefix])
    every = backbone.tokens_at(x[rows], torch.arange(7), tiny.grid)
    merged, repeated_rows = backbone.run(some, 1, 3), backbone.run(every, 1, 3)
    torch.testing.assert_close(merged.patches()[repeated], repeated_rows.patches(), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(merged.cls(), repeated_rows.cls(), atol=1e-5, rtol=1e-5)
    unweighted = backbone.run(replace(some, merges=()), 1, 3)
    assert not torch.allclose(unweighted.cls(), repeated_rows.cls(), atol=1e-3)


def test_selectors_count_every_cell(tiny):
    """Scores, risks and dissimilarities of cells are what they would be with one token per cell."""
    generator = torch.Generator().manual_seed(9)
    cells, grid = torch.tensor([0, 1, 5, 12, 13, 40, 41, 60, 61, 77]), tiny.grid
    token = torch.tensor([0, 0, 1, 2, 2, 2, 3, 4, 4, 1])
    merge = Merge(cells, token, torch.bincount(token).float())
    x = torch.randn(5, tiny.backbone.width, generator=generator)
    entry = torch.rand(len(cells), generator=generator)
    merged = replace(
        tiny.backbone.tokens_at(torch.cat([x[:1], x]), torch.arange(5), grid), merges=(merge,), entry=entry
    )
    separate = replace(tiny.backbone.tokens_at(torch.cat([x[:1], x[token]]), cells, grid), entry=entry)
    torch.testing.assert_close(merged.size, merge.size)
    for step in (tiny.shallow_scores, tiny.risks):
        torch.testing.assert_close(step(merged)[0], step(separate)[0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(tiny.dissimilarity(merged), tiny.dissimilarity(separate), atol=1e-5, rtol=1e-5)


def test_a_batch_of_routed_and_whole_images_keeps_the_cells_of_each(tiny, half_flat):
    """Ragged batches carry the merge of each image, through `gather` and `select` too."""
    pixels = np.stack([*half_flat, np.random.default_rng(1).integers(0, 256, half_flat[0].shape, dtype=np.uint8)])
    images = torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255
    routings = [route_pixels(image, tiny.patch, PixelBudget()) for image in pixels]
    tokens = tiny.encode(images, routings)
    assert tokens.merges[2] is None
    assert tokens.size.tolist() == [size for routing in routings for size in routing.size]
    for number, routing in enumerate(routings):
        alone = tiny.encode(images[number][None], [routing])
        torch.testing.assert_close(tokens.select(number).x, alone.x, atol=1e-5, rtol=1e-5)
        assert tokens.select(number).cells()[0].tolist() == list(range(99))
        values = tokens.split_cells(tokens.per_cell(tokens.index))[number]
        assert values.tolist() == routing.owner.tolist()
    keep = [np.array([0, 1, 98]), np.arange(99), np.array([4, 7])]
    kept = tokens.gather(keep)
    assert [cells.tolist() for cells in kept.cells()] == [positions.tolist() for positions in keep]
    for index, routing, positions in zip(kept.indices(), routings, keep, strict=True):
        assert index.tolist() == np.unique(routing.owner[positions]).tolist()


def test_cells_that_do_not_count_have_no_token_and_break_no_block() -> None:
    random = np.random.default_rng(8)
    pixels = np.full((8 * 4, 8 * 4, 3), 90, np.uint8)
    inside = np.ones((8, 8), dtype=bool)
    inside[:4, :6] = False  # the middle of the block of 8 x 8 among them
    pixels[:16, :24] = random.integers(0, 256, (16, 24, 3))
    routing = route_pixels(pixels, (4, 4), PixelBudget(), inside.reshape(-1))
    assert routing.index.tolist() == [6]
    assert routing.cells.tolist() == np.flatnonzero(inside).tolist()
    assert (routing.owner.reshape(8, 8)[inside] == 6).all()
    assert routing.token.tolist() == [0] * 40
    assert routing.size.tolist() == [40]
    pixels[31, 31] = 200
    assert 63 in route_pixels(pixels, (4, 4), PixelBudget(), inside.reshape(-1)).index.tolist()
    every = PixelRouting.of_all(inside.reshape(-1))
    assert (every.index.tolist(), every.merges, every.whole) == (routing.cells.tolist(), False, False)
