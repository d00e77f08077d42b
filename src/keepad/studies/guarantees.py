"""Whether promises hold: false-alarm and false-discovery rates on real scores and in simulation, and wrong choices.

    python -m keepad.studies.guarantees --data ../shared/data --out docs/decisions

Good images of products that a checkpoint was not trained on are split at random, many times, into images that calibrate
and images that are judged. Simulations draw scores whose true rates are known. OUT/guarantees.md has the tables,
OUT/state the evaluations behind them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from scipy.special import ndtr

from keepad.arrays import Array
from keepad.console import command_line, progress
from keepad.data import Dataset
from keepad.decisions import calibrate, choose, fdr_verdicts, images_needed, lowest_level
from keepad.evaluate import evaluate
from keepad.evaluate.markdown import table
from keepad.files import replace_text
from keepad.images import spread
from keepad.studies.command import directions, run_study, study_command, study_options, study_parser

POINT = "prune70"
LEVELS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.25)
FDR, PREVALENCE = 0.05, 0.4  # with few defects among many images, so few calibration images cannot call any
DEFECTIVE = 40  # of each class
MOST = 100  # good images that calibrate
SIMULATED = ((99, 0.01, None), (100, 0.05, None), (299, 0.01, 0.95), (59, 0.05, 0.95), (75, 0.1, 0.95))
# True miss rates of four points, tested at 2 % with 400 defects: what exceeds it must rarely be chosen.
CHOICES = {
    "only dense is good enough": (0.005, 0.0201, 0.021, 0.03),
    "none is, by a hair": (0.0201, 0.0201, 0.0201, 0.0201),
    "a faster point is good again": (0.001, 0.021, 0.002, 0.05),
    "all are": (0.001, 0.002, 0.003, 0.004),
}
MAX_MISS, DEFECTS = 0.02, 400


@dataclass(frozen=True)
class Product:
    """Scores of one class by a model that has not seen it.

    Attributes:
        name: Model, suite and class.
        good: (n,) scores of good images.
        highest: (n,) highest map values of the same images.
        defective: (m,) scores of defective images.
    """

    name: str
    good: Array
    highest: Array
    defective: Array


@dataclass(frozen=True)
class Splits:
    """Shares over random splits of one product, one value a split.

    Attributes:
        count: Good images that calibrated.
        level: Promised rate.
        alarms: Judged good images that were called `defect`.
        pixels: Judged good images with a pixel above the pixel threshold.
        found: Defective images that were called `defect`.
    """

    count: int
    level: float
    alarms: Array
    pixels: Array
    found: Array


def products(data: Path, models: Sequence[str], suites: Sequence[str], args: object, out: Path) -> Iterator[Product]:
    """Every class of the suites that a model has not seen, evaluated at one operating point."""
    for each in directions(data, models):
        wanted = [suite for suite in each.dataset.suites if suite in suites]
        if not wanted:
            continue
        dataset = _fewer_defective(each.dataset.select(suites=wanted, split="test"))
        options = study_options(args, reference=POINT)  # type: ignore[arg-type]
        results = evaluate(each.detector, dataset, [POINT], out / "state" / each.name, options)
        for suite, cls in dict.fromkeys((row["suite"], row["class"]) for row in results.images):
            rows = [row for row in results.images if (row["suite"], row["class"]) == (suite, cls)]
            values = {label: [row["points"][POINT] for row in rows if row["label"] == label] for label in (0, 1)}
            yield Product(
                f"{each.name}: {suite}/{cls}",
                np.array([own["score"] for own in values[0]]),
                np.array([own["highest"] for own in values[0]]),
                np.array([own["score"] for own in values[1]]),
            )


def _fewer_defective(dataset: Dataset) -> Dataset:
    """All good images, and some defective ones of each class: promises are about good images."""
    kept = [
        sample
        for group in dataset.by_class().values()
        for sample in (
            *(sample for sample in group if sample.label == 0),
            *spread([sample for sample in group if sample.label == 1], DEFECTIVE),
        )
    ]
    return replace(dataset, samples=tuple(kept))


def _calibrating(product: Product) -> int:
    """Good images that calibrate: a hundred where half as many are left to be judged, else half of them."""
    images = len(product.good)
    return MOST if images >= 1.5 * MOST + 1 else images // 2


def split_rates(product: Product, splits: int) -> Splits | None:
    """Rates over random splits at the lowest level that the images can promise; None where they can promise none."""
    count = _calibrating(product)
    levels = [level for level in LEVELS if count and level >= lowest_level(count)]
    if not levels:
        return None
    random, rates = np.random.default_rng(0), []
    for _ in range(splits):
        order = random.permutation(len(product.good))
        own, others = order[:count], order[count:]
        fitted = calibrate(product.good[own], level=levels[0], map_maxima=product.highest[own])
        assert fitted.pixel_threshold is not None
        rates.append(
            (
                (product.good[others] >= fitted.threshold).mean(),
                (product.highest[others] >= fitted.pixel_threshold).mean(),
                (product.defective >= fitted.threshold).mean(),
            )
        )
    return Splits(count, levels[0], *np.array(rates).T)


def split_rows(products: Sequence[Product], splits: int) -> list[list[str]]:
    """One line for each product."""
    rows = []
    for product in products:
        result = split_rates(product, splits)
        if result is None:
            rows.append([product.name, str(len(product.good)), *["–"] * 7])
            continue
        judged = len(product.good) - result.count
        error = np.sqrt(result.level * (1 - result.level) / judged)
        rows.append(
            [
                product.name,
                str(len(product.good)),
                str(result.count),
                _percent(result.level),
                _percent(result.alarms.mean()),
                f"± {_percent(error)}",
                "yes" if result.alarms.mean() <= result.level + error else "no",
                _percent(result.pixels.mean()),
                _percent(result.found.mean()),
            ]
        )
    return rows


def simulated_rows(draws: int) -> list[list[str]]:
    """True false-alarm rates of thresholds from drawn calibration sets, whose distribution is known."""
    random, rows = np.random.default_rng(1), []
    for count, level, confidence in SIMULATED:
        true = 1 - ndtr(
            [calibrate(random.normal(size=count), level=level, confidence=confidence).threshold for _ in range(draws)]
        )
        promise = "on average" if confidence is None else f"at {_percent(confidence)} % confidence"
        error = true.std() / np.sqrt(draws)
        above = (true > level).mean()
        kept = true.mean() <= level + 3 * error if confidence is None else above <= 1 - confidence + 3 * _error(draws)
        rows.append(
            [
                f"{_percent(level)} % {promise}",
                str(count),
                str(images_needed(level, confidence)),
                f"{_percent(true.mean())} ± {_percent(error)}",
                _percent(above),
                "yes" if kept else "no",
            ]
        )
    return rows


def _error(draws: int) -> float:
    """Deviation of a share of 5 % over so many draws."""
    return float(np.sqrt(0.05 * 0.95 / draws))


def discovery_rows(products: Sequence[Product], splits: int) -> list[list[str]]:
    """False discovery rates in folders of judged good images with defective ones among them."""
    rows = []
    for product in products:
        count = _calibrating(product)
        if count < images_needed(FDR):
            continue
        random, shares = np.random.default_rng(2), []
        for _ in range(splits):
            order = random.permutation(len(product.good))
            others = product.good[order[count:]]
            added = max(1, round(PREVALENCE / (1 - PREVALENCE) * len(others)))
            scores = np.concatenate([others, random.choice(product.defective, added)])
            fitted = calibrate(product.good[order[:count]], level=max(FDR, lowest_level(count)))
            called = np.array([verdict == "defect" for verdict in fdr_verdicts(fitted, scores, FDR)])
            false = called[: len(others)].sum()
            shares.append((false / max(1, called.sum()), called[len(others) :].mean()))
        rate, power = np.mean(shares, axis=0)
        error = np.std([share for share, _ in shares]) / np.sqrt(splits)
        held = "yes" if rate <= FDR + 3 * error else "no"
        rows.append([product.name, str(count), f"{_percent(rate)} ± {_percent(error)}", held, _percent(power)])
    return rows


def choice_rows(sets: int) -> list[list[str]]:
    """How often `choose` picks a point whose true miss rate exceeds the bound, over simulated data sets."""
    rows = []
    for number, (name, true) in enumerate(CHOICES.items()):
        random, chosen = np.random.default_rng([3, number]), []
        for _ in range(sets):
            hardness = random.random(DEFECTS)  # points miss the same hard images, as they do in practice
            missed = {str(point): int((hardness < rate).sum()) for point, rate in enumerate(true)}
            point = choose(missed, defects=DEFECTS, max_miss=MAX_MISS).point
            chosen.append(None if point is None else true[int(point)])
        wrong = float(np.mean([rate is not None and rate > MAX_MISS for rate in chosen]))
        best = float(np.mean([rate == true[-1] for rate in chosen]))
        held = "yes" if wrong <= 0.05 + 3 * _error(sets) else "no"
        rates = ", ".join(f"{100 * rate:g}" for rate in true)
        rows.append([name, rates, _percent(wrong), held, _percent(best)])
    return rows


def page(products: Sequence[Product], splits: int, sets: int, command: str) -> str:
    """guarantees.md."""
    blocks = [
        f"Made by `{command}`; do not edit.",
        "# Do the promises hold?",
        "All rates in percent.",
        "## False alarms on real images",
        f"Good images of products that the model has not seen, scored at {POINT}: {splits:,} random splits into "
        "images that calibrate and images that are judged, at the lowest level that so many can promise. Alarms: mean "
        "share of judged good images called `defect`; error: binomial, of one set of judged images; pixels: the same "
        "for images with a pixel above the pixel threshold; found: mean share of defective images called `defect`. A "
        "promise is rounded down to whole images: of 2 % from 75 images, 1 in 76 is used, 1.32 %.",
        table(
            ["product", "good", "calibrate", "promised", "alarms", "error", "within", "pixels", "found"],
            split_rows(products, splits),
        ),
        "## False alarms in simulation",
        f"{splits:,} calibration sets drawn from a known distribution, so that the true rate of each threshold is "
        "known. Above: share of the sets whose true rate exceeds the level.",
        table(["promise", "images", "needed", "true rate", "above", "kept"], simulated_rows(splits)),
        "## False discoveries",
        f"Folders of judged good images with {100 * PREVALENCE:g} % defective ones among them, at a promised rate of "
        f"{100 * FDR:g} %, over {max(1, splits // 4):,} splits. Found: share of the defective ones. So few calibration "
        "images can hardly call any: among m images, at least m / (0.05 (n + 1)) must score above all n of them.",
        table(
            ["product", "calibrate", "false discoveries", "kept", "found"],
            discovery_rows(products, max(1, splits // 4)),
        ),
        "## Choices",
        f"{sets:,} simulated data sets of {DEFECTS} defects for four points, slowest first; at most "
        f"{100 * MAX_MISS:g} % missed at 95 % confidence, so that at most 5 % of the choices may be wrong.",
        table(["points", "true miss rates", "wrong", "kept", "fastest chosen"], choice_rows(sets)),
    ]
    return "\n\n".join(blocks) + "\n"


def _percent(value: float) -> str:
    return f"{100 * value:.2f}"


def main() -> None:
    parser = study_parser(__doc__)
    parser.add_argument("--model", default="m2i,i2m", help="checkpoints, separated by commas")
    parser.add_argument("--suites", default="mtd,ksdd,mvtec", help="suites, each used where it is unseen")
    parser.add_argument("--splits", type=int, default=2000, help="random splits and simulated calibration sets")
    parser.add_argument("--sets", type=int, default=1000, help="simulated data sets for choices")
    args = parser.parse_args()
    found = list(products(args.data, args.model.split(","), args.suites.split(","), args, args.out))
    with progress("guarantees", 1) as advance:
        text = page(found, args.splits, args.sets, command_line(study_command()))
        advance()
    replace_text(args.out / "guarantees.md", text)


if __name__ == "__main__":
    run_study(main)
