"""Routers side by side on every suite that they were not trained on: what survives, and what it costs in accuracy.

    python scripts/compare_routers.py --data ../shared/data --out docs/routers/transfer \\
        --paper paper-m2i.safetensors paper-i2m.safetensors --adopted m2i.safetensors i2m.safetensors \\
        --without-teacher m2i-alone.safetensors i2m-alone.safetensors --seeds m2i-1.safetensors ...

The tokens that enter the shallow router are the same for all checkpoints of a placement, so they come from the feature
cache (half precision), and so does what a dense pass reads; from there on the detector's own code runs. Finished
classes are kept and not computed again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from compare_detectors import judged, layers_of

from keepad.backbone import Backbone, load_backbone
from keepad.backbone.weights import cache_folder
from keepad.checkpoint import CheckpointInfo, read_checkpoint
from keepad.console import progress
from keepad.data import Sample, read_dataset
from keepad.images import read_image, to_input
from keepad.loading import assemble
from keepad.metrics import PixelMetrics, Survival, auroc
from keepad.network import KeepAD
from keepad.presets import POINTS, OperatingPoint, ShallowBudget, with_pixel_router
from keepad.routing.pixel import route_pixels
from keepad.training.dataset import fill, gather, masks_of
from keepad.training.feature_cache import FeatureCache

SIZES = ("1-4", "5-16", ">16")
PUBLISHED = ("paper30", "paper50", "paper70")
MASKED = ("mvtec", "mpdd", "dagm", "mtd", "ksdd")
PLAIN = {name: with_pixel_router(name, "off") for name in POINTS}  # `compare_pixels.py` has that router
GLOBAL = replace(PLAIN["prune70"], name="global top-k", shallow=ShallowBudget(0.30, strict=False, block=1, diversity=0))


class Bench:
    """Measures checkpoints class by class, and keeps what it has measured.

    Args:
        data: Folder with all suites.
        folder: Where measurements are kept.
    """

    def __init__(self, data: Path, folder: Path) -> None:
        self._data, self._folder = data, folder
        self.backbone: Backbone
        self.backbone, _, digest = load_backbone()
        self._cache = FeatureCache(self.backbone, digest)

    def unseen(self, path: Path) -> list[str]:
        """Masked suites that a checkpoint was not trained on."""
        seen = {one["suite"] for one in read_checkpoint(path)[0].provenance["data"]}
        return [suite for suite in MASKED if suite not in seen]

    def measure(self, path: Path, points: Sequence[OperatingPoint], *, dense: bool) -> dict[str, Any]:
        """Rows and pixel AUROCs of all unseen suites: suite -> class -> point -> what was found."""
        info, tensors = read_checkpoint(path)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()[:12]
        model = assemble(self.backbone, info, tensors, source=path.name)
        found: dict[str, Any] = {}
        for suite in self.unseen(path):
            classes = read_dataset(self._data).select(suites=[suite], split="test").by_class()
            for (_, cls), samples in classes.items():
                wanted = {**({"dense": None} if dense else {}), **{point.name: point for point in points}}
                files = {name: self._file(digest, suite, cls, point) for name, point in wanted.items()}
                missing = {name: wanted[name] for name, file in files.items() if not file.is_file()}
                same = self._undropped(missing, digest, suite, cls, samples, info.image_size)
                for name in same:
                    files[name].write_text(json.dumps(same[name]))
                missing = {name: point for name, point in missing.items() if name not in same}
                if missing:
                    title = f"{path.stem}: {suite} {cls}"
                    for name, value in self._measured(model, info, samples, missing, title).items():
                        files[name].parent.mkdir(parents=True, exist_ok=True)
                        files[name].write_text(json.dumps(value))
                found.setdefault(suite, {})[cls] = {n: json.loads(file.read_text()) for n, file in files.items()}
        return found

    def _file(self, digest: str, suite: str, cls: str, point: OperatingPoint | None) -> Path:
        told = "dense" if point is None else json.dumps(_described(point), sort_keys=True)
        return self._folder / f"{digest}-{suite}-{cls}-{hashlib.sha256(told.encode()).hexdigest()[:12]}.json"

    def _undropped(
        self,
        points: dict[str, OperatingPoint | None],
        digest: str,
        suite: str,
        cls: str,
        samples: Sequence[Sample],
        size: tuple[int, int],
    ) -> dict[str, Any]:
        """What is known already: of a class of which the pixel router drops nothing, points say what they said."""
        found: dict[str, Any] = {}
        thinned = {name: point for name, point in points.items() if point is not None and point.pixels is not None}
        if not thinned or not all(
            self._whole(to_input(read_image(one.image), size), point)
            for point in {point.pixels: point for point in thinned.values()}.values()
            for one in samples
        ):
            return found
        for name, point in thinned.items():
            plain = replace(point, pixels=None, name=name.removesuffix(" + pixels"))
            file = self._file(digest, suite, cls, None if plain.shallow is None else plain)
            if file.is_file():
                found[name] = json.loads(file.read_text())
                for row in found[name]["rows"]:
                    row |= {"left_pixels": row["defect"], "keep_pixels": 1.0}
        return found

    def _whole(self, image: np.ndarray, point: OperatingPoint) -> bool:
        """Whether the pixel router drops nothing of an image, which then passes as if it were not there."""
        assert point.pixels is not None
        return route_pixels(image, self.backbone.patch, point.pixels).whole

    @torch.inference_mode()
    def _measured(
        self,
        model: KeepAD,
        info: CheckpointInfo,
        samples: Sequence[Sample],
        points: dict[str, OperatingPoint | None],
        title: str,
    ) -> dict[str, Any]:
        grid = self.backbone.grid_of(*info.image_size)
        source = gather(samples, views=0, size=info.image_size, grid=grid)
        before = info.placement.shallow - 1
        fill(source, self._cache, (before, *(layers_of(model) if None in points.values() else ())))
        thinned = [point for point in points.values() if point is not None and point.pixels is not None]
        pixels = {name: PixelMetrics() for name in points}
        rows: dict[str, list[dict[str, Any]]] = {name: [] for name in points}
        with progress(title, len(samples)) as advance:
            for place, entry in enumerate(source.images):
                tokens = self.backbone.tokens_of(self._cache.load_all(entry.key, before).float()[None], grid)
                mask = masks_of([entry], info.image_size)[0].numpy()
                defect = entry.defect.nonzero()[0].tolist() if entry.defect is not None else []
                from_pixels = {}
                if thinned:
                    image = to_input(read_image(samples[place].image), info.image_size)
                    dropping = [point for point in thinned if not self._whole(image, point)]
                    from_pixels = model.find(image[None], dropping)
                for name, point in points.items():
                    entered = shallow = final = np.arange(grid[0] * grid[1])
                    if point is None or (name not in from_pixels and point.shallow is None):
                        score, seen = judged(model, source, place, self._cache)
                    elif name not in from_pixels:
                        (outcome,) = model.finish(tokens, point, info.image_size)
                        score, seen = float(outcome.score), outcome.pixel_map.numpy()
                        shallow, final = outcome.survivors_shallow.numpy(), outcome.survivors.numpy()
                    else:
                        (finding,) = from_pixels[name]
                        assert finding.thinned is not None
                        score, seen, entered = finding.score, finding.pixel_map, finding.thinned.index
                        shallow, final = finding.survivors_shallow, finding.survivors
                    pixels[name].update(seen, mask)
                    rows[name].append(
                        {
                            "label": entry.label,
                            "score": score,
                            "defect": len(defect),
                            "left_shallow": int(np.isin(defect, shallow).sum()),
                            "left": int(np.isin(defect, final).sum()),
                            "left_pixels": int(np.isin(defect, entered).sum()),
                            "keep_pixels": len(entered) / (grid[0] * grid[1]),
                            "keep_shallow": len(shallow) / (grid[0] * grid[1]),
                            "keep": len(final) / (grid[0] * grid[1]),
                        }
                    )
                advance(1)
        return {
            name: {"pixel": pixels[name].compute().auroc.value, "rows": found, "grid": grid}
            for name, found in rows.items()
        }


def _described(point: OperatingPoint) -> dict[str, Any]:
    """The point's fields; without a pixel router as they were before there was one, so that old state is found."""
    fields = asdict(point)
    if point.pixels is None:
        return {key: value for key, value in fields.items() if key != "pixels"}
    return {**fields, "tokens": "shared"}


