"""The page of a reproduction: every table and figure by its name, the paper's numbers beside ours."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from keepad.console import command_line
from keepad.errors import KeepADError
from keepad.evaluate.markdown import NOTHING, table
from keepad.evaluate.paper import reported
from keepad.files import replace_text
from keepad.network import Network
from keepad.studies.reproduction import paper
from keepad.studies.reproduction.conclusions import conclusion_rows
from keepad.studies.reproduction.figures import write_figures
from keepad.studies.reproduction.numbers import Measured, Numbers, merged_means
from keepad.studies.reproduction.settings import FIRST, Settings
from keepad.studies.reproduction.tables import MAIN, TABLES
from keepad.studies.reproduction.variants import RANDOM_SEEDS

_HEADINGS = {
    "i_auroc": "I-AUROC",
    "p_auroc": "P-AUROC",
    "keep_shallow": "shallow keep",
    "keep_deep": "deep keep",
    "keep": "final keep",
    "dtr": "DTR",
    "cmr": "CMR",
    "speed": "images/s",
    "gflops": "GFLOPs",
}
_DIGITS = {"cmr": 2, "dtr": 1, "gflops": 2}
_MEDICAL = ("oct17", "brainmri", "brainad", "his", "cvcclinicdb", "clinicdb", "endo", "kvasir")
_PAPER_BACKBONE = "clip-vit-l-14-336"


def write_page(
    settings: Settings,
    measured: Sequence[Measured],
    scans: Mapping[str, dict[str, Any]],
    networks: Mapping[str, Network],
) -> Path:
    """index.md with its figures and numbers.json, in the folder of the reproduction."""
    figures = write_figures(settings, measured, scans, networks)
    blocks = _top(settings, measured, networks)
    blocks += ["## Conclusions of the paper on our data", *conclusion_rows(measured, settings.tables)]
    for name in settings.tables:
        blocks += [f"## {TABLES[name].title}", f"`--tables {name}`"]
        blocks += _BODIES.get(name, _plain)(name, settings, measured, scans)
        blocks += [f"![{TABLES[name].title}]({file})" for file in figures.get(name, ())]
    path = settings.out / "index.md"
    numbers = {own.name: {variant: own.numbers(variant, own.targets) for variant in _variants(own)} for own in measured}
    try:
        replace_text(settings.out / "numbers.json", json.dumps(numbers, indent=1) + "\n")
        replace_text(path, "\n\n".join(blocks) + "\n")
    except OSError as error:
        raise KeepADError(f"{path} cannot be written: {error.strerror or error}; make room and run again.") from error
    return path


def _variants(measured: Measured) -> list[str]:
    return list(dict.fromkeys(name for content in measured.contents for name in content["settings"]["points"]))


def _top(settings: Settings, measured: Sequence[Measured], networks: Mapping[str, Network]) -> list[str]:
    network = next(iter(networks.values()))
    height, width = network.image_size
    counts = []
    for own in measured:
        of_suites = own.contents[0]["settings"]["data"]["suites"]
        images = sum(of_suites[suite]["good"] + of_suites[suite]["defect"] for suite in own.targets)
        counts.append(f"{own.title}: {images} images ({networks[own.name].name})")
    differs = [
        f"- backbone {network.backbone_name} at {width} x {height}; the paper's tables are of {_PAPER_BACKBONE} at "
        "518 x 518, except that of backbones",
        f"- data: {'; '.join(counts)}; the paper's directions are MVTec AD → VisA and back, on whole test sets",
        f"- recipe {settings.recipe}"
        + ("" if settings.recipe == "paper" else ", not the published one: other losses, constants and a pixel router"),
        f"- device {measured[0].contents[0]['settings']['device']}; the paper's times are of one RTX 5090",
    ]
    if not settings.time:
        differs.append("- speeds are left out (`--no-time`); counted GFLOPs stand for them")
    if settings.limit is not None:
        differs.append(f"- at most {settings.limit} images per class, so intervals are wide")
    if settings.quick:
        differs.append("- `--quick`: one epoch on a few images, a test of the path and not a result")
    return [
        f"Made by `{command_line(settings.command)}`; do not edit.",
        f"# The paper's tables and figures on {network.backbone_name}, recipe {settings.recipe}",
        "Cells read ours / the paper's, in percent unless a heading says otherwise. AUROCs are means over the classes "
        "of a suite and over suites; DTR and CMR are over anomalous images, from physical survivors. `full` is prune70 "
        "without the pixel router, which controls change one thing of.",
        "What differs from the paper:",
        "\n".join(differs),
    ]


def _plain(name: str, settings: Settings, measured: Sequence[Measured], scans: Any) -> list[str]:
    """One table for each direction, with the metrics that the paper prints."""
    metrics = paper.COLUMNS.get(name, ("i_auroc", "p_auroc", "keep", "dtr", "cmr", "speed"))
    told_of, blocks = metrics, list[str]()
    if "speed" in metrics:  # counted FLOPs are of the method, times of the machine
        metrics = (*metrics, "gflops")
    for own in measured:
        suites = _suites(name, own)
        if not suites:
            continue
        told = paper.REPORTED.get(name, {})
        theirs = told.get(own.name, told.get("average", {}))
        rows, absent = [], []
        for row in TABLES[name].rows:
            numbers = _numbers(own, row, suites)
            if not numbers and row in own.absent:
                absent.append(f"{row}: {own.absent[row]}")
            elif not numbers and row == "deep without dissimilarity":
                continue  # the published form has no such cue
            beside = theirs.get(row)
            if beside is not None:
                beside = (*beside, *(None for _ in metrics[len(told_of) :]))
            rows.append([row, *_cells(numbers, metrics, beside)])
        blocks += [f"**{own.title}**", _table(metrics, rows)]
        blocks += [f"Not measured: {sentence}" for sentence in absent]
    return blocks or ["No suite of this kind is in the data."]


def _suites(name: str, own: Measured) -> tuple[str, ...]:
    if TABLES[name].domain == "medical":
        return tuple(suite for suite in (*own.targets, *own.others) if _plain_name(suite) in _MEDICAL)
    return own.targets


def _plain_name(suite: str) -> str:
    return "".join(letter for letter in suite.lower() if letter.isalnum())


def _numbers(own: Measured, row: str, suites: Sequence[str]) -> Numbers:
    if row == "rescue random":
        runs = [own.numbers(f"{row} {seed}", suites) for seed in RANDOM_SEEDS]
        return merged_means([run for run in runs if run])[0]
    return own.numbers(row, suites)


def _table(metrics: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return table(("", *(_HEADINGS[metric] for metric in metrics)), [list(row) for row in rows])


def _cells(numbers: Numbers, metrics: Sequence[str], theirs: Sequence[float | None] | None) -> list[str]:
    beside = dict(zip(metrics, theirs, strict=True)) if theirs is not None else {}
    return [_pair(numbers.get(metric), beside.get(metric), _DIGITS.get(metric, 1)) for metric in metrics]


def _pair(ours: float | None, theirs: float | None, digits: int = 1) -> str:
    left = NOTHING if ours is None else f"{ours:.{digits}f}"
    return left if theirs is None else f"{left} / {theirs:.{digits}f}"


def _by_suite(name: str, settings: Settings, measured: Sequence[Measured], scans: Any) -> list[str]:
    """The main tables: a column for each suite, then the mean and the speed."""
    medical = TABLES[name].domain == "medical"
    suites = [
        (own, suite)
        for own in measured
        for suite in (*own.targets, *own.others)
        if (_plain_name(suite) in _MEDICAL) == medical
    ]
    if not suites:
        return ["The data hold no medical suite." if medical else "The data hold no industrial suite."]
    blocks, rows = [], []
    average = paper.REPORTED[name]["average"]
    for point in MAIN:
        cells, values = [point], list[Numbers]()
        for own, suite in suites:
            numbers, told = own.numbers(point, (suite,)), reported(suite)
            theirs = told[1][_paper_point(point)] if told else (None, None)
            values.append(numbers)
            cells.append(
                ", ".join(_pair(numbers.get(m), t) for m, t in zip(("i_auroc", "p_auroc"), theirs, strict=True))
            )
        means, _ = merged_means(values)
        told_mean = average[point]
        cells.append(", ".join(_pair(means.get(m), t) for m, t in zip(("i_auroc", "p_auroc"), told_mean, strict=False)))
        speeds = [own.milliseconds.get(point) for own in measured]
        known = [1e3 / speed for speed in speeds if speed]
        cells.append(_pair(sum(known) / len(known) if known else None, told_mean[2], 2))
        rows.append(cells)
    columns = ("", *(f"{suite} (I, P)" for _, suite in suites), "mean (I, P)", "images/s")
    blocks.append(table(columns, rows))
    blocks.append("The paper's means are over its own six (medical: seven) suites.")
    return blocks


def _paper_point(point: str) -> str:
    return point.replace("prune", "paper")


def _sizes(name: str, settings: Settings, measured: Sequence[Measured], scans: Any) -> list[str]:
    rows = []
    for own in measured:
        for label, bounds in (("1-4", (1, 4)), ("5-16", (5, 16)), (">16", (17, float("inf")))):
            rates = [own.survival(variant, own.targets, sizes=bounds)[1] for variant in TABLES[name].rows]
            theirs = paper.MISSED_BY_SIZE[own.name].get(label, (None, None))
            shown = [
                _pair(100 * float(rate.mean()) if len(rate) else None, told, 2)
                for rate, told in zip(rates, theirs, strict=True)
            ]
            rows.append([own.title, label, str(len(rates[0])), *shown])
    return [table(("", "defect tokens", "images", "CMR, coverage", "CMR, global top-k"), rows)]


def _backbones(name: str, settings: Settings, measured: Sequence[Measured], scans: Any) -> list[str]:
    metrics = paper.COLUMNS[name]
    backbone = measured[0].contents[0]["settings"]["backbone"]
    theirs = paper.BACKBONES.get(backbone, {})
    blocks = []
    for own in measured:
        told = theirs.get(own.name, {})
        rows = [[f"{backbone}, {row}", *_cells(own.numbers(row, own.targets), metrics, told.get(row))] for row in MAIN]
        rows += [
            [f"{other}, {row}", *(f"{NOTHING} / {value:g}" for value in values if value is not None)]
            for other, directions in paper.BACKBONES.items()
            if other != backbone
            for row, values in directions[own.name].items()
        ]
        blocks += [f"**{own.title}**", _table(metrics, rows)]
    return [*blocks, "One run has one backbone; run the command with another `--backbone` for its rows."]


def _depth(name: str, settings: Settings, measured: Sequence[Measured], scans: Mapping[str, Any]) -> list[str]:
    rows = []
    for own in measured:
        known, depth = scans[own.name]["auroc"], len(scans[own.name]["auroc"])
        for layer, value in known.items():
            place = int(layer) * 24 / depth
            theirs = paper.TOKEN_AUROC[own.name].get(round(place)) if abs(place - round(place)) < 1e-6 else None
            rows.append([own.title, layer, _pair(value, theirs)])
    return [
        "Token AUROC of the trained shallow scorer on the tokens that enter each layer, mean over images; the paper's "
        "at the same fraction of its 24 layers.",
        table(("", "layer", "token AUROC"), rows),
    ]


def _keep_by_class(name: str, settings: Settings, measured: Sequence[Measured], scans: Any) -> list[str]:
    rows = []
    for own in measured:
        shares: tuple[list[float], list[float]] = ([], [])
        for row in own.rows("full", own.targets):
            values = row["points"]["full"]
            shares[row["label"]].append(100 * values["keep"] / values["keep_shallow"])
        theirs = paper.KEEP_BY_CLASS if own.name == FIRST else (None, None)
        means = [sum(own_shares) / len(own_shares) if own_shares else None for own_shares in shares]
        rows.append([own.title, *(_pair(mean, told) for mean, told in zip(means, theirs, strict=True))])
    return [table(("", "normal images", "anomalous images"), rows)]


def _seeds(name: str, settings: Settings, measured: Sequence[Measured], scans: Any) -> list[str]:
    metrics, blocks = paper.COLUMNS[name], []
    for own in measured:
        rows = []
        for row in TABLES[name].rows:
            names = [row, *(f"{row}, seed {seed}" for seed in settings.seeds[1:])]
            runs = [numbers for numbers in (own.numbers(each, own.targets) for each in names) if numbers]
            means, deviations = merged_means(runs)
            theirs = dict(zip(metrics, paper.REPORTED[name][own.name][row], strict=True))
            cells = []
            for metric in metrics:
                mean, spread = means.get(metric), deviations.get(metric)
                ours = NOTHING if mean is None else f"{mean:.2f} ± {spread:.2f}"
                cells.append(f"{ours} / {theirs[metric]:g}")
            rows.append([f"{row} ({len(runs)} seeds)", *cells])
        blocks += [f"**{own.title}**", _table(metrics, rows)]
        blocks += [f"Not measured: {each}: {why}" for each, why in own.absent.items() if "seed" in each]
    return blocks


def _recovery(name: str, settings: Settings, measured: Sequence[Measured], scans: Any) -> list[str]:
    """The plain table, and whether recovery leaves scores alone and the score leaves maps alone, to the last digit."""
    blocks = _plain(name, settings, measured, scans)
    for own in measured:
        maps = [own.numbers(row, own.targets).get("p_auroc") for row in TABLES[name].rows if row.startswith("score")]
        recoveries = [row for row in TABLES[name].rows if row.startswith("recovery")]
        worst = 0.0
        for row in own.rows(recoveries[0], own.targets):
            scores = [row["points"][each]["score"] for each in recoveries]
            worst = max(worst, max(scores) - min(scores))
        known = [value for value in maps if value is not None]
        spread = max(known) - min(known) if known else 0.0
        blocks.append(
            f"Checked on {own.title}: recoveries change the score of an image by at most {worst:.1e}; scores change "
            f"P-AUROC by {spread:.1e} points."
        )
    return blocks


def _reducers(name: str, settings: Settings, measured: Sequence[Measured], scans: Any) -> list[str]:
    """Accuracy, survival and cost; the paper prints AUROCs and speed of these."""
    metrics, blocks = ("i_auroc", "p_auroc", "keep", "dtr", "cmr", "gflops", "speed"), []
    for own in measured:
        rows = []
        for row in TABLES[name].rows:
            told = paper.REPORTED[name][own.name][row]
            beside = (told[0], told[1], None, None, None, None, told[2])
            rows.append([row, *_cells(own.numbers(row, own.targets), metrics, beside)])
        blocks += [f"**{own.title}**", _table(metrics, rows)]
        blocks += [f"Not measured: {row}: {own.absent[row]}" for row in TABLES[name].rows if row in own.absent]
        alone = own.survival("tome70", own.targets, "defect_alone")
        if len(alone[0]):
            blocks.append(
                "ToMe: a position survives here if a token grew from it; counting only tokens that were averaged with "
                f"no other, DTR is {100 * float(alone[0].mean()):.1f} and CMR {100 * float(alone[1].mean()):.2f}."
            )
    return [
        *blocks,
        "All at the counted FLOPs of prune70, matched on 16 of the images; dropped cells take the response of a "
        "survivor of their block, or of the nearest one.",
    ]


_Body = Callable[[str, Settings, Sequence[Measured], Any], list[str]]
_BODIES: dict[str, _Body] = {
    "industrial": _by_suite,
    "medical": _by_suite,
    "sizes": _sizes,
    "backbones": _backbones,
    "depth": _depth,
    "keep-by-class": _keep_by_class,
    "keep-by-evidence": lambda *_: ["Every image of the first direction by its evidence and the share that it keeps."],
    "routing": lambda *_: ["Demo images: tokens after either router, and the recovered map."],
    "seeds": _seeds,
    "recovery": _recovery,
    "reducers": _reducers,
}
