"""How fast a pass could be on this machine: `python benchmarks/roofline.py --records engines.json --out roofline`.

The rate of matrix products is measured at the very shapes of the default backbone, in float32 by torch and in float32,
bfloat16 and 8-bit integers by OpenVINO, and so is that of attention and of copying memory. The counted FLOPs of each
operating point at the best of these rates give the least time that a pass can take, whoever runs it, and with the
measured time of dense the largest ratio that can be had. `--records` is what `keepad benchmark` wrote, `--exported` the
folder in int8 that it timed: layers that integers would hurt, which are bfloat16 there, are so here.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import torch
import torch.nn.functional as F
from openvino import opset13

from keepad.backbone import DEFAULT_BACKBONE, build_backbone
from keepad.benchmark.flops import backbone_flops, patches_entering, shape_of
from keepad.console import command_line
from keepad.engines.folder import read_description
from keepad.engines.sessions import available_threads
from keepad.presets import Placement
from keepad.training.recipe import RECIPES

LENGTHS = (1370, 412, 240)  # tokens of a dense pass, and about what the routers leave at prune70
REPEATS = 30
ROUNDS = 3  # over all shapes: a disturbance that lasts for a second must not decide about one of them
PRECISIONS = ("fp32", "bf16", "int8")


def best_seconds(function: Callable[[], object]) -> float:
    """The shortest of many runs: on a shared machine that is the one that was not disturbed."""
    for _ in range(3):
        function()
    found = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        function()
        found.append(time.perf_counter() - start)
    return min(found)


def product(tokens: int, inner: int, outer: int) -> dict[str, float]:
    """GFLOP/s of a linear layer at that shape, by who computes it."""
    flops = 2 * tokens * inner * outer
    draw = np.random.default_rng(0)
    x, weight = (draw.normal(size=size).astype(np.float32) for size in ((tokens, inner), (outer, inner)))
    given, held = torch.from_numpy(x), torch.from_numpy(weight)
    found = {"torch fp32": flops / best_seconds(lambda: F.linear(given, held)) / 1e9}
    for precision in PRECISIONS:
        fed = opset13.parameter([-1, inner], np.float32)
        left, right = fed, opset13.constant(weight)
        if precision == "int8":  # what OpenVINO turns into integer products, with the rounding of what comes in
            left = opset13.fake_quantize(left, *map(np.float32, (-4, 4, -4, 4)), 256)
            right = opset13.fake_quantize(right, *map(np.float32, (-4, 4, -4, 4)), 255)
        made = openvino.Model([opset13.matmul(left, right, False, True)], [fed])
        found[f"openvino {precision}"] = flops / _seconds(made, [x], precision) / 1e9
    return found


def attention(tokens: int, heads: int, width: int) -> dict[str, float]:
    """GFLOP/s of attention among so many tokens, by who computes it."""
    flops, q = 4 * tokens**2 * width, torch.randn(1, heads, tokens, width // heads)
    found = {"torch fp32": flops / best_seconds(lambda: F.scaled_dot_product_attention(q, q, q)) / 1e9}
    for precision in ("fp32", "bf16"):
        fed = [opset13.parameter([1, heads, -1, width // heads], np.float32) for _ in range(3)]
        made = openvino.Model([opset13.scaled_dot_product_attention(*fed)], fed)
        found[f"openvino {precision}"] = flops / _seconds(made, [q.numpy()] * 3, precision) / 1e9
    return found


def _seconds(model: openvino.Model, inputs: list[np.ndarray], precision: str) -> float:
    hint = "f32" if precision == "fp32" else "bf16"
    settings = {"INFERENCE_NUM_THREADS": available_threads(), "INFERENCE_PRECISION_HINT": hint}
    request = openvino.Core().compile_model(model, "CPU", settings).create_infer_request()
    return best_seconds(lambda: request.infer(inputs, share_inputs=True))


def bandwidth() -> float:
    """GB/s that copying reads and writes."""
    a, b = np.ones(50_000_000, dtype=np.float32), np.empty(50_000_000, dtype=np.float32)
    return 2 * a.nbytes / best_seconds(lambda: np.copyto(b, a)) / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--records", type=Path, required=True, help="JSON of keepad benchmark, default backbone")
    parser.add_argument("--exported", type=Path, required=True, help="the folder in int8 among them")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    floating = read_description(args.exported).floating
    backbone, _ = build_backbone(DEFAULT_BACKBONE, seed=0)
    width, heads = backbone.width, backbone.vit.blocks[0].attn.num_heads
    shapes = {"qkv": (width, 3 * width), "projection": (width, width), "mlp in": (width, 4 * width)}
    shapes["mlp out"] = (4 * width, width)
    rates: dict[str, dict[str, dict[str, float]]] = {}
    for _ in range(ROUNDS):
        for tokens in LENGTHS:
            found = {name: product(tokens, *shape) for name, shape in shapes.items()}
            found["attention"] = attention(tokens, heads, width)
            before = rates.get(str(tokens), found)
            rates[str(tokens)] = {
                name: {who: max(rate, before[name][who]) for who, rate in one.items()} for name, one in found.items()
            }
    copied = bandwidth()
    best = {
        kind: {
            precision: max(
                rate
                for one in rates.values()
                for name in names
                for who, rate in one[name].items()
                if who.endswith(precision)
            )
            for precision in precisions
        }
        for kind, names, precisions in (("linear", shapes, PRECISIONS), ("attention", ["attention"], PRECISIONS[:2]))
    }

    place = RECIPES["keepad"].placement(backbone.depth)
    records = json.loads(args.records.read_text())["records"]
    dense = {one["batch"]: one["median_ms"] for one in records if one["point"] == "dense" and one["engine"] == "torch"}
    bounds = [_bound(one, backbone, place, best, dense[one["batch"]], floating, copied) for one in records]
    content = {
        "command": command_line(["python", *sys.argv]),
        "threads": available_threads(),
        "rates": rates,
        "best": {**best, "copy GB/s": copied},
        "floating": floating,
        "bounds": bounds,
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.with_suffix(".json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    args.out.with_suffix(".md").write_text(to_markdown(content), encoding="utf-8")


def _bound(
    record: dict[str, Any],
    backbone: Any,
    place: Placement,
    best: dict[str, dict[str, float]],
    dense: float,
    floating: Sequence[str],
    copied: float,
) -> dict[str, Any]:
    """Least milliseconds of a record's pass in each precision, the ratios these would be, and those of memory."""
    grid = 37 * 37
    entering = patches_entering(
        place,
        round(record.get("keep_pixels", 1.0) * grid),
        round(record["keep_shallow"] * grid),
        round(record["keep"] * grid),
        early_exit=True,
    )
    embed, linear, within = backbone_flops(shape_of(backbone), entering[0], entering)
    halves = sum(_flops(name, backbone, entering) for name in floating)  # of a pass in integers
    least = {
        precision: (
            (linear + embed - halves) / best["linear"][precision]
            + halves / best["linear"]["fp32" if precision == "fp32" else "bf16"]
            + within / best["attention"]["fp32" if precision == "fp32" else "bf16"]  # none has it in integers
        )
        / 1e6
        for precision in PRECISIONS
    }
    own = record["engine"].partition(":")[2] or "fp32"
    width, wide = backbone.width, 4 if own == "fp32" else 2
    blocks = backbone.vit.blocks[: len(entering)]
    weights = {"fp32": 4, "bf16": 2, "int8": 1}[own] * sum(one.numel() for one in blocks.parameters())
    # Tokens, queries, keys, values, what attention gives and four times as many hidden channels: written and read once.
    moved = weights + sum((patches + backbone.prefix) * 2 * (2 + 3 + 1 + 4) * width * wide for patches in entering)
    return {
        "batch": record["batch"],
        "memory_mb": moved / 1e6,
        "memory_ms": moved / copied / 1e6,
        "engine": record["engine"],
        "point": record["point"],
        "ms": record["median_ms"],
        "ratio": dense / record["median_ms"],
        "least_ms": least,
        "largest_ratio": {kind: dense / value for kind, value in least.items()},
        "share": least[own] / record["median_ms"],
    }


