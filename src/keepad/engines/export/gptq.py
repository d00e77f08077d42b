"""GPTQ: 8-bit weights for a network, after its activations are made easy to quantise.

Activations are quantised per tensor, so a few outlier channels cost all others their precision. Rotation and range
equalisation remove them without a change of what the network computes:

- Rotation: an orthogonal matrix, folded into the weights, spreads outlier channels of the tokens before the shallow
  router over all channels, as in QuaRot. It preserves the mean and the length of a token, so norms commute with it.
  The tokens that the router keeps are rotated back.
- Range equalisation: inputs of linear layers are centred and divided by their channels' ranges, as in SmoothQuant and
  Outlier Suppression+; the weights and biases behind undo it.
- GPTQ: weights are rounded column by column, and the columns still to come compensate the error on the calibration
  images. The patch projection multiplies raw pixels; they are so correlated that it loses less to this than to bf16.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from timm.layers.mlp import Mlp
from torch import Tensor, nn

from keepad.arrays import Array
from keepad.engines.export.feeds import Feed
from keepad.errors import KeepADError
from keepad.network import Network

_WEIGHT_LEVELS = 127  # to each side of zero
UINT8_INPUT_LEVELS = 63  # beside uint8 inputs: CPUs without VNNI add two products in 16 bits
_MIN_RANGE = 0.1  # of the widest channel; equalising narrower ones further only makes their weights coarse
_HEADROOM = 15  # smallest range after an activation, in depths of its negative dip
_DAMPING = 0.01  # of the mean diagonal; keeps the Hessian invertible for dead channels
_BLOCK_COLUMNS = 128  # columns per lazy update of the remaining ones


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
    """The rotation, (C, C), that a folded network now applies to the tokens of its early blocks.

    Its transpose rotates them back. None, and the network unchanged, where the early blocks cannot be rotated.
    """
    backbone, vit = network.backbone, network.backbone.vit
    blocks = list(vit.blocks[: network.placement.shallow - 1])
    plain = all(_is_plain(block) for block in blocks)
    if not plain or not all(isinstance(part, nn.Identity) for part in (vit.norm_pre, vit.patch_embed.norm)):
        return None
    generator = torch.Generator().manual_seed(0)
    rotation = _mean_preserving_rotation(backbone.width, generator)
    weight = vit.patch_embed.proj.weight
    _set(weight, (rotation.T @ weight.flatten(1).double()).view_as(weight))
    for row in (vit.patch_embed.proj.bias, vit.cls_token, vit.reg_token, vit.pos_embed):
        if row is not None:
            _set(row, row.double() @ rotation)
    backbone.forget_positions()
    for block in blocks:
        attn, mlp = block.attn, block.mlp
        for linear in (attn.q_proj, attn.k_proj, attn.v_proj, mlp.fc1):  # their inputs are rotated
            _set(linear.weight, linear.weight.double() @ rotation)
        for linear in (attn.proj, mlp.fc2):  # their outputs are
            _set(linear.weight, rotation.T @ linear.weight.double())
            if linear.bias is not None:
                _set(linear.bias, linear.bias.double() @ rotation)
        _rotate_values(attn, generator)
    for selector in (network.shallow.query, network.shallow.key):
        _set(selector.weight, selector.weight.double() @ rotation)
    return rotation.float()


@torch.no_grad()
def quantise_weights(network: Network, calibrate: Callable[[], Sequence[Feed]]) -> Network:
    """A copy of a folded network with weights on 8-bit levels; the network itself gets its ranges equalised.

    Args:
        network: The network. Its output does not change.
        calibrate: Runs the network on calibration images and returns the inputs of its first segment.
    """
    groups = [group for block in network.backbone.vit.blocks if _is_plain(block) for group in _groups_of(block)]
    hooks = [group.linears[0].register_forward_pre_hook(group.observe) for group in groups]
    try:
        patches = [feed["patches"] for feed in calibrate()]
    finally:
        for hook in hooks:
            hook.remove()
    groups = [group for group in groups if group.rows]
    for group in groups:
        group.equalise()
    hessians = {id(linear): group.moment for group in groups for linear in group.linears}
    quantised = copy.deepcopy(network)
    for exact, copied in zip(network.modules(), quantised.modules(), strict=True):
        if id(exact) in hessians:
            weight = gptq(cast(nn.Linear, exact).weight, hessians[id(exact)])
            _set(cast(nn.Linear, copied).weight, weight)
    _quantise_projection(quantised.backbone.vit.patch_embed.proj, patches)
    return quantised


def _quantise_projection(projection: Any, patches: Sequence[Array]) -> None:
    """Quantise the patch projection; its bias absorbs the error on the mean patch."""
    rows, total, moment = 0, torch.zeros(()), torch.zeros(())
    for of_image in patches:
        pixels = torch.from_numpy(of_image).double()
        rows, total, moment = rows + len(pixels), total + pixels.sum(0), moment + pixels.T @ pixels
    mean = total / rows
    weight = projection.weight.flatten(1).double()
    quantised = gptq(weight, moment / rows - torch.outer(mean, mean), UINT8_INPUT_LEVELS)
    _set(projection.weight, quantised.view_as(projection.weight))
    _set(projection.bias, projection.bias.double() + (weight - quantised) @ mean)


@dataclass
class _LinearGroup:
    """Linear layers with the same input, and statistics of it.

    Attributes:
        linears: The linear layers.
        shift_and_scale: Makes the input (x - shift) * scale, by changing the layer before; both (C,).
        after_activation: Whether the input comes from an activation, which is hardly ever negative.
        rows: Observed tokens.
        high: (C,) largest value of each channel.
        low: (C,) smallest value.
        total: (C,) sum of the values.
        moment: (C, C) sum of the products x^T x; their mean, after `equalise`.
    """

    linears: list[nn.Linear]
    shift_and_scale: Callable[[Tensor, Tensor], None]
    after_activation: bool = False
    rows: int = 0
    high: Any = -torch.inf
    low: Any = torch.inf
    total: Any = 0.0
    moment: Any = 0.0

    def observe(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        """Forward pre-hook of the first linear layer."""
        x = inputs[0].flatten(0, -2)
        self.high, self.low = x.amax(0).clamp(min=self.high), x.amin(0).clamp(max=self.low)
        self.total = self.total + x.sum(0)
        self.moment = self.moment + x.T @ x
        self.rows += len(x)

    def equalise(self) -> None:
        """Centre the input and divide it by its channels' ranges; the linear layers undo both."""
        centre, reach = self._centre_and_reach()
        self.shift_and_scale(centre, 1 / reach)
        mean = self.total / self.rows
        moment = self.moment / self.rows - torch.outer(mean, centre) - torch.outer(centre, mean)
        self.moment = (moment + torch.outer(centre, centre)) / torch.outer(reach, reach)
        for linear in self.linears:
            offset = linear.weight @ centre
            linear.bias = nn.Parameter(offset if linear.bias is None else linear.bias + offset, requires_grad=False)
            linear.weight.mul_(reach)

    def _centre_and_reach(self) -> tuple[Tensor, Tensor]:
        """(C,) middle of the channels' ranges and half their widths."""
        if self.after_activation:  # levels span dip to peak: scaling up a small channel must not deepen the dip
            dip = float(-self.low.min())
            return torch.zeros_like(self.high), self.high.clamp(min=max(_HEADROOM * dip, 1e-3))
        reach = (self.high - self.low) / 2
        return (self.high + self.low) / 2, reach.clamp(min=max(_MIN_RANGE * float(reach.max()), 1e-6))


