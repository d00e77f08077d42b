"""Reducers of other works: hand-worked cases, their definitions, and passes through the tiny network."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from keepad.backbone.reducing import ReducedTokens, run_reducing
from keepad.benchmark.flops import count_flops
from keepad.benchmark.matching import TOLERANCE, matched, mean_flops
from keepad.errors import KeepADError
from keepad.presets import REDUCER_POINTS, REDUCERS, OperatingPoint, ReducerBudget, operating_point
from keepad.routing.reducers import ats, evit, tome, zerotprune
from keepad.routing.reducers.acting import METHODS

# Directions of four tokens: 0 and 3 alike, 1 alone, 2 nearly like 3.
KEYS = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.9, 0.2], [1.0, 0.05]])


def pixels_of(network, count=1, seed=0):
    height, width = network.image_size
    return np.random.default_rng(seed).integers(0, 255, (count, height, width, 3), dtype=np.uint8)


def with_ratio(method, ratio, **fields):
    return OperatingPoint(method, reducer=ReducerBudget(method, "prune70", ratio), **fields)


# -- ToMe --------------------------------------------------------------------------------------------------------------


def test_tome_merges_the_most_similar_even_token_into_its_odd_partner():
    matching = tome.match(KEYS, 1)  # even: 0, 2; odd: 1, 3; cosine 0-3 is 0.9988, 2-3 is 0.985
    assert matching.kept.tolist() == [1, 2, 3]
    assert matching.target.tolist() == [2, 0, 1, 2]
    both = tome.match(KEYS, 2)
    assert both.kept.tolist() == [1, 3]
    assert both.target.tolist() == [1, 0, 1, 1]


def test_tome_averages_by_size_and_sizes_sum_to_what_they_were():
    values, size = torch.tensor([[0.0], [10.0], [6.0], [3.0]]), torch.tensor([3.0, 1.0, 1.0, 2.0])
    merged, sizes = tome.merge(values, size, tome.match(KEYS, 2))
    assert sizes.tolist() == [1.0, 6.0]
    torch.testing.assert_close(merged, torch.tensor([[10.0], [(0 * 3 + 6 * 1 + 3 * 2) / 6]]))


@pytest.mark.parametrize("count", [0, 1, 7, 20])
def test_tome_matchings_are_partitions(count):
    keys = torch.randn(41, 8, generator=torch.Generator().manual_seed(count))
    matching = tome.match(keys, count)
    assert len(matching.kept) == 41 - count
    assert matching.target[matching.kept].tolist() == list(range(41 - count))  # what stays is its own target
    assert set(matching.target.tolist()) == set(range(41 - count))
    merged = set(range(41)) - set(matching.kept.tolist())
    assert all(position % 2 == 0 for position in merged)


# -- EViT --------------------------------------------------------------------------------------------------------------


def test_evit_keeps_what_cls_attends_to_and_fuses_the_rest_by_attention():
    attention = torch.tensor([0.1, 0.4, 0.1, 0.3])
    assert evit.choose(attention, 2).tolist() == [1, 3]
    assert evit.choose(attention, 3).tolist() == [0, 1, 3]  # ties: lower position
    torch.testing.assert_close(
        evit.fuse(torch.tensor([[2.0, 0.0], [4.0, 8.0]]), torch.tensor([0.1, 0.3])), torch.tensor([[3.5, 6.0]])
    )


# -- ATS ---------------------------------------------------------------------------------------------------------------


def test_ats_significance_is_attention_times_the_norm_of_the_value():
    attention = torch.tensor([[0.5, 0.25, 0.25]])
    values = torch.tensor([[[3.0, 4.0], [0.0, 5.0], [0.0, 10.0]]])
    torch.testing.assert_close(ats.significance(attention, values), torch.tensor([2.5, 1.25, 2.5]) / 6.25)


def test_ats_takes_the_token_at_each_quantile_once():
    scores = torch.tensor([0.05, 0.60, 0.05, 0.20, 0.10])  # cumulative 0.05, 0.65, 0.70, 0.90, 1
    assert ats.sample(scores, 4).tolist() == [1, 3]  # quantiles 1/8, 3/8, 5/8 lie in token 1; 7/8 in token 3
    assert ats.sample(torch.full((8,), 1 / 8), 8).tolist() == list(range(8))
    assert ats.sample(torch.full((8,), 1 / 8), 4).tolist() == [0, 2, 4, 6]


def test_ats_samples_follow_the_distribution():
    scores = torch.rand(200, generator=torch.Generator().manual_seed(0)) ** 4
    chosen, cumulative = ats.sample(scores, 50), scores.double().cumsum(0) / scores.double().sum()
    for quantile in (np.arange(50) + 0.5) / 50:
        owner = int((cumulative >= quantile).nonzero()[0])
        assert owner in chosen.tolist()
    assert len(chosen) <= 50
    assert chosen.tolist() == sorted(set(chosen.tolist()))


# -- Zero-TPrune -------------------------------------------------------------------------------------------------------


def test_page_rank_is_the_fixed_point_of_the_attention_graph():
    attention = torch.rand(3, 12, 12, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    attention = attention / attention.sum(-1, keepdim=True)
    scores = zerotprune.page_rank(attention, iterations=500)
    torch.testing.assert_close((scores[:, None] @ attention).squeeze(1), scores, atol=1e-5, rtol=0)
    torch.testing.assert_close(scores.mean(-1), torch.ones(3, dtype=torch.float64))
    values, vectors = np.linalg.eig(attention[0].numpy().T)
    stationary = np.abs(vectors[:, np.argmax(values.real)].real)
    np.testing.assert_allclose(scores[0], 12 * stationary / stationary.sum(), atol=1e-4)


def test_page_rank_of_a_star_is_its_centre():
    attention = torch.tensor([[[0.4, 0.3, 0.3], [1.0, 0.0, 0.0], [1.0, 0.0, 0.0]]])
    scores = zerotprune.page_rank(attention, iterations=200)[0]  # s0 = 0.4 s0 + s1 + s2, s1 = s2 = 0.3 s0
    torch.testing.assert_close(scores, torch.tensor([1.875, 0.5625, 0.5625]), atol=1e-4, rtol=0)


def test_heads_that_rank_nothing_or_one_token_do_not_count():
    flat, useful = torch.ones(4), torch.tensor([0.5, 1.5, 0.5, 1.5])
    peaked = torch.tensor([4.0, 0.0, 0.0, 0.0])
    torch.testing.assert_close(zerotprune.combine(torch.stack([flat, useful, peaked])), useful)
    torch.testing.assert_close(zerotprune.combine(torch.stack([flat, flat])), flat)  # then all count


def test_similar_tokens_of_less_importance_are_dropped():
    importance = torch.tensor([3.0, 2.0, 1.0, 0.5])  # more important half: 0, 1
    assert zerotprune.drop_similar(KEYS, importance, 1).tolist() == [0, 1, 2]  # 3 is most like 0
    assert zerotprune.drop_similar(KEYS, importance, 2).tolist() == [0, 1]
    assert zerotprune.drop_similar(KEYS, importance, 0).tolist() == [0, 1, 2, 3]
    assert zerotprune.most_important(importance, 2).tolist() == [0, 1]


# -- passes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", REDUCERS)
def test_without_reduction_a_reducing_block_is_the_block(method, tiny):
    images = torch.from_numpy(pixels_of(tiny)).permute(0, 3, 1, 2).float() / 255
    with torch.inference_mode():
        tokens = tiny.embed(images)
        reduced = ReducedTokens.whole(tokens)
        for layer in (1, 2):
            reduced, work = run_reducing(tiny.backbone, reduced, layer, METHODS[method](1.0, ()))
        expected = tiny.backbone.run(tokens, 1, 2)
    torch.testing.assert_close(reduced.x, expected.x, atol=1e-4, rtol=1e-4)
    assert (work.keys, work.queries, work.rows, work.selection) == (100, 100, 100, 0)


# Not ATS: samples at as many quantiles as there are tokens leave some out.
@pytest.mark.parametrize("method", [method for method in REDUCERS if method != "ats"])
def test_at_full_ratio_a_pass_is_the_dense_one(method, tiny):
    pixels = pixels_of(tiny)
    (dense,) = tiny.infer(pixels, [operating_point("dense")])["dense"]
    (own,) = tiny.infer(pixels, [with_ratio(method, 1.0)])[method]
    np.testing.assert_allclose(own.patch_map, dense.patch_map, atol=1e-4)
    assert own.score == pytest.approx(dense.score, abs=1e-4)
    assert len(own.survivors) == 99


def test_merged_tokens_answer_for_all_cells_that_went_into_them(tiny):
    (own,) = tiny.infer(pixels_of(tiny), [with_ratio("tome", 0.8, recovery="zero")])["tome"]
    assert (own.patch_map > 0).all()  # no cell is without an answer, so nothing is recovered
    assert len(np.unique(own.patch_map)) <= 99
    tokens = [row[2] for row in own.work]
    assert tokens == sorted(tokens, reverse=True)
    assert len(own.survivors) == tokens[-1] - tiny.backbone.prefix
    assert set(own.alone) < set(own.survivors)


def test_sizes_sum_to_the_grid_and_tokens_partition_it(tiny):
    images = torch.from_numpy(pixels_of(tiny)).permute(0, 3, 1, 2).float() / 255
    with torch.inference_mode():
        reduced = ReducedTokens.whole(tiny.embed(images))
        for layer in range(1, 6):
            reduced, _ = run_reducing(tiny.backbone, reduced, layer, METHODS["tome"](0.7, tuple(range(1, 6))))
            assert reduced.size.sum() == 99
            assert torch.bincount(reduced.token, minlength=len(reduced.cells)).tolist() == reduced.size.tolist()
            assert reduced.token[reduced.cells].tolist() == list(range(len(reduced.cells)))


@pytest.mark.parametrize("method", ["evit", "ats", "zerotprune"])
def test_what_is_dropped_is_recovered_from_survivors(method, tiny):
    (own,) = tiny.infer(pixels_of(tiny), [with_ratio(method, 0.5, recovery="zero")])[method]
    alive = np.flatnonzero(own.patch_map.reshape(-1))
    assert set(alive) <= set(own.survivors)
    assert 0 < len(own.survivors) < len(own.survivors_shallow) < 99
    assert set(own.survivors) <= set(own.survivors_shallow)
    if method != "ats":
        assert (len(own.survivors_shallow), len(own.survivors)) == (50, 25)


def test_the_fused_token_is_one_more_row_and_belongs_to_no_cell(tiny):
    (own,) = tiny.infer(pixels_of(tiny), [with_ratio("evit", 0.5)])["evit"]
    shallow, deep = tiny.placement.shallow, tiny.placement.deep
    assert own.work[shallow - 1][0] == tiny.backbone.prefix + 50 + 1
    assert own.work[deep - 1][0] == tiny.backbone.prefix + 25 + 1


@pytest.mark.parametrize("name", ["tome70", "evit70", "ats70", "zerotprune70"])
def test_reducers_get_the_flops_of_their_namesake(name, tiny):
    images = list(pixels_of(tiny, count=3))
    (point,) = matched(tiny, [REDUCER_POINTS[name]], images)
    target = mean_flops(tiny, operating_point("prune70"), images)
    assert mean_flops(tiny, point, images) == pytest.approx(target, rel=3 * TOLERANCE if name == "ats70" else TOLERANCE)


def test_counted_flops_of_an_unreduced_pass_are_those_of_dense(tiny):
    pixels = pixels_of(tiny)
    counts = []
    for point in (operating_point("dense"), with_ratio("evit", 1.0)):
        (own,) = tiny.infer(pixels, [point])[point.name]
        counts.append(count_flops(tiny, own, point))
    assert counts[1].total - counts[1].selectors == pytest.approx(counts[0].total, rel=1e-6)


def test_a_batch_gives_what_its_images_give(tiny):
    pixels, point = pixels_of(tiny, count=2), with_ratio("tome", 0.8)
    together = tiny.infer(pixels, [point])["tome"]
    for image, own in zip(pixels, together, strict=True):
        (alone,) = tiny.infer(image[None], [point])["tome"]
        np.testing.assert_array_equal(alone.patch_map, own.patch_map)


def test_an_unmatched_reducer_and_one_beside_references_are_refused(tiny):
    with pytest.raises(KeepADError, match="tome70 has the FLOPs of prune70, which depend on the images"):
        tiny.infer(pixels_of(tiny), [operating_point("tome70")])
    with pytest.raises(KeepADError, match="runs zero-shot only"):
        tiny.infer(pixels_of(tiny), [with_ratio("tome", 0.8)], record=True)


def test_reducers_have_no_pixel_router_and_leave_with_the_exit():
    for point in REDUCER_POINTS.values():
        assert point.early_exit
        assert point.pixels is None
        assert replace(point, reducer=None).shallow is None