def _flops(name: str, backbone: Any, entering: Sequence[int]) -> int:
    """FLOPs of a layer, called as an export calls it: "prefix blocks.0.fc1"."""
    _, block, kind = name.rpartition(" ")[2].split(".")
    attn, mlp = (getattr(backbone.vit.blocks[int(block)], part) for part in ("attn", "mlp"))
    weights = getattr(mlp if kind.startswith("fc") else attn, kind).weight.numel()
    return 2 * (entering[int(block)] + backbone.prefix) * weights


def to_markdown(content: dict[str, Any]) -> str:
    """Rates, then what they allow."""
    whom = list(content["rates"]["1370"]["qkv"])
    lines = [
        f"Made by `{content['command']}`; {content['threads']} threads.",
        "",
        "GFLOP/s of the linear layers of the default backbone, by tokens; best of many runs.",
        "",
        f"| tokens | layer | {' | '.join(whom)} |",
        f"|---|---|{'---|' * len(whom)}",
    ]
    for tokens, layers in content["rates"].items():
        for name, rates in layers.items():
            lines.append(
                f"| {tokens} | {name} | {' | '.join(f'{rates[w]:.0f}' if w in rates else '-' for w in whom)} |"
            )
    lines += [
        "",
        f"Copying memory: {content['best']['copy GB/s']:.1f} GB/s.",
        "",
        "Least time of a pass: its counted FLOPs at the best of these rates, with nothing lost to norms, activations,",
        "routing or memory. `share`: that time in the row's own precision over the measured one. `at most`: dense in",
        "torch, of the same batch, over the least time; in int8, attention and the layers that integers hurt are bf16:",
        f"{', '.join(content['floating']) or 'none'}. `memory`: what a pass writes and reads if everything between two",
        "layers goes through memory once, and the time that takes at the rate of copying; caches hold much of it.",
        "",
        "| batch | engine | point | ms | x dense | share | at most, fp32 | at most, bf16 | at most, int8 | memory |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for one in content["bounds"]:
        ratios = [f"{one['largest_ratio'][kind]:.2f}" for kind in PRECISIONS]
        lines.append(
            f"| {one['batch']} | {one['engine']} | {one['point']} | {one['ms']:.0f} | {one['ratio']:.2f} "
            f"| {one['share']:.0%} | {' | '.join(ratios)} | {one['memory_mb']:.0f} MB, {one['memory_ms']:.0f} ms |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
