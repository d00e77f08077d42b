"""reproduce(): train what is missing, evaluate all variants over one early pass, time them, write the page."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from keepad.arrays import Array
from keepad.benchmark import BenchmarkPlan, time_network, timed_images
from keepad.benchmark.matching import IMAGES, matched, mean_flops
from keepad.data import Dataset
from keepad.detector import Detector
from keepad.errors import KeepADError
from keepad.evaluate import Options, Results, Variant, evaluate
from keepad.files import replace_text, writable_folder
from keepad.images import read_image, spread, to_input
from keepad.loading import load
from keepad.network import Network
from keepad.presets import OperatingPoint, operating_point
from keepad.studies.reproduction.checkpoints import FULL, Need, obtain
from keepad.studies.reproduction.depth import depth_scan
from keepad.studies.reproduction.numbers import Measured
from keepad.studies.reproduction.page import write_page
from keepad.studies.reproduction.settings import Direction, Settings
from keepad.studies.reproduction.tables import TABLES, needs_of, variants_of
from keepad.studies.reproduction.variants import (
    Base,
    budget_variants,
    evidence_centres,
    evidence_variants,
    matched_keep,
    torch_network,
)

_SOURCE_IMAGES = 32  # that set constants of controls, spread evenly over the source


def reproduce(settings: Settings) -> Path:
    """The page of the chosen tables, with its figures beside it.

    Finished trainings, evaluated images and timings are kept below `out`, so that the same call goes on after a kill
    and ends with the same page.
    """
    writable_folder(settings.out)
    measured, scans, networks = [], {}, {}
    for direction in settings.directions():
        own, base, scan = _direction(settings, direction)
        measured.append(own)
        networks[direction.name] = base.network
        if scan is not None:
            scans[direction.name] = scan
    return write_page(settings, measured, scans, networks)


def _direction(settings: Settings, direction: Direction) -> tuple[Measured, Base, dict[str, Any] | None]:
    """Everything that is measured in one direction."""
    measured = Measured(direction.name, direction.title, direction.targets, direction.others)
    path = obtain(settings, direction, FULL)
    if path is None:
        raise KeepADError(
            f"there is no checkpoint for {direction.title}; name one with --{direction.name}, or leave --no-train out."
        )
    detector = load(path, engine="torch", weights=settings.weights, say=settings.say)
    base = Base.of(detector, settings.recipe)
    suites = [*direction.targets, *direction.others]
    if not any(TABLES[name].domain in ("industrial", "medical") for name in settings.tables):
        suites = list(direction.targets)
    dataset = settings.dataset.select(suites=suites)
    runs = writable_folder(settings.out / "runs")
    plain = _matched(runs, variants_of(settings.tables, base), base, dataset, measured)
    variants = [*plain, *_retrained(settings, direction, base, measured)]
    if "evidence" in settings.tables:
        file = runs / f"{direction.name}-{settings.recipe}-evidence.json"
        make = partial(evidence_centres, base, lambda: source_images(settings, direction, base))
        variants += evidence_variants(base, _kept(file, [base.network.digests(), repr(base.point)], make))

    def wave(name: str, listed: Sequence[Variant]) -> Results:
        folder = settings.out / "runs" / f"{direction.name}-{settings.recipe}-{name}-{_digest(listed, settings)}"
        settings.say(f"{direction.title}: evaluating {len(listed)} variants, {name}")
        options = Options(
            settings.batch, settings.limit, listed[0].name, command=settings.command, progress=settings.progress
        )
        results = evaluate(detector, dataset, listed, folder, options)
        measured.add(results)
        return results

    first = wave("variants", variants)
    if "adaptive" in settings.tables:
        wave("budgets", budget_variants(base, first))
    _time(settings, direction, base, variants, measured)
    scan = None
    if "depth" in settings.tables:
        file = settings.out / "runs" / f"{direction.name}-{settings.recipe}-depth.json"
        samples = dataset.select(suites=list(direction.targets), split="test").samples
        scan = depth_scan(base.network, samples, file, settings.progress)
    return measured, base, scan


def _matched(
    folder: Path, variants: Sequence[Variant], base: Base, dataset: Dataset, measured: Measured
) -> list[Variant]:
    """The variants, reducers among them at the FLOPs of their namesake, or without those that cannot get there."""
    namesakes = {variant.point.reducer.namesake for variant in variants if variant.point.reducer is not None}
    if not namesakes:
        return list(variants)
    samples = spread(dataset.select(suites=list(measured.targets), split="test").samples, IMAGES)
    points = [variant.point for variant in variants if variant.point.reducer is not None]

    def ratios() -> dict[str, Any]:
        images = [to_input(read_image(sample.image), base.network.image_size) for sample in samples]
        targets = {name: mean_flops(base.network, operating_point(name), images) for name in namesakes}
        return {point.name: _ratio(base.network, point, images, targets) for point in points}

    identity = [base.network.digests(), [repr(point) for point in points], [sample.image.name for sample in samples]]
    found = _kept(folder / f"{measured.name}-{base.recipe}-reducers.json", identity, ratios)
    measured.absent.update({name: value for name, value in found.items() if isinstance(value, str)})
    return [
        replace(variant, point=replace(variant.point, reducer=replace(reducer, ratio=found[variant.name])))
        if (reducer := variant.point.reducer) is not None
        else variant
        for variant in variants
        if not isinstance(found.get(variant.name), str)
    ]


def _ratio(network: Network, point: OperatingPoint, images: Sequence[Array], targets: dict[str, float]) -> float | str:
    """Share of tokens at which a reducer costs what its namesake does, or why there is none."""
    try:
        reducer = matched(network, [point], images, targets)[0].reducer
    except KeepADError as error:
        return str(error)
    return 0.0 if reducer is None else reducer.ratio


def _kept(file: Path, identity: Any, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What `make` gives, kept in a file, so that a resumed run need not compute it again."""
    identity = json.loads(json.dumps(identity))
    if file.is_file():
        known = json.loads(file.read_text(encoding="utf-8"))
        if known["identity"] == identity:
            values: dict[str, Any] = known["values"]
            return values
    made = make()
    replace_text(file, json.dumps({"identity": identity, "values": made}))
    return made


