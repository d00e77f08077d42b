"""evaluate(): variants of a detector on every test image, from early blocks that are computed once."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from keepad.arrays import Array
from keepad.console import Advance, Progress, command_line, no_progress
from keepad.data import Dataset, Sample, load_mask
from keepad.detector import Detector
from keepad.errors import KeepADError
from keepad.evaluate.fingerprint import fingerprint
from keepad.evaluate.flops import gflops_of, with_reducers
from keepad.evaluate.inputs import check_measurable, defect_cells, shares_of
from keepad.evaluate.markdown import to_markdown
from keepad.evaluate.results import (
    REFERENCE,
    ClassOutcome,
    Results,
    make_averages,
    make_pixel_error,
    make_records,
    make_survival,
)
from keepad.evaluate.selection import groups_of, seen_suites
from keepad.evaluate.shots import ReferencePool
from keepad.evaluate.state import ClassState, Row, key_of, open_folder
from keepad.evaluate.variants import Variant, VariantLike, View, as_variants, passes_of
from keepad.files import locked, replace_text, writable_folder
from keepad.images import InputImage
from keepad.inference import NO_REFERENCES, Inference
from keepad.prefetch import prefetch
from keepad.version import __version__

SAVE_EVERY = 25  # images that a kill may cost
_PREFETCHED = 3  # batches decoded while the network runs


@dataclass(frozen=True)
class Options:
    """How an evaluation runs.

    Attributes:
        batch_size: Images that share one forward pass.
        limit: Largest number of images per class, anomalous and normal in equal parts, spread evenly; None is all.
        reference: Name of the variant that deltas are against.
        fresh: Drop the state in the folder and start over.
        command: Words of the command that runs it, for the record.
        progress: Progress bar, such as `keepad.console.progress`.
    """

    batch_size: int = 1
    limit: int | None = None
    reference: str = REFERENCE
    fresh: bool = False
    command: Sequence[str] = ()
    progress: Progress = no_progress

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise KeepADError(f"the batch size must be at least 1, not {self.batch_size}.")
        if self.limit is not None and self.limit < 1:
            raise KeepADError(f"the limit must be at least one image per class, not {self.limit}.")


def evaluate(
    detector: Detector,
    dataset: Dataset,
    variants: Sequence[VariantLike],
    out: str | Path,
    options: Options | None = None,
) -> Results:
    """The metrics of every variant on the test images, also as `results.json` and `results.md` in `out`.

    Finished images are kept in `out`/state: after a kill the same call goes on, and once all are done it only makes the
    tables again. Images that could not be used are tried again each time.

    Args:
        detector: Runs every variant that has no detector of its own; its own operating point plays no part.
        dataset: Only its test split is used.
        variants: Variants, operating points, or names of operating points.
        out: Folder for results and state.
        options: How to run; the defaults if None.

    Raises:
        KeepADError: There is nothing to evaluate, `out` holds the state of another evaluation, or it cannot be written.
    """
    options = options or Options()
    listed = as_variants(variants)
    if options.reference not in (REFERENCE, *(variant.name for variant in listed)):
        raise KeepADError(f"the reference {options.reference!r} is none of the variants; choose one of them.")
    groups = groups_of(dataset, options.limit)
    pool = ReferencePool(dataset, groups, listed)
    groups = pool.without_references(groups)
    out = Path(out)
    samples = [sample for group in groups.values() for sample in group]
    listed = with_reducers(listed, detector, samples)
    identity = fingerprint(detector, listed, [*samples, *pool.samples])
    run = _Run(detector, listed, groups, options.batch_size, pool)  # refuses variants before a folder is made
    with locked(writable_folder(out)):
        try:
            open_folder(out / "state", identity, fresh=options.fresh)
            with options.progress("evaluate", len(samples)) as advance:
                outcomes = run.outcomes(out / "state", advance)
            content = {
                "settings": {
                    **_settings(detector, identity, options),
                    "data": _counts(dataset, outcomes),
                    "seconds_per_image": _seconds(outcomes),
                },
                **_numbers(outcomes, [variant.name for variant in listed], options.reference),
                "errors": run.errors,
            }
            replace_text(out / "results.json", json.dumps(content, indent=1, allow_nan=False) + "\n")
            replace_text(out / "results.md", to_markdown(content))
        except OSError as error:
            kept = "finished images are kept, and the same command goes on."
            raise KeepADError(f"writing to {out} failed: {error.strerror or error}; {kept}") from error
    images = [{"suite": outcome.suite, "class": outcome.cls, **row} for outcome in outcomes for row in outcome.rows]
    return Results(out, content, images, run.computed, tuple(listed))


@dataclass(frozen=True)
class _Viewed:
    """An image in a view, and (H, W) mask and (N,) defect tokens as far as they are known."""

    image: InputImage
    mask: Array | None
    defect: Array | None


@dataclass(frozen=True)
class _Input:
    """An image in every view of the evaluation."""

    sample: Sample
    views: Mapping[View | None, _Viewed]


@dataclass(frozen=True)
class _Failure:
    """An image that cannot be used, and why."""

    sample: Sample
    sentence: str


class _Run:
    """One pass over all classes.

    Args:
        detector: The detector.
        variants: Variants.
        groups: Samples by suite and class.
        batch_size: Images that share one forward pass.
        pool: Good images that references are drawn from.
    """

    def __init__(
        self,
        detector: Detector,
        variants: Sequence[Variant],
        groups: dict[tuple[str, str], list[Sample]],
        batch_size: int,
        pool: ReferencePool,
    ) -> None:
        self.errors: list[dict[str, str]] = []
        self.computed = 0
        self._groups, self._batch_size = groups, batch_size
        self._detector, self._pool, self._banks = detector, pool, NO_REFERENCES
        self._patch, self._seen = detector.network.patch, seen_suites(detector)
        self._passes = passes_of(variants, detector)
        self._views = {variant.name: variant.view for variant in variants}
        self._runs = {variant.name: (variant.detector or detector, variant.point) for variant in variants}
        self._alone = [variant for variant in variants if variant.shares is not None]
        self._clock = time.perf_counter()
        # Where a class has no mask at all, its normal images cannot give pixel metrics either.
        self._masked = {name for name, samples in groups.items() if any(sample.mask for sample in samples)}

    def outcomes(self, folder: Path, advance: Advance) -> list[ClassOutcome]:
        """The outcome of every class, computed where its state in `folder` is not finished."""
        states = [ClassState(folder, number, name, list(self._views)) for number, name in enumerate(self._groups)]
        unfinished = [
            _unfinished(samples, state, self._batch_size)
            for samples, state in zip(self._groups.values(), states, strict=True)
        ]
        done = sum(len(state.rows) for state in states)
        if done:
            advance(done)
        self._clock = time.perf_counter()
        every_batch = (batch for batches in unfinished for batch in batches)
        outcomes = []
        with closing(prefetch(self._load_batch, every_batch, _PREFETCHED)) as inputs:
            for (suite, cls), state, batches in zip(self._groups, states, unfinished, strict=True):
                state.begin()
                if batches:
                    self._banks = self._pool.banks(self._detector, (suite, cls))
                for _ in batches:
                    self._take(next(inputs), state, advance)
                if batches:
                    state.save(small=True)
                pixels = {name: metrics.compute() for name, metrics in state.pixels.items()}
                state.end()
                order = [key_of(sample.image, sample) for sample in self._groups[suite, cls]]
                rows = {row["key"]: row for row in state.rows}
                in_order = [rows[key] for key in order if key in rows]
                outcomes.append(ClassOutcome(suite, cls, in_order, pixels, suite in self._seen))
        return outcomes

    def _load_batch(self, samples: Sequence[Sample]) -> list[_Input | _Failure]:
        return [self._load(sample) for sample in samples]

    def _load(self, sample: Sample) -> _Input | _Failure:
        try:
            image = self._detector.prepare(sample.image)
            check_measurable(image)
            mask = None
            if (sample.suite, sample.cls) in self._masked and (sample.label == 0 or sample.mask is not None):
                mask = load_mask(sample, image.map_size)
        except KeepADError as error:
            sentence = str(error)
            for path in filter(None, (sample.image, sample.mask)):
                sentence = sentence.replace(str(path), key_of(path, sample))
            return _Failure(sample, sentence)
        views = dict.fromkeys(self._views.values())
        return _Input(sample, {view: self._viewed(view, sample, image, mask) for view in views})

    def _viewed(self, view: View | None, sample: Sample, image: InputImage, mask: Array | None) -> _Viewed:
        if view is not None:
            pixels, mask = view.of_image(image.pixels), None if mask is None else view.of_mask(mask)
            image = replace(image, pixels=pixels)
        defect = defect_cells(mask, self._patch) if sample.label == 1 and mask is not None else None
        return _Viewed(image, mask, defect)

    def _take(self, batch: Sequence[_Input | _Failure], state: ClassState, advance: Advance) -> None:
        """Run one batch and add it to the state."""
        started = time.perf_counter()
        inputs = [image for image in batch if isinstance(image, _Input)]
        self.errors += [
            {"path": key_of(image.sample.image, image.sample), "error": image.sentence}
            for image in batch
            if isinstance(image, _Failure)
        ]
        if inputs:
            inferences: dict[str, list[Inference]] = {}
            for each in self._passes:
                images = [image.views[each.view].image for image in inputs]
                inferences |= each.detector.infer_images(images, each.points, references=self._banks or None)
            for variant in self._alone:
                inferences[variant.name] = [self._infer_alone(variant, image) for image in inputs]
            network = time.perf_counter() - started
            rows = [self._row(image, inferences, position) for position, image in enumerate(inputs)]
            for name, metrics in state.pixels.items():
                for image, inference in zip(inputs, inferences[name], strict=True):
                    mask = image.views[self._views[name]].mask
                    if mask is not None:
                        metrics.update(inference.anomaly_map, mask)
            now = time.perf_counter()
            for row in rows:
                row["seconds"] = [network / len(inputs), (now - self._clock) / len(inputs)]
            self._clock = now
            state.append(rows)
            self.computed += len(rows)
        if state.unsaved >= SAVE_EVERY:
            state.save()
        advance(len(batch))

    def _infer_alone(self, variant: Variant, image: _Input) -> Inference:
        """One image at the point that it alone has."""
        point = variant.point_of(key_of(image.sample.image, image.sample))
        runner = variant.detector or self._detector
        return runner.infer_images([image.views[variant.view].image], [point])[point.name][0]

    def _row(self, image: _Input, inferences: Mapping[str, Sequence[Inference]], position: int) -> Row:
        """The stored line of the image at `position` of its batch."""
        key = key_of(image.sample.image, image.sample)
        points: dict[str, Any] = {}
        for name, view in self._views.items():
            inference, defect = inferences[name][position], image.views[view].defect
            if not np.isfinite(inference.score):
                raise KeepADError(f"{key} gave no finite score; the weights or the checkpoint are damaged.")
            shallow, final = inference.survivors_shallow, inference.survivors
            points[name] = {
                "score": inference.score,
                "highest": float(inference.anomaly_map.max()),
                **shares_of(inference),
                "evidence": inference.evidence,
                "defect_shallow": None if defect is None else int(defect[shallow].sum()),
                "defect": None if defect is None else int(defect[final].sum()),
                "gflops": gflops_of(inference, *self._runs[name]),
            }
            if inference.alone is not None:
                points[name]["defect_alone"] = None if defect is None else int(defect[inference.alone].sum())
        # A flip moves defect tokens but does not change their number, so any view counts them.
        defect = image.views[next(iter(image.views))].defect
        return {
            "key": key,
            "label": image.sample.label,
            "defect_tokens": None if defect is None else int(defect.sum()),
            "points": points,
        }


def _unfinished(samples: Sequence[Sample], state: ClassState, batch_size: int) -> list[list[Sample]]:
    """Batches cut from all samples, so that they do not depend on where a run stopped, less the finished images."""
    done = {row["key"] for row in state.rows}
    batches = [samples[start : start + batch_size] for start in range(0, len(samples), batch_size)]
    left = [[sample for sample in batch if key_of(sample.image, sample) not in done] for batch in batches]
    return [batch for batch in left if batch]


def _numbers(outcomes: Sequence[ClassOutcome], points: Sequence[str], reference: str) -> dict[str, Any]:
    records = make_records(outcomes, points)
    return {
        "averages": make_averages(records, points, reference),
        "survival": make_survival(outcomes, points),
        "records": records,
        "pixel_error": make_pixel_error(outcomes),
    }


def _settings(detector: Detector, identity: dict[str, Any], options: Options) -> dict[str, Any]:
    return {
        "command": command_line(options.command),
        "model": detector.name,
        "backbone": detector.backbone_name,
        "checkpoint_digest": identity["checkpoint"],
        "backbone_digest": identity["backbone"],
        "code_digest": identity["code"],
        "image_size": identity["image_size"],
        "points": {described["name"]: described for described in identity["points"]},
        "reference": options.reference,
        "limit": options.limit,
        "batch_size": options.batch_size,
        "device": detector.runs_on,
        "versions": {
            "keepad": __version__,
            **{package: version(package) for package in detector.packages},
            "python": platform.python_version(),
        },
        "finished": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }


def _counts(dataset: Dataset, outcomes: Sequence[ClassOutcome]) -> dict[str, Any]:
    suites: dict[str, dict[str, int]] = {}
    for outcome in outcomes:
        counts = suites.setdefault(outcome.suite, {"classes": 0, "good": 0, "defect": 0, "with_mask": 0})
        counts["classes"] += 1
        counts["good"] += sum(row["label"] == 0 for row in outcome.rows)
        counts["defect"] += sum(row["label"] == 1 for row in outcome.rows)
        counts["with_mask"] += sum(row["defect_tokens"] is not None for row in outcome.rows)
    return {"name": dataset.root.resolve().name, "layout": dataset.layout, "suites": suites}


def _seconds(outcomes: Sequence[ClassOutcome]) -> dict[str, float | None]:
    seconds = [row["seconds"] for outcome in outcomes for row in outcome.rows]
    network, total = np.mean(seconds, axis=0).tolist() if seconds else (None, None)
    return {"network": network, "total": total}
