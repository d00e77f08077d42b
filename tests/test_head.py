"""The prototype head against its formulas."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from keepad.head import PrototypeHead, cosine_gap
from keepad.logit_scale import LogitScale


@pytest.fixture
def features() -> torch.Tensor:
    return torch.randn(6, 16, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def head() -> PrototypeHead:
    torch.manual_seed(0)
    return PrototypeHead((6, 8), 16)


def test_the_plain_response_is_the_softmax_of_the_pair(head: PrototypeHead, features: torch.Tensor) -> None:
    for number, layer in enumerate(head.layers):
        for prototypes, response in ((head.patch, head.patch_response), (head.cls, head.cls_response)):
            cosines = F.normalize(features, dim=-1) @ F.normalize(prototypes[number], dim=-1).T
            expected = (cosines / 0.07).softmax(-1)[:, 1]
            torch.testing.assert_close(response(layer, features), expected)


def test_only_directions_matter(head: PrototypeHead, features: torch.Tensor) -> None:
    torch.testing.assert_close(cosine_gap(3 * head.patch[0], 5 * features), cosine_gap(head.patch[0], features))


def test_scale_bias_and_dissimilarities_enter_the_logit(head: PrototypeHead, features: torch.Tensor) -> None:
    head.scales = (LogitScale(2.0, 0.5, 1.5, 0.25, 3.0, -1.0), LogitScale())
    own, entry = torch.rand(6), torch.rand(6)
    logits = 2 * cosine_gap(head.patch[0], features) + 0.5 + 1.5 * own + 0.25 * entry
    torch.testing.assert_close(head.patch_response(6, features, own, entry), logits.sigmoid())
    torch.testing.assert_close(head.cls_response(6, features), (3 * cosine_gap(head.cls[0], features) - 1).sigmoid())
    assert [head.uses_dissimilarity(layer) for layer in head.layers] == [True, False]
    assert head.uses_entry


def test_a_plain_head_uses_no_dissimilarity(head: PrototypeHead) -> None:
    assert not head.uses_entry
    assert not any(head.uses_dissimilarity(layer) for layer in head.layers)