def _retrained(settings: Settings, direction: Direction, base: Base, measured: Measured) -> list[Variant]:
    """The full method with routers that were trained anew."""
    variants = []
    for need in needs_of(settings.tables, settings.seeds):
        try:
            path = obtain(settings, direction, need)
        except KeepADError as error:  # such as a layer pair that the head does not allow
            measured.absent[need.name] = str(error)
            continue
        if path is None:
            measured.absent[need.name] = "it needs routers trained anew, which --no-train left out."
            continue
        network = torch_network(load(path, engine="torch", weights=settings.weights, say=settings.say))
        variants.append(Variant(need.name, _point_of(settings, direction, base, need, network), Detector(network)))
    return variants


def _point_of(settings: Settings, direction: Direction, base: Base, need: Need, network: Any) -> OperatingPoint:
    """The full method with the constants of these routers; other layers at the keep of the full method."""
    if need.layers is None:
        return replace(Base.of(Detector(network), settings.recipe).point, name=need.name)
    return replace(matched_keep(base, network, source_images(settings, direction, base)), name=need.name)


def source_images(settings: Settings, direction: Direction, base: Base) -> list[Array]:
    """Images of the source, at input size, that set constants of controls."""
    samples = settings.dataset.select(suites=list(direction.source), split="test").samples
    chosen = spread(samples, 8 if settings.quick else _SOURCE_IMAGES)
    return [to_input(read_image(sample.image), base.network.image_size) for sample in chosen]


def _time(
    settings: Settings, direction: Direction, base: Base, variants: Sequence[Variant], measured: Measured
) -> None:
    """Milliseconds of the rows of timed tables, interleaved in one run; kept in a file."""
    rows = {row for name in settings.tables if TABLES[name].timed for row in TABLES[name].rows}
    timed = [variant for variant in variants if variant.name in rows and variant.detector is None]
    points = {variant.name: variant.point for variant in timed}
    if not points or not settings.time:
        return
    plan = BenchmarkPlan(
        points=tuple(points.values()),
        warmup=0 if settings.quick else 2,
        repeats=1 if settings.quick else 3,
        images=1 if settings.quick else 4,
        memory=False,
    )

    def milliseconds() -> dict[str, float]:
        settings.say(f"{direction.title}: timing {len(points)} variants")
        images = timed_images(None, plan.images)
        with settings.progress("benchmark", plan.passes(len(images.images))) as advance:
            protocol: dict[str, Any] = {"weights": "pretrained", "say": settings.say, "advance": advance}
            (records,) = time_network(base.network, plan, images, **protocol)
        return {record.point: record.median_ms for record in records}

    file = settings.out / "runs" / f"{direction.name}-{settings.recipe}-times.json"
    identity = [[repr(point) for point in points.values()], base.network.digests()]
    measured.milliseconds.update(_kept(file, identity, milliseconds))


def _digest(variants: Sequence[Variant], settings: Settings) -> str:
    """Part of a folder's name: other tables or another limit go to another folder instead of being refused."""
    words = json.dumps([[variant.name for variant in variants], settings.limit, settings.dataset.root.name])
    return hashlib.sha256(words.encode()).hexdigest()[:8]