def _groups_of(block: Any) -> Iterator[_LinearGroup]:
    """The linear layers of a block, and how to shift and scale their inputs."""
    attn, mlp = block.attn, block.mlp

    def by_norm(name: str) -> Callable[[Tensor, Tensor], None]:
        def apply(shift: Tensor, scale: Tensor) -> None:
            norm = getattr(block, name)
            affine = nn.LayerNorm(norm.normalized_shape, eps=norm.eps)
            affine.weight.copy_(scale)
            affine.bias.copy_(-shift * scale)
            setattr(block, name, affine.requires_grad_(False))

        return apply

    def by_values(shift: Tensor, scale: Tensor) -> None:  # attention averages values, so its output shifts alike
        bias = -shift if attn.v_proj.bias is None else attn.v_proj.bias - shift
        attn.v_proj.weight.mul_(scale[:, None])
        attn.v_proj.bias = nn.Parameter(bias * scale, requires_grad=False)

    def by_hidden_norm(shift: Tensor, scale: Tensor) -> None:
        mlp.norm = Scale(scale)

    yield _LinearGroup([attn.proj], by_values)
    # Keys first: the first layer's input is observed, and dropped tokens have no queries.
    yield _LinearGroup([attn.k_proj, attn.q_proj, attn.v_proj], by_norm("norm1"))
    yield _LinearGroup([mlp.fc1], by_norm("norm2"))
    yield _LinearGroup([mlp.fc2], by_hidden_norm, after_activation=True)


