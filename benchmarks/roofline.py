"""Upper bound of the speed-up on this machine: `python benchmarks/roofline.py --records engines.json --exported DIR`.

Rates of matrix products are measured at the shapes of the default backbone, in float32 by torch and in float32,
bfloat16 and int8 by OpenVINO; so are the rates of attention and of copying memory. The counted FLOPs of a pass at the
best of these rates bound its time from below, and with the measured time of dense its speed-up from above. `--records`
is a JSON file of `keepad benchmark` and `--exported` the int8 folder that it timed: layers that stayed in bfloat16
there count as bfloat16 here.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import torch
import torch.nn.functional as F
from openvino import opset13

from keepad.backbone import Backbone, build_backbone
from keepad.benchmark.flops import backbone_flops, patches_entering, shape_of
from keepad.console import command_line
from keepad.engines.folder import EngineInfo, read_description
from keepad.engines.sessions import available_threads

LENGTHS = (1370, 412, 240)  # tokens of a dense pass, and about what the routers leave at prune70
REPEATS = 30
ROUNDS = 3  # over all shapes, so that noise of a second cannot spoil all runs of a shape
PRECISIONS = ("fp32", "bf16", "int8")

Rates = dict[str, dict[str, dict[str, float]]]  # GFLOP/s by tokens, layer, and engine with precision


@dataclass(frozen=True)
class Ceiling:
    """Best rates of the machine: GFLOP/s by precision for linear layers and attention, GB/s of copying."""

    linear: dict[str, float]
    attention: dict[str, float]
    copy: float


def best_seconds(function: Callable[[], object]) -> float:
    """Shortest of many runs, the least disturbed on a shared machine."""
    for _ in range(3):
        function()
    seconds = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def linear_rates(tokens: int, inner: int, outer: int) -> dict[str, float]:
    """GFLOP/s of a linear layer of that shape, by engine and precision."""
    flops = 2 * tokens * inner * outer
    rng = np.random.default_rng(0)
    x, weight = (rng.normal(size=size).astype(np.float32) for size in ((tokens, inner), (outer, inner)))
    x_torch, weight_torch = torch.from_numpy(x), torch.from_numpy(weight)
    rates = {"torch fp32": flops / best_seconds(lambda: F.linear(x_torch, weight_torch)) / 1e9}
    for precision in PRECISIONS:
        parameter = opset13.parameter([-1, inner], np.float32)
        left, right = parameter, opset13.constant(weight)
        if precision == "int8":  # OpenVINO fuses these into an integer product, quantisation of the input included
            left = opset13.fake_quantize(left, *map(np.float32, (-4, 4, -4, 4)), 256)
            right = opset13.fake_quantize(right, *map(np.float32, (-4, 4, -4, 4)), 255)
        model = openvino.Model([opset13.matmul(left, right, False, True)], [parameter])
        rates[f"openvino {precision}"] = flops / _seconds(model, [x], precision) / 1e9
    return rates


def attention_rates(tokens: int, heads: int, width: int) -> dict[str, float]:
    """GFLOP/s of attention among that many tokens, by engine and precision."""
    flops, q = 4 * tokens**2 * width, torch.randn(1, heads, tokens, width // heads)
    rates = {"torch fp32": flops / best_seconds(lambda: F.scaled_dot_product_attention(q, q, q)) / 1e9}
    for precision in ("fp32", "bf16"):
        parameters = [opset13.parameter([1, heads, -1, width // heads], np.float32) for _ in range(3)]
        model = openvino.Model([opset13.scaled_dot_product_attention(*parameters)], parameters)
        rates[f"openvino {precision}"] = flops / _seconds(model, [q.numpy()] * 3, precision) / 1e9
    return rates


def _seconds(model: openvino.Model, inputs: list[np.ndarray], precision: str) -> float:
    hint = "f32" if precision == "fp32" else "bf16"
    settings = {"INFERENCE_NUM_THREADS": available_threads(), "INFERENCE_PRECISION_HINT": hint}
    request = openvino.Core().compile_model(model, "CPU", settings).create_infer_request()
    return best_seconds(lambda: request.infer(inputs, share_inputs=True))


def copy_rate() -> float:
    """GB/s read and written by copying."""
    a, b = np.ones(50_000_000, dtype=np.float32), np.empty(50_000_000, dtype=np.float32)
    return 2 * a.nbytes / best_seconds(lambda: np.copyto(b, a)) / 1e9


def measured_rates(backbone: Backbone) -> Rates:
    """Best rates over all rounds."""
    width, heads = backbone.width, backbone.vit.blocks[0].attn.num_heads
    shapes = {"qkv": (width, 3 * width), "projection": (width, width)}
    shapes |= {"mlp in": (width, 4 * width), "mlp out": (4 * width, width)}
    best: Rates = {}
    for _ in range(ROUNDS):
        for tokens in LENGTHS:
            layers = {name: linear_rates(tokens, *shape) for name, shape in shapes.items()}
            layers["attention"] = attention_rates(tokens, heads, width)
            for name, rates in layers.items():
                kept = best.setdefault(str(tokens), {}).setdefault(name, rates)
                kept.update({engine: max(rate, kept[engine]) for engine, rate in rates.items()})
    return best


def ceiling_of(rates: Rates) -> Ceiling:
    """Best rates over shapes and engines."""

    def best(precision: str, *, attention: bool) -> float:
        layers = [
            layer for part in rates.values() for name, layer in part.items() if (name == "attention") == attention
        ]
        return max(rate for layer in layers for engine, rate in layer.items() if engine.endswith(precision))

    linear = {precision: best(precision, attention=False) for precision in PRECISIONS}
    half = best("bf16", attention=True)
    attention = {"fp32": best("fp32", attention=True), "bf16": half, "int8": half}  # int8 exports keep it in bf16
    return Ceiling(linear, attention, copy_rate())


def bound(
    record: dict[str, Any], dense_ms: float, backbone: Backbone, info: EngineInfo, ceiling: Ceiling
) -> dict[str, Any]:
    """Least milliseconds of a record's pass in each precision, the speed-ups these allow, and memory traffic."""
    grid, early_exit = info.grid[0] * info.grid[1], not record["point"].startswith("dense")
    patches = (round(record[key] * grid) for key in ("keep_pixels", "keep_shallow", "keep"))
    entering = patches_entering(info.placement, *patches, early_exit=early_exit)
    embed, linear, attention = backbone_flops(shape_of(backbone), entering[0], entering)
    floating = sum(_layer_flops(name, backbone, entering) for name in info.floating)
    least = {}
    for precision in PRECISIONS:
        products = (linear + embed) / ceiling.linear[precision]
        if precision == "int8":
            products += floating / ceiling.linear["bf16"] - floating / ceiling.linear["int8"]
        least[precision] = (products + attention / ceiling.attention[precision]) / 1e6
    own = record["engine"].partition(":")[2] or "fp32"
    moved = _bytes_moved(backbone, entering, own)
    return {
        "batch": record["batch"],
        "memory_mb": moved / 1e6,
        "memory_ms": moved / ceiling.copy / 1e6,
        "engine": record["engine"],
        "point": record["point"],
        "ms": record["median_ms"],
        "ratio": dense_ms / record["median_ms"],
        "least_ms": least,
        "largest_ratio": {precision: dense_ms / value for precision, value in least.items()},
        "share": least[own] / record["median_ms"],
    }


