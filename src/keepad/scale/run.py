"""score(): all images of a source, by one process, by several, or by a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from keepad.console import Progress, Say
from keepad.detector import Detector
from keepad.engines.folder import is_exported
from keepad.engines.sessions import PACKAGES
from keepad.errors import KeepADError
from keepad.files import locked, writable_folder
from keepad.model_digest import model_digest
from keepad.presets import OperatingPoint
from keepad.scale.plan import Plan, Request, open_plan, remove_parts
from keepad.scale.shards import parquet_module, score_shard
from keepad.scale.storage import is_remote, local_path
from keepad.scale.workers import Done, Pool

PLACES = ("local", "ray")


@dataclass(frozen=True)
class DetectorOptions:
    """How to open the detector, in this process and in workers; the arguments of `keepad.load`.

    Attributes:
        model: Checkpoint or exported folder; the bundled default if None.
        point: Operating point.
        profile: References of one product, or None.
        engine: Engine with precision.
        device: Device of torch.
        weights: Backbone weights.
        threshold: Threshold that replaces the known one, or None.
    """

    model: str | None = None
    point: str | OperatingPoint | None = None
    profile: Path | None = None
    engine: str = "auto"
    device: str | None = None
    weights: Path | None = None
    threshold: float | None = None

    def open(self, say: Say = lambda line: None) -> Detector:
        """The detector."""
        from keepad.loading import load

        options: dict[str, Any] = {"device": self.device, "weights": self.weights, "profile": self.profile}
        detector = load(self.model, point=self.point, engine=self.engine, say=say, **options)
        if self.threshold is not None:
            detector.set_threshold(self.threshold)
        return detector


@dataclass(frozen=True)
class Job:
    """How to score.

    Attributes:
        source: Source, as `images_of` reads it.
        to: Folder of the shards.
        on: "local" or "ray".
        workers: Number of processes.
        format: "parquet" or "jsonl".
        shard: Images per shard.
        batch_size: Images per forward pass.
        maps: Whether to write maps.
    """

    source: str
    to: str
    on: str = "local"
    workers: int = 1
    format: str = "parquet"
    shard: int = 1000
    batch_size: int = 1
    maps: bool = False


@dataclass
class ScoreSummary:
    """What a run did.

    Attributes:
        images: Images that were scored now, errors among them.
        errors: Images that could not be used.
        before: Images that had their rows already.
        interrupted: Whether Ctrl-C ended it early.
    """

    images: int = 0
    errors: int = 0
    before: int = 0
    interrupted: bool = False


def score(options: DetectorOptions, job: Job, say: Say, progress: Progress) -> ScoreSummary:
    """Score all images of a source; what is there already is not scored again.

    Raises:
        KeepADError: An option is wrong, source or folder cannot be used, or the folder belongs to another run.
    """
    if job.on not in PLACES:
        raise KeepADError(f"images can be scored on {' or '.join(PLACES)}, not on {job.on!r}.")
    if job.workers < 1:
        raise KeepADError(f"there must be at least one worker, not {job.workers}.")
    if job.format == "parquet":
        parquet_module()  # a missing package is reported before a model is opened
    with ExitStack() as stack:
        if not is_remote(job.to):
            stack.enter_context(locked(writable_folder(local_path(job.to))))
            remove_parts(job.to)
        detector: Detector | None = options.open(say)
        assert detector is not None
        request = Request(job.source, model_digest(detector), job.format, job.shard, job.maps)
        plan = open_plan(job.to, request, say)
        missing = plan.missing()
        summary = ScoreSummary(before=plan.images - sum(map(plan.size, missing)))
        if not missing:
            return summary
        settled = _settled(options, detector)
        if job.on == "ray" or job.workers > 1:
            detector = None  # each worker has one of its own
        with progress("score", sum(map(plan.size, missing))) as advance:

            def done(images: int, errors: int) -> None:
                summary.images += images
                summary.errors += errors
                advance(images)

            try:
                _run(plan, missing, settled, detector, job, done)
            except KeyboardInterrupt:
                summary.interrupted = True
    return summary


def _run(
    plan: Plan, missing: Sequence[int], options: DetectorOptions, detector: Detector | None, job: Job, done: Done
) -> None:
    if job.on == "ray":
        from keepad.scale.cluster import run_on_ray

        run_on_ray(plan, options.open, job.workers, missing, done, job.batch_size)
    elif detector is None:
        Pool(plan, options.open, job.workers, job.batch_size).run(missing, done)
    else:
        for number in missing:
            done(*score_shard(detector, plan.shard(number), plan.request.model, batch_size=job.batch_size))


def _settled(options: DetectorOptions, detector: Detector) -> DetectorOptions:
    """The options with the engine that "auto" chose here, so that all workers compute the same numbers."""
    if options.engine != "auto" or is_exported(options.model):
        return options
    kind = next(name for name, package in {**PACKAGES, "torch": "torch"}.items() if package in detector.packages)
    return replace(options, engine=kind if detector.precision == "fp32" else f"{kind}:{detector.precision}")
