"""A bank of heads: each equals an ordinary head, and none gets gradients from images it must not see."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from keepad.logit_scale import LogitScale
from keepad.training.head_bank import HeadBank, bank_responses, head_from

LAYERS = (6, 9)


def features(images: int = 3, tokens: int = 7, width: int = 16) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    return F.normalize(torch.randn(images, len(LAYERS), 1 + tokens, width, generator=generator), dim=-1)


def bank() -> HeadBank:
    made = HeadBank(2, LAYERS, 16, torch.Generator().manual_seed(0))
    with torch.no_grad():
        for parameter in made.parameters():  # heads that differ
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    return made


def test_heads_start_alike() -> None:
    made = HeadBank(2, LAYERS, 16, torch.Generator().manual_seed(0))
    assert torch.equal(made.patch[0], made.patch[2])
    assert torch.equal(made.cls[0], made.cls[2])


def test_a_head_of_a_bank_responds_as_it_does_alone() -> None:
    made, x = bank(), features()
    maps, cls = bank_responses(*made(x))
    for number in range(3):
        head = head_from(made.patch[number], made.cls[number], LAYERS, (LogitScale(),) * 2)
        for image in range(3):
            alone = torch.stack([head.patch_response(layer, x[image, k, 1:]) for k, layer in enumerate(LAYERS)])
            torch.testing.assert_close(maps[number, :, image], alone)
            for k, layer in enumerate(LAYERS):
                torch.testing.assert_close(cls[number, image, k], head.cls_response(layer, x[image, k, :1])[0])


def test_an_image_left_out_of_a_heads_loss_gives_it_no_gradient() -> None:
    made = bank()
    x = features().requires_grad_()
    maps, _ = bank_responses(*made(x))
    seen = torch.tensor([[0.0, 1.0, 1.0], [1.0, 0.0, 1.0], [1.0, 1.0, 1.0]])  # (image, head)
    first_head_only = (maps[0].mean((0, 2)) * seen[:, 0]).sum()
    first_head_only.backward()
    assert x.grad is not None
    assert x.grad[0].abs().sum() == 0
    assert x.grad[1].abs().sum() > 0
    assert made.patch.grad is not None
    assert made.patch.grad[1:].abs().sum() == 0