def _layer_flops(name: str, backbone: Backbone, entering: Sequence[int]) -> int:
    """FLOPs of a layer by its name in an export, as in "early blocks.0.fc1"."""
    _, block, kind = name.rpartition(" ")[2].split(".")
    attn, mlp = (getattr(backbone.vit.blocks[int(block)], part) for part in ("attn", "mlp"))
    weights: int = getattr(mlp if kind.startswith("fc") else attn, kind).weight.numel()
    return 2 * (entering[int(block)] + backbone.prefix) * weights


def _bytes_moved(backbone: Backbone, entering: Sequence[int], precision: str) -> int:
    """Bytes of weights once, and of all features between two layers written and read once."""
    blocks = backbone.vit.blocks[: len(entering)]
    weights = {"fp32": 4, "bf16": 2, "int8": 1}[precision] * sum(part.numel() for part in blocks.parameters())
    # Widths per block: tokens twice; queries, keys and values; output of attention; hidden layer of the MLP.
    per_token = 2 * (2 + 3 + 1 + 4) * backbone.width * (4 if precision == "fp32" else 2)
    return weights + sum((patches + backbone.prefix) * per_token for patches in entering)


def to_markdown(content: dict[str, Any]) -> str:
    """Tables of rates and of bounds."""
    engines = list(content["rates"][str(LENGTHS[0])]["qkv"])
    lines = [
        f"Made by `{content['command']}`; {content['threads']} threads.",
        "",
        "GFLOP/s of the linear layers of the default backbone, by tokens; best of many runs.",
        "",
        f"| tokens | layer | {' | '.join(engines)} |",
        f"|---|---|{'---|' * len(engines)}",
    ]
    for tokens, layers in content["rates"].items():
        for name, rates in layers.items():
            cells = (f"{rates[engine]:.0f}" if engine in rates else "-" for engine in engines)
            lines.append(f"| {tokens} | {name} | {' | '.join(cells)} |")
    lines += [
        "",
        f"Copying memory: {content['best']['copy']:.1f} GB/s.",
        "",
        "Least time of a pass: its counted FLOPs at the best of these rates, without norms, activations, routing or",
        "memory. `share`: that time in the row's own precision over the measured time. `at most`: dense in torch at",
        "the same batch size over the least time; in int8, attention and these layers are bf16:",
        f"{', '.join(content['floating']) or 'none'}. `memory`: traffic of a pass if all features between two layers",
        "go through memory once, and its time at the rate of copying; caches hold much of it.",
        "",
        "| batch | engine | point | ms | x dense | share | at most, fp32 | at most, bf16 | at most, int8 | memory |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in content["bounds"]:
        ratios = [f"{row['largest_ratio'][precision]:.2f}" for precision in PRECISIONS]
        lines.append(
            f"| {row['batch']} | {row['engine']} | {row['point']} | {row['ms']:.0f} | {row['ratio']:.2f} "
            f"| {row['share']:.0%} | {' | '.join(ratios)} | {row['memory_mb']:.0f} MB, {row['memory_ms']:.0f} ms |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=Path, required=True, help="JSON of keepad benchmark, default backbone")
    parser.add_argument("--exported", type=Path, required=True, help="the int8 folder among them")
    parser.add_argument("--out", type=Path, required=True, help="results are written to OUT.json and OUT.md")
    args = parser.parse_args()
    info = read_description(args.exported)
    records = json.loads(args.records.read_text())["records"]
    backbone, _ = build_backbone(info.backbone, seed=0)
    rates = measured_rates(backbone)
    ceiling = ceiling_of(rates)
    dense = {row["batch"]: row["median_ms"] for row in records if (row["point"], row["engine"]) == ("dense", "torch")}
    content = {
        "command": command_line(["python", *sys.argv]),
        "threads": available_threads(),
        "rates": rates,
        "best": vars(ceiling),
        "floating": info.floating,
        "bounds": [bound(record, dense[record["batch"]], backbone, info, ceiling) for record in records],
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.with_suffix(".json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    args.out.with_suffix(".md").write_text(to_markdown(content), encoding="utf-8")


if __name__ == "__main__":
    main()
