"""evaluate(): every test image through the network once, all operating points from the prefix they share."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from keepad.arrays import Array
from keepad.console import command_line
from keepad.data import Dataset, Sample, load_mask
from keepad.detector import Detector, Finding
from keepad.errors import KeepADError
from keepad.evaluate.markdown import to_markdown
from keepad.evaluate.results import (
    ClassOutcome,
    Results,
    make_averages,
    make_pixel_error,
    make_records,
    make_survival,
)
from keepad.evaluate.state import ClassState, Row, fingerprint, key_of, open_folder
from keepad.files import replacing
from keepad.images import read_image, to_input
from keepad.metrics import defect_tokens
from keepad.prefetch import prefetch
from keepad.presets import OperatingPoint, operating_point
from keepad.version import __version__

Progress = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]

_SAVE_EVERY = 25  # images that a kill may cost
_READ_AHEAD = 3  # batches decoded while the network runs

T = TypeVar("T")
U = TypeVar("U")


@contextmanager
def _silent(title: str, total: int) -> Iterator[Callable[[int], None]]:
    yield lambda steps: None


def evaluate(
    model: Detector,
    dataset: Dataset,
    points: Sequence[str | OperatingPoint],
    out: str | Path,
    *,
    batch_size: int = 1,
    limit: int | None = None,
    fresh: bool = False,
    command: Sequence[str] = (),
    progress: Progress = _silent,
) -> Results:
    """The measures of every operating point on the test images, also as `results.json` and `results.md` in `out`.

    What is finished is kept in `out`/state: after a kill the same call goes on, and once all is done it only makes the
    tables again. Images that could not be used are tried again each time.

    Args:
        model: The detector; its own operating point plays no part.
        dataset: Only its test split is used.
        points: Operating points; deltas are against the one called "dense".
        out: Folder for results and state.
        batch_size: Images that share one forward pass.
        limit: At most so many images a class, anomalous and normal ones in equal parts, spread evenly; None is all.
        fresh: Drop the state in `out` and start over.
        command: What was typed to get here, for the record.
        progress: Called with a title and the number of images; a context manager that gives what is called with the
            number of images done since, such as `keepad.console.progress`.

    Raises:
        KeepADError: There is nothing to evaluate, `out` holds the state of another evaluation, or it cannot be written.
    """
    chosen = _points(points)
    groups = _groups(dataset, limit)
    if batch_size < 1:
        raise KeepADError(f"the batch size must be at least 1, not {batch_size}.")
    out = Path(out)
    everything = [sample for samples in groups.values() for sample in samples]
    identity = fingerprint(model, chosen, everything)
    try:
        open_folder(out / "state", identity, fresh=fresh)
        run = _Run(model, chosen, groups, out / "state", batch_size)
        with progress("evaluate", len(everything)) as advance:
            outcomes = run.outcomes(advance)
        content = {
            "settings": _settings(
                model, chosen, dataset, identity, outcomes, batch_size=batch_size, limit=limit, command=command
            ),
            **_numbers(outcomes, [point.name for point in chosen]),
            "errors": run.errors,
        }
        with replacing(out / "results.json") as partial:
            partial.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")
        with replacing(out / "results.md") as partial:
            partial.write_text(to_markdown(content), encoding="utf-8")
    except OSError as error:
        raise KeepADError(
            f"writing to {out} failed: {error.strerror or error}; what was finished is kept, and the same "
            "command goes on."
        ) from error
    images = [{"suite": one.suite, "class": one.cls, **row} for one in outcomes for row in one.rows]
    return Results(out, content, images, run.computed)


def _points(points: Sequence[str | OperatingPoint]) -> list[OperatingPoint]:
    chosen = [operating_point(point) for point in points]
    names = [point.name for point in chosen]
    if not chosen or len(set(names)) < len(names):
        raise KeepADError(f"operating points must be distinct and at least one, not {', '.join(names) or 'none'}.")
    return chosen


def _groups(dataset: Dataset, limit: int | None) -> dict[tuple[str, str], list[Sample]]:
    if limit is not None and limit < 1:
        raise KeepADError(f"the limit must be at least one image a class, not {limit}.")
    groups = dataset.select(split="test").by_class()
    if not groups:
        raise KeepADError(f"'{dataset.root}' holds no test image that was asked for; choose other suites or classes.")
    return {name: list(samples) if limit is None else _thin(samples, limit) for name, samples in groups.items()}


def _thin(samples: Sequence[Sample], limit: int) -> list[Sample]:
    """At most `limit` samples in their order: half of them anomalous while there are enough, spread evenly."""
    places = [[place for place, sample in enumerate(samples) if sample.label == label] for label in (1, 0)]
    anomalous = min(len(places[0]), max((limit + 1) // 2, limit - len(places[1])))
    normal = min(len(places[1]), limit - anomalous)
    chosen = [
        of_label[number * len(of_label) // wanted]
        for of_label, wanted in zip(places, (anomalous, normal), strict=True)
        for number in range(wanted)
    ]
    return [samples[place] for place in sorted(chosen)]


@dataclass(frozen=True)
class _Input:
    """An image at input size with its mask and the tokens that its defect touches, as far as they are known."""

    sample: Sample
    pixels: Array
    mask: Array | None
    defect: Array | None


@dataclass(frozen=True)
class _Failure:
    """An image that cannot be used, and why."""

    sample: Sample
    sentence: str


class _Run:
    """One pass over all classes.

    Args:
        model: The detector.
        points: Operating points.
        groups: Samples by suite and class.
        folder: Where the state is kept.
        batch_size: Images that share one forward pass.
    """

    def __init__(
        self,
        model: Detector,
        points: Sequence[OperatingPoint],
        groups: dict[tuple[str, str], list[Sample]],
        folder: Path,
        batch_size: int,
    ) -> None:
        self.errors: list[dict[str, str]] = []
        self.computed = 0
        self._model, self._points, self._groups = model, points, groups
        self._clock = time.perf_counter()
        self._grid = model.grid
        self._seen = {entry.get("suite") for entry in model.provenance.get("data") or []}
        names = [point.name for point in points]
        self._states = [ClassState(folder, number, name, names) for number, name in enumerate(groups)]
        self._batches = [
            _unfinished(samples, state, batch_size)
            for samples, state in zip(groups.values(), self._states, strict=True)
        ]
        # Where a class has no mask at all, its normal images cannot give pixel metrics either.
        self._masked = {name for name, samples in groups.items() if any(sample.mask for sample in samples)}

    def outcomes(self, advance: Callable[[int], None]) -> list[ClassOutcome]:
        """The outcome of every class, computed where it is not finished yet."""
        done = sum(len(state.rows) for state in self._states)
        if done:
            advance(done)
        self._clock = time.perf_counter()
        every_batch = (batch for batches in self._batches for batch in batches)
        found = []
        with closing(prefetch(self._read, every_batch, _READ_AHEAD)) as inputs:
            for (suite, cls), state, batches in zip(self._groups, self._states, self._batches, strict=True):
                state.begin()
                for _ in batches:
                    self._take(next(inputs), state, advance)
                if batches:
                    state.save(small=True)
                pixels = {point: metrics.compute() for point, metrics in state.pixels.items()}
                state.end()
                order = {key_of(sample.image, sample): place for place, sample in enumerate(self._groups[suite, cls])}
                rows = sorted(state.rows, key=lambda row, order=order: order[row["key"]])  # type: ignore[misc]
                found.append(ClassOutcome(suite, cls, rows, pixels, suite in self._seen))
        return found

    def _read(self, samples: Sequence[Sample]) -> list[_Input | _Failure]:
        return [self._read_one(sample) for sample in samples]

    def _read_one(self, sample: Sample) -> _Input | _Failure:
        try:
            pixels = to_input(read_image(sample.image), self._model.image_size)
            mask = None
            if (sample.suite, sample.cls) in self._masked and (sample.label == 0 or sample.mask is not None):
                mask = load_mask(sample, self._model.image_size)
        except KeepADError as error:
            sentence = str(error)
            for path in filter(None, (sample.image, sample.mask)):
                sentence = sentence.replace(str(path), key_of(path, sample))
            return _Failure(sample, sentence)
        defect = defect_tokens(mask, self._grid).reshape(-1) if sample.label == 1 and mask is not None else None
        return _Input(sample, pixels, mask, defect)

    def _take(self, batch: Sequence[_Input | _Failure], state: ClassState, advance: Callable[[int], None]) -> None:
        """Run one batch and book it."""
        started = time.perf_counter()
        inputs = [one for one in batch if isinstance(one, _Input)]
        for one in batch:
            if isinstance(one, _Failure):
                self.errors.append({"path": key_of(one.sample.image, one.sample), "error": one.sentence})
        if inputs:
            outcomes = self._model.find(np.stack([one.pixels for one in inputs]), self._points)
            network = time.perf_counter() - started
            rows = [
                self._row(one, {name: found[b] for name, found in outcomes.items()}) for b, one in enumerate(inputs)
            ]
            for b, one in enumerate(inputs):
                if one.mask is not None:
                    for name, metrics in state.pixels.items():
                        metrics.update(outcomes[name][b].pixel_map, one.mask)
            now = time.perf_counter()
            for row in rows:
                row["seconds"] = [network / len(inputs), (now - self._clock) / len(inputs)]
            self._clock = now
            state.append(rows)
            self.computed += len(rows)
        if state.unsaved >= _SAVE_EVERY:
            state.save()
        advance(len(batch))

    def _row(self, one: _Input, outcomes: dict[str, Finding]) -> Row:
        tokens = self._grid[0] * self._grid[1]
        found: dict[str, Any] = {}
        for name, outcome in outcomes.items():
            if not np.isfinite(outcome.score):
                name = key_of(one.sample.image, one.sample)
                raise KeepADError(f"{name} gave no finite score; the weights or the checkpoint are damaged.")
            shallow, final = outcome.survivors_shallow, outcome.survivors
            found[name] = {
                "score": outcome.score,
                "keep_pixels": 1.0 if outcome.thinned is None else len(outcome.thinned.index) / tokens,
                "keep_shallow": len(shallow) / tokens,
                "keep": len(final) / tokens,
                "evidence": outcome.evidence,
                "defect_shallow": None if one.defect is None else int(one.defect[shallow].sum()),
                "defect": None if one.defect is None else int(one.defect[final].sum()),
            }
        return {
            "key": key_of(one.sample.image, one.sample),
            "label": one.sample.label,
            "defect_tokens": None if one.defect is None else int(one.defect.sum()),
            "points": found,
        }


def _unfinished(samples: Sequence[Sample], state: ClassState, batch_size: int) -> list[list[Sample]]:
    """Batches cut from all samples, so that they do not depend on where a run stopped, less what is finished."""
    done = {row["key"] for row in state.rows}
    batches = [samples[start : start + batch_size] for start in range(0, len(samples), batch_size)]
    left = [[sample for sample in batch if key_of(sample.image, sample) not in done] for batch in batches]
    return [batch for batch in left if batch]


def _numbers(outcomes: Sequence[ClassOutcome], points: Sequence[str]) -> dict[str, Any]:
    records = make_records(outcomes, points)
    return {
        "averages": make_averages(records, points),
        "survival": make_survival(outcomes, points),
        "records": records,
        "pixel_error": make_pixel_error(outcomes),
    }


def _settings(
    model: Detector,
    points: Sequence[OperatingPoint],
    dataset: Dataset,
    identity: dict[str, Any],
    outcomes: Sequence[ClassOutcome],
    *,
    batch_size: int,
    limit: int | None,
    command: Sequence[str],
) -> dict[str, Any]:
    suites: dict[str, dict[str, int]] = {}
    for outcome in outcomes:
        counts = suites.setdefault(outcome.suite, {"classes": 0, "good": 0, "defect": 0, "with_mask": 0})
        counts["classes"] += 1
        counts["good"] += sum(row["label"] == 0 for row in outcome.rows)
        counts["defect"] += sum(row["label"] == 1 for row in outcome.rows)
        counts["with_mask"] += sum(row["defect_tokens"] is not None for row in outcome.rows)
    seconds = [row["seconds"] for outcome in outcomes for row in outcome.rows]
    network, whole = np.mean(seconds, axis=0).tolist() if seconds else (None, None)
    return {
        "command": command_line(command),
        "model": model.name,
        "backbone": model.backbone_name,
        "checkpoint_digest": identity["checkpoint"],
        "backbone_digest": identity["backbone"],
        "image_size": identity["image_size"],
        "points": {point.name: described for point, described in zip(points, identity["points"], strict=True)},
        "data": {"name": dataset.root.resolve().name, "layout": dataset.layout, "suites": suites},
        "limit": limit,
        "batch_size": batch_size,
        "device": model.runs_on,
        "versions": {
            "keepad": __version__,
            **{package: version(package) for package in model.packages},
            "python": platform.python_version(),
        },
        "seconds_per_image": {"network": network, "total": whole},
        "finished": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }
