"""A bank of heads: each one is an ordinary head, and none learns from what it must not see."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from keepad.presets import Reading
from keepad.training.head_bank import HeadBank, head_from, responses_of

LAYERS = (6, 9)


def features(images: int = 3, tokens: int = 7, width: int = 16) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    return F.normalize(torch.randn(images, len(LAYERS), 1 + tokens, width, generator=generator), dim=-1)


def bank() -> HeadBank:
    made = HeadBank(2, LAYERS, 16, torch.Generator().manual_seed(0))
    with torch.no_grad():
        for parameter in made.parameters():  # heads that have gone their own ways
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    return made


def test_heads_start_alike() -> None:
    made = HeadBank(2, LAYERS, 16, torch.Generator().manual_seed(0))
    assert torch.equal(made.patch[0], made.patch[2])
    assert torch.equal(made.cls[0], made.cls[2])


def test_a_head_of_a_bank_says_what_it_says_alone() -> None:
    made, x = bank(), features()
    maps, cls = responses_of(*made(x))
    for number in range(3):
        head = head_from(made.patch[number], made.cls[number], LAYERS, (Reading(),) * 2)
        for image in range(3):
            alone = torch.stack([head.patch_response(layer, x[image, k, 1:]) for k, layer in enumerate(LAYERS)])
            torch.testing.assert_close(maps[number, image], alone.mean(0))
            for k, layer in enumerate(LAYERS):
                torch.testing.assert_close(cls[number, image, k], head.cls_response(layer, x[image, k, :1])[0])


def test_a_loss_that_leaves_an_image_out_of_a_head_teaches_that_head_nothing_of_it() -> None:
    made = bank()
    x = features().requires_grad_()
    maps, _ = responses_of(*made(x))
    sees = torch.tensor([[0.0, 1.0, 1.0], [1.0, 0.0, 1.0], [1.0, 1.0, 1.0]])  # (image, head)
    first_head_only = (maps[0].mean(1) * sees[:, 0]).sum()
    first_head_only.backward()
    assert x.grad is not None
    assert x.grad[0].abs().sum() == 0
    assert x.grad[1].abs().sum() > 0
    assert made.patch.grad is not None
    assert made.patch.grad[1:].abs().sum() == 0
