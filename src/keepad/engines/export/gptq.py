"""Rounding: a network prepared for 8-bit integers, so that they lose little of it. What it computes does not change.

Integers have one step for all channels that enter a product, so a few channels far above the others cost the rest their
precision. Three things help, and cost a pass next to nothing:

- The tokens before the shallow router are turned, once and for all, by a rotation that spreads every such channel over
  all of them. Norms do not notice, because it leaves the mean of a token and its length as they were. The few tokens
  that the router keeps are turned back.
- What enters a product is moved to the middle of its channels' ranges and divided by them, which the weights and biases
  behind it undo.
- Weights are rounded one input channel after the other, and those that are still to come make up for what the rounding
  of the ones before has made wrong on the images that were looked at (GPTQ). Neighbouring pixels are so alike that the
  patch projection, which reads them as the bytes they are, loses less to this than to bfloat16.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from timm.layers import Mlp
from torch import Tensor, nn

from keepad.arrays import Array
from keepad.engines.export.feeds import Feed
from keepad.errors import KeepADError
from keepad.network import Network

_LEVELS = 127  # steps of a weight to each side of zero
LEVELS_BESIDE_BYTES = 63  # where whole bytes enter: CPUs without VNNI add two products in 16 bits
_FLOOR = 0.1  # of the widest channel: a narrower one is not widened further, it would only make its weights coarse
_HEADROOM = 15  # how many times the depth of an activation's dip every channel is taken to reach
_DAMPING = 0.01  # of the mean square of what enters, so that channels that never speak do not decide
_COLUMNS = 128  # that are rounded before the others are told


class Scale(nn.Module):
    """Channels times constants.

    Args:
        factor: (C,) the constants.
    """

    def __init__(self, factor: Tensor) -> None:
        super().__init__()
        self.factor = nn.Parameter(factor, requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


@torch.no_grad()
def rotate_tokens(network: Network) -> Tensor | None:
    """The rotation, (C, C), by which the tokens that leave a folded network's first blocks are turned from now on.

    They are turned back by its transpose. None where those blocks are of a kind that cannot be turned.
    """
    backbone, vit = network.backbone, network.backbone.vit
    blocks = list(vit.blocks[: network.placement.shallow - 1])
    plain = all(_is_plain(block) for block in blocks)
    if not plain or not all(isinstance(part, nn.Identity) for part in (vit.norm_pre, vit.patch_embed.norm)):
        return None
    draw = torch.Generator().manual_seed(0)
    turn = _rotation_of_tokens(backbone.width, draw)
    weight = vit.patch_embed.proj.weight
    _set(weight, (turn.T @ weight.flatten(1).double()).view_as(weight))
    for row in (vit.patch_embed.proj.bias, vit.cls_token, vit.reg_token, vit.pos_embed):
        if row is not None:
            _set(row, row.double() @ turn)
    backbone.forget_positions()
    for block in blocks:
        attn, mlp = block.attn, block.mlp
        for reader in (attn.q_proj, attn.k_proj, attn.v_proj, mlp.fc1):
            _set(reader.weight, reader.weight.double() @ turn)
        for writer in (attn.proj, mlp.fc2):
            _set(writer.weight, turn.T @ writer.weight.double())
            if writer.bias is not None:
                _set(writer.bias, writer.bias.double() @ turn)
        _turn_values(attn, draw)
    for selector in (network.shallow.query, network.shallow.key):
        _set(selector.weight, selector.weight.double() @ turn)
    return turn.float()


@torch.no_grad()
def quantise_weights(network: Network, calibrate: Callable[[], Sequence[Feed]]) -> Network:
    """A copy of a folded network with weights that 8 bits can hold; it gets the ranges of its channels divided out.

    Args:
        network: The network. It still computes what it did.
        calibrate: Runs the network on calibration images and returns the inputs of its first segment.
    """
    layers = [layer for block in network.backbone.vit.blocks if _is_plain(block) for layer in _layers_of(block)]
    hooks = [layer.readers[0].register_forward_pre_hook(layer.see) for layer in layers]
    try:
        patches = [feed["patches"] for feed in calibrate()]
    finally:
        for hook in hooks:
            hook.remove()
    layers = [layer for layer in layers if layer.rows]
    for layer in layers:
        middle, reach = layer.middle_and_reach()
        layer.move(middle, 1 / reach)
        mean = layer.total / layer.rows
        squares = layer.squares / layer.rows - torch.outer(mean, middle) - torch.outer(middle, mean)
        layer.squares = (squares + torch.outer(middle, middle)) / torch.outer(reach, reach)
        for reader in layer.readers:
            moved = reader.weight @ middle
            reader.bias = nn.Parameter(moved if reader.bias is None else reader.bias + moved, requires_grad=False)
            reader.weight.mul_(reach)
    squares = {id(reader): layer.squares for layer in layers for reader in layer.readers}
    written = copy.deepcopy(network)
    for ours, theirs in zip(network.modules(), written.modules(), strict=True):
        if id(ours) in squares:
            _set(cast(nn.Linear, theirs).weight, weights_on_steps(cast(nn.Linear, ours).weight, squares[id(ours)]))
    _round_projection(written.backbone.vit.patch_embed.proj, patches)
    return written


def _round_projection(projection: Any, patches: Sequence[Array]) -> None:
    """Round the weights of the patch projection; its bias makes up for what that moves on the mean patch."""
    rows, total, squares = 0, torch.zeros(()), torch.zeros(())
    for one in patches:
        levels = torch.from_numpy(one).double()
        rows, total, squares = rows + len(levels), total + levels.sum(0), squares + levels.T @ levels
    mean = total / rows
    weight = projection.weight.flatten(1).double()
    found = weights_on_steps(weight, squares / rows - torch.outer(mean, mean), LEVELS_BESIDE_BYTES)
    _set(projection.weight, found.view_as(projection.weight))
    _set(projection.bias, projection.bias.double() + (weight - found) @ mean)


@dataclass
class _Layer:
    """Linear layers that read the same, what has entered them, and who can move its channels.

    Attributes:
        readers: The linear layers.
        move: Takes constants from the channels that enter, then multiplies them with others, somewhere before.
        dips: Whether an activation stands before, which is hardly ever below zero.
        rows: Tokens that have entered.
        high: (C,) largest value of each channel.
        low: (C,) smallest.
        total: (C,) their sum.
        squares: (C, C) sum of their products with each other.
    """

    readers: list[nn.Linear]
    move: Callable[[Tensor, Tensor], None]
    dips: bool = False
    rows: int = 0
    high: Any = -torch.inf
    low: Any = torch.inf
    total: Any = 0.0
    squares: Any = 0.0

    def see(self, module: nn.Module, given: tuple[Tensor, ...]) -> None:
        x = given[0].flatten(0, -2)
        self.high, self.low = x.amax(0).clamp(min=self.high), x.amin(0).clamp(max=self.low)
        self.total = self.total + x.sum(0)
        self.squares = self.squares + x.T @ x
        self.rows += len(x)

    def middle_and_reach(self) -> tuple[Tensor, Tensor]:
        """(C,) what to take from the channels, and by what to divide them then."""
        if self.dips:  # steps reach from the dip to the top: a channel that is always small must not deepen the dip
            dip = float(-self.low.min())
            return torch.zeros_like(self.high), self.high.clamp(min=max(_HEADROOM * dip, 1e-3))
        reach = (self.high - self.low) / 2
        return (self.high + self.low) / 2, reach.clamp(min=max(_FLOOR * float(reach.max()), 1e-6))


def _layers_of(block: Any) -> Iterator[_Layer]:
    attn, mlp = block.attn, block.mlp

    def through_norm(name: str) -> Callable[[Tensor, Tensor], None]:
        def move(middle: Tensor, factor: Tensor) -> None:
            norm = getattr(block, name)
            moved = nn.LayerNorm(norm.normalized_shape, eps=norm.eps)
            moved.weight.copy_(factor)
            moved.bias.copy_(-middle * factor)
            setattr(block, name, moved.requires_grad_(False))

        return move

    def through_values(middle: Tensor, factor: Tensor) -> None:  # attention averages them, so it moves with them
        bias = -middle if attn.v_proj.bias is None else attn.v_proj.bias - middle
        attn.v_proj.weight.mul_(factor[:, None])
        attn.v_proj.bias = nn.Parameter(bias * factor, requires_grad=False)

    def through_hidden(middle: Tensor, factor: Tensor) -> None:
        mlp.norm = Scale(factor)

    yield _Layer([attn.proj], through_values)
    yield _Layer([attn.q_proj, attn.k_proj, attn.v_proj], through_norm("norm1"))
    yield _Layer([mlp.fc1], through_norm("norm2"))
    yield _Layer([mlp.fc2], through_hidden, dips=True)


def weights_on_steps(weight: Tensor, squares: Tensor, levels: int = _LEVELS) -> Tensor:
    """Weights, (outputs, inputs), on steps between plus and minus the largest of each output.

    Args:
        weight: The weights as they should be.
        squares: (inputs, inputs) mean products of what enters.
        levels: Steps to each side of zero.
    """
    left, squares = weight.double().clone(), _damped(squares.double())
    order = squares.diagonal().argsort(descending=True)
    left, squares = left[:, order], squares[order][:, order]
    step = left.abs().amax(1, keepdim=True).clamp(min=1e-12) / levels
    # The largest weight of an output stays where it is: whoever rounds again must find the same steps.
    largest = torch.zeros_like(left, dtype=torch.bool).scatter_(1, left.abs().argmax(1, keepdim=True), True)
    fixed = levels * step * left.sign()
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(squares))
    factor = torch.linalg.cholesky(inverse, upper=True)
    found = torch.empty_like(left)
    for start in range(0, left.shape[1], _COLUMNS):
        part = slice(start, min(start + _COLUMNS, left.shape[1]))
        wrong = torch.empty_like(left[:, part])
        for place, column in enumerate(range(part.start, part.stop)):
            given = left[:, column : column + 1]
            steps = (given / step).round().clamp(-levels, levels) * step
            here = slice(column, column + 1)
            found[:, here] = torch.where(largest[:, here], fixed[:, here], steps)
            wrong[:, place : place + 1] = (given - found[:, here]) / factor[column, column]
            left[:, column + 1 : part.stop] -= wrong[:, place : place + 1] @ factor[here, column + 1 : part.stop]
        left[:, part.stop :] -= wrong @ factor[part, part.stop :]
    return found[:, order.argsort()].to(weight.dtype)


def _damped(squares: Tensor) -> Tensor:
    """(C, C) with as much added to its diagonal as makes it positive definite; its sums have rounding errors."""
    for power in range(6):
        found = squares.clone()
        found.diagonal().add_(_DAMPING * 10**power * squares.diagonal().abs().mean() + 1e-12)
        if int(torch.linalg.cholesky_ex(found).info) == 0:
            return found
    raise KeepADError("the calibration images gave features that are not finite; the weights may be damaged.")


def _is_plain(block: Any) -> bool:
    """Whether `folding` has left nothing but linear layers between the norms, attention and the activation."""
    attn = block.attn
    if getattr(attn, "q_proj", None) is None or type(block.mlp) is not Mlp:
        return False
    bare = all(isinstance(norm, nn.LayerNorm) and norm.weight is None for norm in (block.norm1, block.norm2))
    return bare and all(isinstance(part, nn.Identity) for part in (attn.norm, block.mlp.norm))


def _turn_values(attn: Any, draw: torch.Generator) -> None:
    """Turn the values of each head, which attention only averages, and turn them back in the projection."""
    for start in range(0, attn.proj.in_features, attn.head_dim):
        rows = slice(start, start + attn.head_dim)
        turn = _rotation(attn.head_dim, draw)
        _set(attn.v_proj.weight[rows], turn @ attn.v_proj.weight[rows].double())
        if attn.v_proj.bias is not None:
            _set(attn.v_proj.bias[rows], turn @ attn.v_proj.bias[rows].double())
        _set(attn.proj.weight[:, rows], attn.proj.weight[:, rows].double() @ turn.T)


def _rotation_of_tokens(width: int, draw: torch.Generator) -> Tensor:
    """(C, C) a random rotation that does not move the mean of the channels."""
    basis = torch.randn(width, width, generator=draw, dtype=torch.float64)
    basis[:, 0] = 1
    basis = torch.linalg.qr(basis).Q  # its first direction is that mean
    inner = torch.eye(width, dtype=torch.float64)
    inner[1:, 1:] = _rotation(width - 1, draw)
    return basis @ inner @ basis.T


def _rotation(width: int, draw: torch.Generator) -> Tensor:
    found = torch.linalg.qr(torch.randn(width, width, generator=draw, dtype=torch.float64))
    return found.Q * found.R.diagonal().sign()


def _set(parameter: Tensor, value: Tensor) -> None:
    parameter.copy_(value.to(parameter.dtype))