def gptq(weight: Tensor, hessian: Tensor, levels: int = _WEIGHT_LEVELS) -> Tensor:
    """Weights, (outputs, inputs), on uniform levels up to the largest magnitude of each output.

    Args:
        weight: The exact weights.
        hessian: (inputs, inputs) mean of x^T x over the inputs.
        levels: Levels to each side of zero.
    """
    rest, hessian = weight.double().clone(), _damped(hessian.double())
    order = hessian.diagonal().argsort(descending=True)
    rest, hessian = rest[:, order], hessian[order][:, order]
    step = rest.abs().amax(1, keepdim=True).clamp(min=1e-12) / levels
    # The largest weight of an output is kept, so that quantising the result again gives the same levels.
    largest = torch.zeros_like(rest, dtype=torch.bool).scatter_(1, rest.abs().argmax(1, keepdim=True), True)
    kept = levels * step * rest.sign()
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(hessian))
    factor = torch.linalg.cholesky(inverse, upper=True)
    quantised = torch.empty_like(rest)
    for start in range(0, rest.shape[1], _BLOCK_COLUMNS):
        block = slice(start, min(start + _BLOCK_COLUMNS, rest.shape[1]))
        errors = torch.empty_like(rest[:, block])
        for position, column in enumerate(range(block.start, block.stop)):
            own = slice(column, column + 1)
            nearest = (rest[:, own] / step).round().clamp(-levels, levels) * step
            quantised[:, own] = torch.where(largest[:, own], kept[:, own], nearest)
            error = (rest[:, own] - quantised[:, own]) / factor[column, column]
            errors[:, position : position + 1] = error
            rest[:, column + 1 : block.stop] -= error @ factor[own, column + 1 : block.stop]
        rest[:, block.stop :] -= errors @ factor[block, block.stop :]
    return quantised[:, order.argsort()].to(weight.dtype)


def _damped(hessian: Tensor) -> Tensor:
    """(C, C) with the smallest damping of its diagonal that makes it positive definite."""
    for power in range(6):
        damped = hessian.clone()
        damped.diagonal().add_(_DAMPING * 10**power * hessian.diagonal().abs().mean() + 1e-12)
        if int(torch.linalg.cholesky_ex(damped).info) == 0:
            return damped
    raise KeepADError("the calibration images gave features that are not finite; the weights may be damaged.")


def _is_plain(block: Any) -> bool:
    """Whether `folding` left nothing but linear layers between the norms, attention and the activation."""
    attn = block.attn
    if getattr(attn, "q_proj", None) is None or type(block.mlp) is not Mlp:
        return False
    bare = all(isinstance(norm, nn.LayerNorm) and norm.weight is None for norm in (block.norm1, block.norm2))
    return bare and all(isinstance(part, nn.Identity) for part in (attn.norm, block.mlp.norm))


def _rotate_values(attn: Any, generator: torch.Generator) -> None:
    """Rotate the values of each head, and rotate them back in the output projection; attention only averages them."""
    for start in range(0, attn.proj.in_features, attn.head_dim):
        rows = slice(start, start + attn.head_dim)
        rotation = _random_rotation(attn.head_dim, generator)
        _set(attn.v_proj.weight[rows], rotation @ attn.v_proj.weight[rows].double())
        if attn.v_proj.bias is not None:
            _set(attn.v_proj.bias[rows], rotation @ attn.v_proj.bias[rows].double())
        _set(attn.proj.weight[:, rows], attn.proj.weight[:, rows].double() @ rotation.T)


def _mean_preserving_rotation(width: int, generator: torch.Generator) -> Tensor:
    """(C, C) random rotation that preserves the mean over the channels."""
    basis = torch.randn(width, width, generator=generator, dtype=torch.float64)
    basis[:, 0] = 1
    basis = torch.linalg.qr(basis).Q  # its first column is the direction of the mean
    inner = torch.eye(width, dtype=torch.float64)
    inner[1:, 1:] = _random_rotation(width - 1, generator)
    rotation: Tensor = basis @ inner @ basis.T
    return rotation


def _random_rotation(width: int, generator: torch.Generator) -> Tensor:
    q, r = torch.linalg.qr(torch.randn(width, width, generator=generator, dtype=torch.float64))
    rotation: Tensor = q * r.diagonal().sign()
    return rotation


def _set(parameter: Tensor, value: Tensor) -> None:
    parameter.copy_(value.to(parameter.dtype))