def summary(found: dict[str, Any], point: str) -> dict[str, Any]:
    """Means over the classes of a suite, then over suites; survival over all anomalous images."""
    image, pixel, keep, keep_shallow, keep_pixels = [], [], [], [], []
    survival, shallow = Survival(), Survival()
    for classes in found.values():
        values = [one[point] for one in classes.values()]
        image.append(np.mean([auroc([r["score"] for r in v["rows"]], [r["label"] for r in v["rows"]]) for v in values]))
        pixel.append(np.mean([v["pixel"] for v in values]))
        keep.append(np.mean([np.mean([r["keep"] for r in v["rows"]]) for v in values]))
        keep_shallow.append(np.mean([np.mean([r["keep_shallow"] for r in v["rows"]]) for v in values]))
        entered = [np.mean([r.get("keep_pixels", 1.0) for r in v["rows"]]) for v in values]
        keep_pixels.append(np.mean(entered))
        for value in values:
            for row in value["rows"]:
                if row["defect"]:
                    survival.update(*_as_tokens(row["left"], row["defect"], value["grid"]))
                    shallow.update(*_as_tokens(row["left_shallow"], row["defect"], value["grid"]))
    result = survival.compute()
    return {
        "image": float(np.mean(image)),
        "pixel": float(np.mean(pixel)),
        "keep": float(np.mean(keep)),
        "keep_shallow": float(np.mean(keep_shallow)),
        "keep_pixels": float(np.mean(keep_pixels)),
        "dtr_shallow": shallow.compute().overall.dtr,
        "survival": asdict(result.overall),
        "by_size": {size: asdict(rate) for size, rate in result.by_size.items()},
    }


