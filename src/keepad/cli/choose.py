"""keepad choose: the fastest operating point and engine with a bound on missed defects."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from keepad.cli.options import DeviceOption, ModelOption, WeightsOption, parts_of, rate_of
from keepad.errors import KeepADError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from keepad.detector import Detector

_CALIBRATION_IMAGES = 64  # for an int8 export that does not exist yet


def choose(
    data: Annotated[
        Path, typer.Option("--data", "-d", help="A folder with labelled images of one product, or an index file.")
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Folder for the chosen profile, choice.md and the state of the run.")
    ],
    max_miss: Annotated[
        str, typer.Option("--max-miss", help="Highest share of defective images not called defect, such as 2%.")
    ],
    confidence: Annotated[str, typer.Option("--confidence", help="Confidence of the bounds, such as 95%.")] = "95%",
    max_lost: Annotated[
        str | None, typer.Option("--max-lost", help="Highest share of defects that lose all tokens; needs masks.")
    ] = None,
    false_alarms: Annotated[
        str, typer.Option("--false-alarms", help="Promised share of good images called defect, at every point.")
    ] = "1%",
    good: Annotated[
        list[Path] | None,
        typer.Option("--good", help="Good images, or a folder of them, that calibrate; those of the data if left out."),
    ] = None,
    profile: Annotated[
        Path | None, typer.Option("--profile", help="Profile with references; it stays as it is.")
    ] = None,
    points: Annotated[
        str, typer.Option("--points", "-p", help="Operating points, separated by commas; dense is always tested.")
    ] = "dense,prune30,prune50,prune70",
    engines: Annotated[
        str, typer.Option("--engines", help="Engines as in --engine, separated by commas: torch,openvino:int8.")
    ] = "auto",
    suites: Annotated[str | None, typer.Option("--suites", help="Only these suites, separated by commas.")] = None,
    classes: Annotated[str | None, typer.Option("--classes", help="Only these classes, separated by commas.")] = None,
    layout: Annotated[
        str | None, typer.Option("--layout", help="How the folder is arranged, if it is not recognised.")
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start over instead of continuing the run in the folder.")
    ] = False,
    model: ModelOption = None,
    weights: WeightsOption = None,
    device: DeviceOption = None,
) -> None:
    """Choose the fastest operating point that misses few enough defects, with the bound that holds for it.

    Can be interrupted: the same command goes on where it stopped. Exits with 1 if no point keeps the bound, or if some
    images could not be used.
    """
    from keepad.checkpoint import bundled_checkpoints
    from keepad.console import progress, say_on_stderr, stdout
    from keepad.data import read_dataset
    from keepad.evaluate import Options
    from keepad.evaluate.choosing import Bounds, Question, choose_point, labelled
    from keepad.files import writable_folder
    from keepad.images import find_images
    from keepad.presets import operating_point
    from keepad.references.calibrating import Promise
    from keepad.references.profile import read_profile

    bounds = Bounds(
        rate_of("--max-miss", max_miss),
        None if max_lost is None else rate_of("--max-lost", max_lost),
        rate_of("--confidence", confidence),
    )
    promise = Promise(rate_of("--false-alarms", false_alarms))
    named = [operating_point(name) for name in dict.fromkeys(["dense", *parts_of(points)])]
    dataset = read_dataset(data, layout).select(
        suites=None if suites is None else parts_of(suites),
        classes=None if classes is None else parts_of(classes),
    )
    target = out / ("chosen.keepad" if profile is None else profile.name)
    if profile is not None and target.exists() and target.samefile(profile):
        raise KeepADError(f"the chosen profile would take the place of {profile}; choose another --out.")
    taught = None if profile is None else read_profile(profile)
    if model is None and taught is not None and taught.owner.name in bundled_checkpoints():
        model = taught.owner.name
    images = labelled(dataset, find_images(good) if good else [], taught, say_on_stderr)
    promise.require(len(images.good))
    if len(dataset.classes) > 1:
        say_on_stderr(f"the data holds {len(dataset.classes)} products; thresholds and misses are pooled over them.")
    writable_folder(out)
    of_engines = {}
    for engine in parts_of(engines):
        some = [sample.image for sample in images.dataset.samples if sample.label == 0][:_CALIBRATION_IMAGES]
        of_engines[engine] = _open(model, engine, weights, device, some)
    options = Options(fresh=fresh, command=sys.argv, progress=progress)
    try:
        question = Question(of_engines, named, bounds, promise, taught)
        outcome = choose_point(question, images, out, options=options, say=say_on_stderr)
    except KeyboardInterrupt:
        say_on_stderr("interrupted: the same command goes on where it stopped.")
        raise typer.Exit(130) from None
    stdout.print(outcome.page, markup=False, highlight=False, soft_wrap=True)
    if outcome.profile is None:
        say_on_stderr("no profile was written, because no operating point keeps the bounds.")
        raise typer.Exit(1)
    outcome.profile.save(target)
    stdout.print(f"profile: {target}", soft_wrap=True, highlight=False)


def _open(model: str | None, engine: str, weights: Path | None, device: str | None, images: Sequence[Path]) -> Detector:
    """A zero-shot detector on an engine; an int8 export that does not exist yet is made from good images."""
    from keepad.engines.folder import is_exported
    from keepad.loading import load, load_network, parse_engine

    kind, precision = parse_engine(engine)
    if precision == "int8" and not is_exported(model):
        from keepad.console import say_on_stderr
        from keepad.engines.export import exported

        network = load_network(model, device="cpu", weights=weights)
        exported(network, kind, precision, say=say_on_stderr, images=list(images))
    return load(model, engine=engine, device=device, weights=weights)
