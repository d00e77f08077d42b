"""Time of a pass with references beside one without, and beside dense with a dense bank.

    python benchmarks/references.py --data ../shared/data --model i2m --exported exports/i2m-int8 \\
        --out docs/benchmark/references.md

All runs are interleaved in one process, on the same test images of each class, half of them defective. References are
good images of the train split; each network is taught with its own tokens, at the point that it runs with them. A pass
starts from pixels at input size and ends with map and score, so matching is inside. Ratios are taken image by image
within a repeat. On a machine that does other work meanwhile the numbers mean little.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import keepad
from keepad.arrays import Array
from keepad.benchmark import Runner, Timing, measure
from keepad.console import command_line, progress, say_on_stderr
from keepad.data import Sample, read_dataset
from keepad.detector import Detector
from keepad.engines.network import EngineNetwork
from keepad.evaluate.markdown import table
from keepad.evaluate.selection import groups_of
from keepad.evaluate.shots import ReferencePool, draw
from keepad.evaluate.variants import Shots, Variant
from keepad.files import replace_text
from keepad.images import read_image, to_input
from keepad.latency import cpu_name
from keepad.network import Network
from keepad.presets import operating_point
from keepad.references.teaching import teach_bank

DENSE = "dense"


@dataclass(frozen=True)
class Run:
    """What is timed: a network, by name, at a point, with references or without."""

    network: str
    point: str
    references: bool

    @property
    def name(self) -> str:
        """Its name in tables."""
        return f"{self.network}: {self.point}{' with references' if self.references else ''}"


def runs_of(networks: Sequence[str], point: str) -> list[Run]:
    """Each network at the pruned point and at dense, without references and with them."""
    return [
        Run(network, each, references)
        for network in networks
        for each in (point, DENSE)
        for references in (False, True)
    ]


def ratio(ms: Mapping[str, Array], slower: Run, faster: Run) -> float:
    """Median over images and repeats of the time of one run over that of another."""
    return float(np.median(np.divide(ms[slower.name], ms[faster.name])))


def detectors_of(args: argparse.Namespace) -> dict[str, Detector]:
    """The detector in torch, then those of the exported folders, by what runs them."""
    found = {"torch": keepad.load(args.model, engine="torch", device="cpu")}
    for folder in args.exported:
        detector = keepad.load(folder)
        found[f"{detector.runs_on}, {detector.precision}"] = detector
    return found


def time_class(
    detectors: Mapping[str, Detector],
    runs: Sequence[Run],
    references: Sequence[Sample],
    samples: Sequence[Sample],
    args: argparse.Namespace,
) -> dict[str, Any]:
    """Milliseconds of every run on the images of a class, the tokens that it kept, and those in its bank."""
    runners = []
    for run in runs:
        detector, point, bank = detectors[run.network], operating_point(run.point), None
        if run.references:
            bank = teach_bank(detector, [sample.image for sample in references], point, {})
        assert isinstance(detector.network, Network | EngineNetwork)
        runners.append(Runner(detector.network, point, bank))
    size = detectors["torch"].image_size
    batches = [to_input(read_image(sample.image), size)[None] for sample in samples]
    sizes = detectors["torch"].network
    assert isinstance(sizes, Network)
    timings = measure(runners, batches, sizes, warmup=args.warmup, repeats=args.repeats, memory=False)
    return {
        "images": len(batches),
        "references": len(references),
        "runs": {run.name: _described(timing) for run, timing in zip(runs, timings, strict=True)},
    }


def _described(timing: Timing) -> dict[str, Any]:
    bank = timing.runner.bank
    return {
        "ms": timing.ms.round(3).tolist(),  # (repeats, images)
        "keep": timing.keep,
        "bank": None if bank is None else bank.layers.shape[1],
    }


def measured(args: argparse.Namespace) -> dict[str, Any]:
    """Settings and the measurements of every class."""
    detectors = detectors_of(args)
    dataset = read_dataset(args.data).select(suites=args.suites.split(","), classes=args.classes)
    runs = runs_of(list(detectors), args.point)
    shots = Shots(args.references, 0)
    groups = groups_of(dataset, args.images)
    pool = ReferencePool(dataset, groups, [Variant("with references", operating_point(args.point), shots=shots)])
    classes = []
    load = os.getloadavg()[0]
    with progress("classes", len(groups)) as advance:
        for name, samples in pool.without_references(groups).items():
            references = draw(pool.of(name), shots, name)
            found = time_class(detectors, runs, references, samples, args)
            classes.append({"suite": name[0], "class": name[1], **found})
            advance()
    settings = {
        "command": command_line(["python", *sys.argv]),
        "model": detectors["torch"].name,
        "digests": {name: detector.digests() for name, detector in detectors.items()},
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load": load,
        "point": args.point,
        "networks": list(detectors),
        "repeats": args.repeats,
        "version": keepad.__version__,
    }
    return {"settings": settings, "classes": classes}


def times_of(classes: Sequence[dict[str, Any]]) -> dict[str, Array]:
    """(times,) milliseconds of each run over all these classes, image by image, by name."""
    return {
        name: np.concatenate([np.ravel(each["runs"][name]["ms"]) for each in classes]) for name in classes[0]["runs"]
    }


def to_markdown(content: dict[str, Any]) -> str:
    """The page."""
    settings, classes = content["settings"], content["classes"]
    networks, point = settings["networks"], settings["point"]
    runs = runs_of(networks, point)
    ms = times_of(classes)
    rows = []
    for run in runs:
        plain, best = Run(run.network, run.point, False), Run(run.network, point, True)
        described = [each["runs"][run.name] for each in classes]
        bank = "" if described[0]["bank"] is None else f"{np.mean([each['bank'] for each in described]):.0f}"
        kept = 100 * np.mean([each["keep"] for each in described])
        cells = [f"{np.median(ms[run.name]):.1f}", f"{kept:.1f}", bank]
        rows.append([run.name, *cells, *(f"{ratio(ms, run, other):.2f}" for other in (plain, best))])
    columns = ["run", "median, ms", "kept, %", "tokens in the bank", "times without references"]
    columns.append(f"times {point} with references")
    images = sum(each["images"] for each in classes)
    counts = sorted({each["references"] for each in classes})
    return (
        "\n\n".join(
            [
                f"Made by `{settings['command']}`; do not edit.",
                "# Time with references",
                f"{settings['model']} on {settings['cpu']}, {settings['cores']} cores, torch with "
                f"{settings['threads']} threads; {', '.join(map(str, counts))} references, {images} images of "
                f"{len(classes)} classes, {settings['repeats']} passes each, interleaved. The load of the machine "
                f"before was {settings['load']:.1f}. Ratios are medians of ratios image by image, to the same network.",
                table(columns, rows),
                "## By class",
                table(*_by_class(classes, networks, point)),
            ]
        )
        + "\n"
    )


def _by_class(
    classes: Sequence[dict[str, Any]], networks: Sequence[str], point: str
) -> tuple[list[str], list[list[str]]]:
    """Columns and rows: with references over without, and dense with a dense bank over both."""
    columns = ["class"]
    for network in networks:
        columns += [f"{network}: {point} with / without", f"{network}: dense / {point}, both with"]
    if len(networks) > 1:
        columns += [f"{networks[0]} dense / {network} {point}, both with" for network in networks[1:]]
    rows = []
    for name, some in [(f"{each['suite']}/{each['class']}", [each]) for each in classes] + [("all", list(classes))]:
        ms = times_of(some)
        cells = []
        for network in networks:
            best = Run(network, point, True)
            cells += [ratio(ms, best, Run(network, point, False)), ratio(ms, Run(network, DENSE, True), best)]
        cells += [ratio(ms, Run(networks[0], DENSE, True), Run(network, point, True)) for network in networks[1:]]
        rows.append([name, *(f"{cell:.2f}" for cell in cells)])
    return columns, rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="a folder with all suites")
    parser.add_argument("--out", type=Path, required=True, help="the page, a .md file; a .json file comes beside it")
    parser.add_argument("--suites", default="mvtec", help="suites, separated by commas")
    parser.add_argument("--classes", type=lambda text: text.split(","), help="only these, separated by commas")
    parser.add_argument("--model", default="i2m")
    parser.add_argument("--exported", nargs="*", default=[], help="folders of keepad export, of the same checkpoint")
    parser.add_argument("--point", default="prune70")
    parser.add_argument("--references", type=int, default=16)
    parser.add_argument("--images", type=int, default=16, help="test images of each class, half of them defective")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--warmup", type=int, default=2)
    args = parser.parse_args()
    content = measured(args)
    replace_text(args.out.with_suffix(".json"), json.dumps(content, indent=1) + "\n")
    replace_text(args.out, to_markdown(content))
    say_on_stderr(f"written: {args.out}")


if __name__ == "__main__":
    main()