def _as_tokens(left: int, defect: int, grid: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Survivors and defect tokens of a made-up image with these counts, which is all that the rates look at."""
    tokens = np.zeros(grid[0] * grid[1], dtype=bool)
    tokens[:defect] = True
    return np.arange(left), tokens.reshape(grid[0], grid[1])


def fixed_budget(found: dict[str, Any]) -> OperatingPoint:
    """prune70 with the mean budget of these images for all of them."""
    rows = [row for classes in found.values() for one in classes.values() for row in one["prune70"]["rows"]]
    share = float(np.mean([row["keep"] / row["keep_shallow"] for row in rows]))
    budget = PLAIN["prune70"].deep
    assert budget is not None
    rho = share ** (1 / budget.kappa)
    return replace(PLAIN["prune70"], name="fixed budget", deep=replace(budget, rho_min=rho, rho_max=rho))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True, help="results are written to OUT.json and OUT.md")
    parser.add_argument("--state", type=Path, default=cache_folder() / "routers")
    for name, told in (
        ("--paper", "checkpoints of the published recipe, one a direction"),
        ("--adopted", "checkpoints of the adopted one"),
        ("--without-teacher", "the adopted recipe without its teacher"),
        ("--seeds", "the adopted recipe with other seeds, all directions"),
    ):
        parser.add_argument(name, nargs="+", type=Path, default=[], help=told)
    parser.add_argument(
        "--paper-points", nargs="+", choices=PUBLISHED, default=PUBLISHED, help="only these of the published recipe"
    )
    args = parser.parse_args()
    bench = Bench(args.data, args.state)
    pruned = [PLAIN[name] for name in ("prune30", "prune50", "prune70")]
    published = [PLAIN[name] for name in args.paper_points]
    table: dict[str, dict[str, Any]] = {}  # direction -> row -> numbers

    def add(path: Path, recipe: str, points: Sequence[OperatingPoint], *, dense: bool) -> dict[str, Any]:
        found = bench.measure(path, points, dense=dense)
        rows = table.setdefault(" ".join(found), {})
        for name in (*(["dense"] if dense else []), *(point.name for point in points)):
            rows[f"{recipe}: {name}"] = summary(found, name)
        return found

    def write() -> None:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        content = {"table": table, "seeds": seeds, "trained": trained}
        args.out.with_suffix(".json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        args.out.with_suffix(".md").write_text(to_markdown(table, seeds, trained), encoding="utf-8")

    seeds: dict[str, list[dict[str, Any]]] = {}
    trained = [training_of(path) for path in (*args.paper, *args.adopted, *args.without_teacher, *args.seeds)]
    for path in args.paper:
        add(path, "paper", published, dense=True)
    for path in args.adopted:
        add(path, "keepad", pruned, dense=True)
    write()  # what follows takes long, and the first rows are worth reading
    for path in args.adopted:
        found = bench.measure(path, pruned, dense=True)
        controls = [GLOBAL, fixed_budget(found)]
        add(path, "keepad", controls, dense=False)
    for path in args.without_teacher:
        add(path, "without teacher", pruned, dense=True)
    for path in (*args.adopted, *args.seeds):
        found = bench.measure(path, [PLAIN["prune70"]], dense=False)
        seeds.setdefault(" ".join(found), []).append(summary(found, "prune70"))
    write()


def training_of(path: Path) -> dict[str, Any]:
    """How the routers of a checkpoint came about, from what it says itself."""
    routers = read_checkpoint(path)[0].provenance["routers"]
    return {"command": routers["command"], "epochs": routers["recipe"]["epochs"], "kept": routers["epoch"]}


def to_markdown(
    table: dict[str, dict[str, Any]], seeds: dict[str, list[dict[str, Any]]], trained: Sequence[dict[str, Any]]
) -> str:
    """One table a direction, their mean, the seeds, and how the checkpoints were trained."""
    lines = [
        "# Routers on suites they were not trained on",
        "",
        "Made by `python scripts/compare_routers.py` (its first lines show the whole command). I/P-AUROC in percent",
        "at 518 px with the change against the same checkpoint unpruned; means over the classes of a suite, then over",
        "suites. DTR and CMR over all anomalous images with masks, CMR with its two-sided 95 % interval, both also by",
        "the size of the defect in tokens. `keep`: tokens alive after the shallow and after the deep router. `paper`:",
        "the published recipe and geometry (one token of every 2x2 block); `keepad`: the adopted one. Other rows",
        "are controls at the budget of prune70: the shallow router replaced by global top-k, and the adaptive budget",
        "by its mean over these images.",
        "",
    ]
    head = "| | I-AUROC | P-AUROC | DTR | CMR | keep | DTR 1-4 | DTR 5-16 | DTR >16 | CMR 1-4 | CMR 5-16 | CMR >16 |"
    for direction, rows in table.items():
        lines += [f"## Unseen: {direction}", "", head, f"|---|{'---|' * 11}"]
        lines += [_line(name, one, rows) for name, one in rows.items()]
        lines.append("")
    if len(table) > 1:
        shared = [name for name in next(iter(table.values())) if all(name in rows for rows in table.values())]
        lines += [
            "## Mean of the directions",
            "",
            "| | I-AUROC | P-AUROC | DTR | CMR | keep |",
            "|---|---|---|---|---|---|",
        ]
        mean = {name: _mean([rows[name] for rows in table.values()]) for name in shared}
        for name, one in mean.items():
            base = mean.get(f"{name.split(':')[0]}: dense")
            cells = [_change(one[key], base and base[key]) for key in ("image", "pixel")]
            kept = f"{100 * one['keep_shallow']:.1f} / {100 * one['keep']:.1f}"
            lines.append(
                f"| {name} | {cells[0]} | {cells[1]} | {100 * one['dtr']:.1f} | {100 * one['cmr']:.2f} | {kept} |"
            )
        lines.append("")
    if any(len(found) > 1 for found in seeds.values()):
        lines += [
            "## Adopted recipe at prune70, by seed",
            "",
            "| unseen | seeds | I-AUROC | P-AUROC | DTR | CMR | keep |",
        ]
        lines.append("|---|---|---|---|---|---|---|")
        for direction, found in seeds.items():
            columns = [[100 * one[key] for one in found] for key in ("image", "pixel")]
            columns += [[100 * one["survival"][key] for one in found] for key in ("dtr", "cmr")]
            columns.append([100 * one["keep"] for one in found])
            cells = [f"{np.mean(values):.2f} ± {np.std(values, ddof=1):.2f}" for values in columns]
            lines.append(f"| {direction} | {len(found)} | {' | '.join(cells)} |")
        lines.append("")
    lines += ["## Checkpoints", "", "| command | epochs | the one that was kept |", "|---|---|---|"]
    lines += [f"| `{one['command']}` | {one['epochs']} | {one['kept']} |" for one in trained]
    lines.append("")
    return "\n".join(lines)


def _line(name: str, one: dict[str, Any], rows: dict[str, Any]) -> str:
    base = rows.get(f"{name.split(':')[0]}: dense")
    rate = one["survival"]
    cells = [_change(one[key], base and base[key]) for key in ("image", "pixel")]
    cells.append(f"{100 * rate['dtr']:.1f}")
    cells.append(f"{100 * rate['cmr']:.2f} [{100 * rate['cmr_low']:.2f}, {100 * rate['cmr_high']:.2f}]")
    cells.append(f"{100 * one['keep_shallow']:.1f} / {100 * one['keep']:.1f}")
    for key, digits in (("dtr", 1), ("cmr", 2)):
        for size in SIZES:
            value = one["by_size"][size][key]
            cells.append("-" if value is None else f"{100 * value:.{digits}f}")
    return f"| {name} | {' | '.join(cells)} |"


def _change(value: float, base: float | None) -> str:
    if base is None or base == value:
        return f"{100 * value:.1f}"
    return f"{100 * value:.1f} ({100 * (value - base):+.1f})"


def _mean(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    found = {key: float(np.mean([row[key] for row in rows])) for key in ("image", "pixel", "keep", "keep_shallow")}
    return {**found, **{key: float(np.mean([row["survival"][key] for row in rows])) for key in ("dtr", "cmr")}}


if __name__ == "__main__":
    main()
