"""How fast a pass could be on this machine: `python benchmarks/roofline.py --records engines.json --out roofline`.

The rate of matrix products is measured at the very shapes of the default backbone, in float32 by torch and by ONNX
Runtime and in 8-bit integers by ONNX Runtime, and so is that of attention and of copying memory. The counted FLOPs of
each operating point at the best of these rates give the least time that a pass can take, whoever runs it, and with the
measured time of dense the largest ratio that can be had. `--records` is what `keepad benchmark` wrote.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
import torch.nn.functional as F
from onnx import TensorProto, helper

from keepad.backbone import DEFAULT_BACKBONE, build_backbone
from keepad.command import command_line
from keepad.engines.sessions import available_threads
from keepad.flops import backbone_flops, patches_entering, shape_of
from keepad.presets import Placement
from keepad.training.recipe import RECIPES

LENGTHS = (1370, 412, 240)  # tokens of a dense pass, and about what the routers leave at prune70
REPEATS = 30


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
    x, weight = draw.normal(size=(tokens, inner)).astype(np.float32), draw.normal(size=(inner, outer))
    given, transposed = torch.from_numpy(x), torch.from_numpy(weight.T.astype(np.float32).copy())
    found = {"torch fp32": flops / best_seconds(lambda: F.linear(given, transposed)) / 1e9}
    for name, kind, operator, values in (
        ("onnxruntime fp32", TensorProto.FLOAT, "MatMul", weight.astype(np.float32)),
        ("onnxruntime int8", TensorProto.UINT8, "MatMulInteger", (weight * 30).clip(-64, 63).astype(np.int8)),
    ):
        fed = x if kind == TensorProto.FLOAT else (x * 30 + 128).clip(0, 255).astype(np.uint8)
        session = _session(operator, kind, values, (tokens, inner), (tokens, outer))
        found[name] = flops / best_seconds(lambda session=session, fed=fed: session.run(None, {"x": fed})) / 1e9
    return found


def _session(
    operator: str, kind: int, weight: np.ndarray, given: tuple[int, int], made: tuple[int, int]
) -> onnxruntime.InferenceSession:
    result = TensorProto.FLOAT if kind == TensorProto.FLOAT else TensorProto.INT32
    graph = helper.make_graph(
        [helper.make_node(operator, ["x", "w"], ["y"])],
        "product",
        [helper.make_tensor_value_info("x", kind, given)],
        [helper.make_tensor_value_info("y", result, made)],
        [onnx.numpy_helper.from_array(weight, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = available_threads()
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def attention(tokens: int, heads: int, width: int) -> float:
    """GFLOP/s of attention among so many tokens in torch."""
    q = torch.randn(1, heads, tokens, width // heads)
    return 4 * tokens**2 * width / best_seconds(lambda: F.scaled_dot_product_attention(q, q, q)) / 1e9


def bandwidth() -> float:
    """GB/s that copying reads and writes."""
    a, b = np.ones(50_000_000, dtype=np.float32), np.empty(50_000_000, dtype=np.float32)
    return 2 * a.nbytes / best_seconds(lambda: np.copyto(b, a)) / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--records", type=Path, required=True, help="JSON of keepad benchmark, default backbone")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    backbone, _ = build_backbone(DEFAULT_BACKBONE, seed=0)
    width, heads = backbone.width, backbone.vit.blocks[0].attn.num_heads
    shapes = {"qkv": (width, 3 * width), "projection": (width, width), "mlp in": (width, 4 * width)}
    shapes["mlp out"] = (4 * width, width)
    rates: dict[str, Any] = {}
    for tokens in LENGTHS:
        rates[str(tokens)] = {name: product(tokens, *shape) for name, shape in shapes.items()}
        rates[str(tokens)]["attention"] = {"torch fp32": attention(tokens, heads, width)}
    copied = bandwidth()
    by_whom = {who: max(one[name][who] for one in rates.values() for name in shapes) for who in rates["1370"]["qkv"]}
    best_attention = max(one["attention"]["torch fp32"] for one in rates.values())

    place = RECIPES["keepad"].placement(backbone.depth)
    records = [one for one in json.loads(args.records.read_text())["records"] if one["batch"] == 1]
    dense = next(one for one in records if one["point"] == "dense" and one["engine"] == "torch")
    bounds = [_bound(one, backbone, place, by_whom, best_attention, dense["median_ms"]) for one in records]
    content = {
        "command": command_line(["python", *sys.argv]),
        "threads": available_threads(),
        "rates": rates,
        "best": {**by_whom, "attention fp32": best_attention, "copy GB/s": copied},
        "bounds": bounds,
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.with_suffix(".json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    args.out.with_suffix(".md").write_text(to_markdown(content), encoding="utf-8")


def _bound(
    record: dict[str, Any],
    backbone: Any,
    place: Placement,
    rates: dict[str, float],
    attention_rate: float,
    dense: float,
) -> dict[str, Any]:
    """Least milliseconds of a record's pass in float32 and with integer products, and the ratios these would be."""
    grid = 37 * 37
    entering = patches_entering(
        place,
        round(record.get("keep_pixels", 1.0) * grid),
        round(record["keep_shallow"] * grid),
        round(record["keep"] * grid),
        early_exit=True,
    )
    embed, linear, within = backbone_flops(shape_of(backbone), entering[0], entering)
    least = {}
    for kind, rate in (
        ("fp32", max(rates["torch fp32"], rates["onnxruntime fp32"])),
        ("int8", max(rates.values())),
    ):
        least[kind] = ((embed + linear) / rate + within / attention_rate) / 1e6
    return {
        "engine": record["engine"],
        "point": record["point"],
        "ms": record["median_ms"],
        "ratio": dense / record["median_ms"],
        "least_ms": least,
        "largest_ratio": {kind: dense / value for kind, value in least.items()},
        "share": least["fp32"] / record["median_ms"],
    }


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
        "routing or memory. `share`: that time over the measured one. `at most`: dense in torch over the least time.",
        "",
        "| engine | point | ms | x dense | least ms fp32 | share | at most, fp32 | at most, int8 products |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for one in content["bounds"]:
        lines.append(
            f"| {one['engine']} | {one['point']} | {one['ms']:.0f} | {one['ratio']:.2f} "
            f"| {one['least_ms']['fp32']:.0f} | {one['share']:.0%} "
            f"| {one['largest_ratio']['fp32']:.2f} | {one['largest_ratio']['int8']:.2f} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
