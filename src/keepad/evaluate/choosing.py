"""choose_point(): the fastest operating point, and engine, whose missed defective images are bounded on labelled data.

Every candidate has a threshold of its own, calibrated on good images. Misses are counted on the defective images, which
no threshold has seen, so that the bound is exact whatever the threshold. A defective image counts as missed unless its
verdict is `defect`. References belong to one operating point: at every other one, and on an engine that rounds, they
are taught again from the pictures that the profile carries, and what was measured is what the chosen profile holds.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from PIL import Image

from keepad.arrays import Array
from keepad.console import Progress, Say
from keepad.data import Dataset, Sample
from keepad.decisions import Calibrated, Choice, choose, defects_needed
from keepad.detector import Detector
from keepad.errors import KeepADError
from keepad.evaluate.evaluation import Options, evaluate
from keepad.evaluate.markdown import table
from keepad.evaluate.results import Results
from keepad.evaluate.state import Row, key_of
from keepad.evaluate.variants import Variant
from keepad.files import replace_text
from keepad.images import read_image, spread, to_input
from keepad.latency import interleaved
from keepad.presets import OperatingPoint
from keepad.references.calibrating import Promise, Scored, calibrated_of, profile_of
from keepad.references.profile import Profile
from keepad.references.teaching import digest_of_file, now, owner_of

_TIMED, _ROUNDS = 4, 3


@dataclass(frozen=True)
class Bounds:
    """What the chosen point has to keep.

    Attributes:
        max_miss: Highest share of defective images that are not called `defect`.
        max_lost: Highest share of defects, of those with a mask, that lose all tokens; None: not asked for.
        confidence: Probability with which each of these holds.
    """

    max_miss: float
    max_lost: float | None = None
    confidence: float = 0.95


@dataclass(frozen=True)
class Question:
    """What is to be chosen.

    Attributes:
        detectors: Zero-shot detectors by engine.
        points: Operating points, dense first.
        bounds: What the choice has to keep.
        promise: What the threshold of every candidate promises.
        profile: Profile with references, or None.
    """

    detectors: Mapping[str, Detector]
    points: Sequence[OperatingPoint]
    bounds: Bounds
    promise: Promise
    profile: Profile | None = None


@dataclass(frozen=True)
class Labelled:
    """Images to choose by: good ones that calibrate thresholds, and defective ones, each once.

    Attributes:
        dataset: All of them, as test images.
        good: Digest by key of the good ones.
        defective: Keys of the defective ones.
    """

    dataset: Dataset
    good: Mapping[str, str]
    defective: frozenset[str]


@dataclass(frozen=True)
class Outcome:
    """The result of a choice.

    Attributes:
        profile: The profile of the chosen point, with calibration and choice; None if no point keeps the bounds.
        choice: The tests on missed defective images.
        lost: The tests on defects that lost all tokens, or None.
        page: Both as Markdown.
    """

    profile: Profile | None
    choice: Choice
    lost: Choice | None
    page: str


def labelled(dataset: Dataset, good: Sequence[Path], profile: Profile | None, say: Say) -> Labelled:
    """The images to choose by, copies and references left out.

    Args:
        dataset: Labelled images; all of its splits are used.
        good: Good images to calibrate with, instead of those of the data.
        profile: Its references are left out, because their scores are too low to calibrate with.
        say: Called with a line for what is left out.
    """
    samples = list(dataset.samples)
    if good:
        parent = Path(dataset.root)
        samples = [sample for sample in samples if sample.label == 1]
        samples += [Sample("good", "good", "test", "good", 0, path, None, parent) for path in good]
    references = set() if profile is None else {image.digest for image in profile.images}
    digests: dict[str, str] = {}
    kept, copies, taught = [], 0, 0
    for sample in samples:
        digest = digest_of_file(sample.image)  # "" where unreadable, which the evaluation reports
        if digest and digest in digests.values():
            copies += 1
        elif digest in references and sample.label == 0:
            taught += 1
        else:
            digests[key_of(sample.image, sample)] = digest
            kept.append(replace(sample, split="test"))
    if copies:
        say(f"{copies} of the {len(samples)} images are copies of others and count once.")
    if taught:
        say(f"{taught} good images are references of the profile and are left out.")
    of_label = [[key_of(sample.image, sample) for sample in kept if sample.label == label] for label in (0, 1)]
    return Labelled(
        replace(dataset, samples=tuple(kept)), {key: digests[key] for key in of_label[0]}, frozenset(of_label[1])
    )


def choose_point(question: Question, images: Labelled, out: Path, *, options: Options, say: Say) -> Outcome:
    """The fastest candidate that keeps the bounds, and its profile; `choice.md` and the state are kept in `out`.

    Candidates are tested in a fixed order: dense on the first engine, then from slower to faster.

    Args:
        question: What is to be chosen.
        images: The images.
        out: Folder for state and tables; the same call goes on there.
        options: How the evaluation runs.
        say: Called with a line for every step.

    Raises:
        KeepADError: Too few good or defective images for what is to be promised.
    """
    bounds, promise = question.bounds, question.promise
    promise.require(len(images.good))
    _require(len(images.defective), bounds.max_miss, bounds.confidence)
    if bounds.max_lost is not None:
        masked = sum(sample.mask is not None for sample in images.dataset.samples if sample.label == 1)
        _require(masked, bounds.max_lost, bounds.confidence)
    candidates = _candidates(question, say, options.progress)
    results = evaluate(next(iter(question.detectors.values())), images.dataset, candidates, out, options)
    good = [row for row in results.images if row["key"] in images.good]
    defective = [row for row in results.images if row["key"] in images.defective]
    ms = _milliseconds(candidates, images, out / "times.json", options.fresh)
    first, *others = candidates
    candidates = [first, *sorted(others, key=lambda candidate: -ms[candidate.name])]
    promise.require(len(good))  # some may have been left out as unreadable
    fitted = {candidate.name: _calibrated(good, candidate.name, images, promise) for candidate in candidates}
    missed = {
        name: sum(row["points"][name]["score"] < calibrated.threshold for row in defective)
        for name, calibrated in fitted.items()
    }
    choice, lost = _tested(missed, defective, bounds)
    chosen = None
    if choice.point is not None and (lost is None or lost.point is not None):
        (winner,) = (candidate for candidate in candidates if candidate.name == choice.point)
        chosen = _chosen_profile(winner, fitted[winner.name], choice, lost, list(question.detectors))
    page = _page(results, choice, lost, fitted, ms)
    try:
        replace_text(out / "choice.md", page)
    except OSError as error:
        raise KeepADError(f"{out / 'choice.md'} cannot be written: {error.strerror or error}.") from error
    return Outcome(chosen, choice, lost, page)


def _require(defects: int, most: float, confidence: float) -> None:
    """Refuse, before anything is measured, a bound that so few defects cannot show."""
    needed = defects_needed(most, confidence)
    if defects < needed:
        raise KeepADError(
            f"{defects} defects cannot bound those missed or lost by {100 * most:.3g} % at {100 * confidence:.3g} % "
            f"confidence, even without a miss; {needed} are needed."
        )


def _candidates(question: Question, say: Say, progress: Progress) -> list[Variant]:
    """Every point on every engine; the name of the engine is part of theirs where there are several."""
    variants, profile, detectors = [], question.profile, question.detectors
    for engine, detector in detectors.items():
        for point in question.points:
            runner = detector
            if profile is not None and profile.bank is not None:
                own = Detector(detector.network, point)
                runner = own.with_profile(_taught_for(own, profile, say, progress))
            variants.append(Variant(point.name if len(detectors) == 1 else f"{point.name}, {engine}", point, runner))
    return variants


def _taught_for(detector: Detector, profile: Profile, say: Say, progress: Progress) -> Profile:
    """The profile itself where it belongs to the detector and its point, else taught again from its pictures."""
    if profile.owner == owner_of(detector, detector.point):
        return profile
    pictures = []
    for number in range(len(profile.images)):
        with Image.open(io.BytesIO(profile.picture_of(number)), formats=["JPEG"]) as opened:
            pictures.append(opened.convert("RGB"))
    rotate = "on" if profile.settings.get("rotated") else "off"
    again = detector.teach(pictures, rotate=rotate, size=profile.settings.get("size"), say=say, progress=progress)
    if len(again.images) != len(profile.images):
        return again  # two references were the same picture, which counts once
    images = tuple(
        replace(own, name=image.name, digest=image.digest)
        for own, image in zip(again.images, profile.images, strict=True)
    )
    return replace(again, images=images, history=(*profile.history, *again.history))


def _milliseconds(candidates: Sequence[Variant], images: Labelled, file: Path, fresh: bool) -> dict[str, float]:
    """Median milliseconds per image of each candidate, interleaved; they only set the order of the tests.

    They are kept in a file: an order that changed from run to run could be repeated until it suits.
    """
    names = [candidate.name for candidate in candidates]
    try:
        known = {} if fresh else json.loads(file.read_text(encoding="utf-8"))
        if list(known) == names and all(0 < float(ms) < math.inf for ms in known.values()):
            return {name: float(ms) for name, ms in known.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        pass  # not measured yet
    batches: list[Array] = []
    runs: dict[str, Callable[[Array], object]] = {}
    for sample in spread(images.dataset.samples, 4 * _TIMED):
        if len(batches) < _TIMED:
            try:
                size = _detector(candidates[0]).image_size
                batches.append(to_input(read_image(sample.image), size)[None])
            except KeepADError:
                continue  # the evaluation reports it
    if not batches:
        raise KeepADError("none of the images can be read, so there is nothing to choose by.")
    for candidate in candidates:

        def run(batch: Array, candidate: Variant = candidate) -> object:
            return _detector(candidate).infer(batch, [candidate.point])

        runs[candidate.name] = run
    times = {name: float(np.median(ms)) for name, ms in interleaved(runs, batches, _ROUNDS).items()}
    try:
        replace_text(file, json.dumps(times, indent=1))
    except OSError as error:
        raise KeepADError(f"{file} cannot be written: {error.strerror or error}.") from error
    return times


def _detector(candidate: Variant) -> Detector:
    assert candidate.detector is not None, "candidates have one"
    return candidate.detector


def _calibrated(good: Sequence[Row], name: str, images: Labelled, promise: Promise) -> Calibrated:
    """The calibration of one candidate, from its scores of the good images."""
    at_point = {images.good[row["key"]]: row["points"][name] for row in good}
    scored = {digest: Scored(values["score"], values["highest"], (0, 0)) for digest, values in at_point.items()}
    return calibrated_of(scored, {images.good[row["key"]]: Path(row["key"]).name for row in good}, promise)


def _tested(missed: Mapping[str, int], defective: Sequence[Row], bounds: Bounds) -> tuple[Choice, Choice | None]:
    """The tests on missed images, and on lost defects where these are bounded; both end at the same point.

    A point passes if it passes both, each at the full error rate: the probability of a wrong choice does not add up.
    """
    choice = choose(missed, defects=len(defective), max_miss=bounds.max_miss, confidence=bounds.confidence)
    if bounds.max_lost is None:
        return choice, None
    marked = [row for row in defective if row["defect_tokens"]]
    counts = {name: sum(row["points"][name]["defect"] == 0 for row in marked) for name in missed}
    lost = choose(counts, defects=len(marked), max_miss=bounds.max_lost, confidence=bounds.confidence)
    order = list(missed)
    passed = [0 if each.point is None else order.index(each.point) + 1 for each in (choice, lost)]
    both = order[: min(passed)]
    if both and passed[0] != passed[1]:  # the tests end for both where they end for one
        missed, counts = ({name: values[name] for name in both} for values in (missed, counts))
        choice = choose(missed, defects=len(defective), max_miss=bounds.max_miss, confidence=bounds.confidence)
        lost = choose(counts, defects=len(marked), max_miss=bounds.max_lost, confidence=bounds.confidence)
    return choice, lost


def _chosen_profile(
    winner: Variant, calibrated: Calibrated, choice: Choice, lost: Choice | None, engines: Sequence[str]
) -> Profile:
    detector = _detector(winner)
    profile = profile_of(detector if detector.profile is not None else Detector(detector.network, winner.point))
    profile = profile.with_calibration(calibrated, now())
    line = {"action": "choose", "point": winner.name, "when": now()}
    settings = dict(profile.settings)
    if len(engines) > 1:
        settings["engine"] = winner.name.rpartition(", ")[2]
    return replace(profile, choice=choice, lost=lost, settings=settings, history=(*profile.history, line))


def _page(
    results: Results,
    choice: Choice,
    lost: Choice | None,
    fitted: Mapping[str, Calibrated],
    ms: Mapping[str, float],
) -> str:
    """choice.md."""
    settings = results.content["settings"]
    blocks = [f"Made by `{settings['command'] or 'keepad.evaluate.choosing'}`; do not edit.", "# Choice"]
    for title, what, tests in (("Missed defective images", "missed", choice), ("Lost defects", "lost", lost)):
        if tests is None:
            continue
        rows = [
            [
                row.point,
                f"{ms[row.point]:.0f}",
                f"{fitted[row.point].threshold:.4f}",
                f"{row.missed} of {tests.defects}",
                f"{100 * row.rate:.2f}",
                f"{100 * row.bound:.2f}",
                f"{row.p_value:.2g}",
                row.result,
            ]
            for row in tests.table
        ]
        columns = ["point", "ms", "threshold", what, "%", "bound, %", "p-value", "result"]
        blocks += [f"## {title}", tests.described(what), table(columns, rows)]
    blocks.append(
        f"Thresholds: {next(iter(fitted.values())).promise}. Points are tested in this order, each at the full error "
        "rate; the first that fails ends the tests."
    )
    return "\n\n".join(blocks) + "\n"
