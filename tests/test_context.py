"""Context: what survivors attend to besides each other, on sequences small enough to write out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from keepad.backbone import build_backbone
from keepad.context import Context
from keepad.dissimilarity import dissimilarity, dissimilarity_in_context
from keepad.network import Network
from keepad.presets import POINTS, resolved
from keepad.tokens import Merge, Tokens
from random_weights import lively


def packed() -> Tokens:
    """Two images of a 2x3 grid; features name the cell in the first number and are 1 in the second."""
    rows = [[-1.0, 0.0], *([float(cell), 1.0] for cell in range(6))] * 2
    return Tokens(torch.tensor(rows), torch.arange(6).repeat(2), (6, 6), (2, 3), 1)


def test_dropped_cells_become_context_until_tokens_are_dropped_again() -> None:
    first = packed().gather([torch.tensor([0, 2, 4, 5]), torch.tensor([3])], context=True)
    assert [own.cells.tolist() for own in first.contexts] == [[1, 3], [0, 1, 2, 4, 5]]
    assert first.contexts[0].x[:, 0].tolist() == [1, 3]
    assert first.contexts[0].size.tolist() == [1, 1]
    assert first.around() == [2, 5]
    assert first.select(1).contexts[0].cells.tolist() == [0, 1, 2, 4, 5]
    assert first.gather([torch.tensor([1, 3]), torch.tensor([0])]).around() == [0, 0]


def test_cells_that_shared_a_token_are_one_token_of_their_number() -> None:
    merge = Merge(torch.arange(6), torch.tensor([0, 0, 0, 1, 2, 2]), torch.tensor([3.0, 1.0, 2.0]))
    tokens = Tokens(torch.arange(4.0)[:, None], torch.tensor([0, 3, 4]), (3,), (2, 3), 1, merges=(merge,))
    left = tokens.gather([torch.tensor([0, 3])], context=True).contexts[0]
    assert left.cells.tolist() == [1, 2, 4, 5]
    assert left.token.tolist() == [0, 0, 1, 1]
    assert left.size.tolist() == [2, 2]
    assert left.x.flatten().tolist() == [1, 3]


def test_a_dropped_token_moves_as_the_survivors_that_it_resembles() -> None:
    context = Context(torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.arange(2), torch.arange(2), torch.ones(2))
    patches = torch.tensor([[2.0, 0.1], [0.2, 1.0], [1.0, 0.2], [0.0, 1.0]])
    carried = context.carried_by(patches)
    assert carried.carriers is not None
    assert [sorted(own) for own in carried.carriers.tolist()] == [[0, 2], [1, 3]]
    change = torch.tensor([[1.0, 0.0], [0.0, 1.0], [3.0, 0.0], [0.0, 5.0]])
    torch.testing.assert_close(carried.moved(change).x, torch.tensor([[3.0, 0.0], [0.0, 5.0]]))
    padded = context.carried_by(patches, torch.tensor([1.0, 1.0, 0.0, 1.0]))
    assert padded.carriers is not None
    assert 2 not in padded.carriers.flatten().tolist()


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "eva02_tiny_patch14_224", "vit_small_patch16_dinov3"])
def test_attention_to_the_whole_context_is_that_of_a_dense_block(name: str) -> None:
    backbone, _ = build_backbone(name, seed=3)
    lively(backbone)
    rows, columns = backbone.patch
    with torch.inference_mode():
        whole = backbone.embed(torch.rand(2, 3, 5 * rows, 6 * columns, generator=torch.Generator().manual_seed(1)))
        dense = backbone.run(whole, 1, 1)
        keep = [torch.arange(0, 30, 3), torch.arange(5, 30, 2)]
        pruned = backbone.run(whole.gather(keep, context=True).linked(), 1, 1)
        torch.testing.assert_close(pruned.x, dense.gather(keep).x, atol=2e-5, rtol=1e-4)
        alone = backbone.run(whole.gather(keep), 1, 1)
    assert not torch.allclose(alone.x, dense.gather(keep).x, atol=1e-3)


def test_dissimilarity_lies_between_that_among_survivors_and_that_among_all() -> None:
    generator = torch.Generator().manual_seed(0)
    grid, x = (9, 9), torch.randn(81, 8, generator=generator)
    live = torch.arange(0, 81, 2)
    context = Context(x[1::2], torch.arange(1, 81, 2), torch.arange(40), torch.ones(40))
    mixed = dissimilarity_in_context(x[live], live, grid, context)
    among_live, among_all = dissimilarity(x[live], live, grid), dissimilarity(x, torch.arange(81), grid)[live]
    torch.testing.assert_close(mixed, (among_live + among_all) / 2)
    padding = replace(context, size=torch.zeros(40))
    torch.testing.assert_close(dissimilarity_in_context(x[live], live, grid, padding), among_live)


def test_published_points_have_no_context_and_a_checkpoint_without_it_computes_what_it_did(tiny: Network) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (1, *tiny.image_size, 3), dtype=np.uint8)
    points = [POINTS["dense"], POINTS["paper70"], POINTS["prune70"]]
    before = tiny.infer(pixels, points)
    tiny.calibration = replace(tiny.calibration, context=True)
    after = tiny.infer(pixels, points)
    assert [resolved(point, tiny.calibration).context for point in points] == [False, False, True]
    for name in ("dense", "paper70"):
        assert after[name][0].score == before[name][0].score
    assert after["prune70"][0].score != before["prune70"][0].score
